"""Volumes and snapshots as folders, and the copying, walking and removing of users' trees."""
