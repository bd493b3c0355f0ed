"""AWS: Auto Scaling Groups, EBS volumes and snapshots."""
