"""The public API: reservations, dev servers, disks, addons and the cluster, each sync and async."""
