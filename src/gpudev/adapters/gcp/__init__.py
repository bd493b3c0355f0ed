"""The Cloud port on Google Cloud: managed instance groups, Compute disks and snapshots.

Nothing here imports Google's packages before a cloud is started: they take seconds and much memory.
"""
