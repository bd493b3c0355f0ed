"""What programs call: reservations, dev servers, disks, addons and the cluster, each sync and async."""
