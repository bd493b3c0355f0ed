"""Use cases of disks: people's requests, operations on the cloud, and reconciliation."""
