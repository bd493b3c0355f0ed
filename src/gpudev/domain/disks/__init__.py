"""Disks: their names, contents, snapshots, volumes and operations."""
