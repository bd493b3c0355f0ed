"""Disks, their operations, snapshots, volumes and contents, as rows."""
