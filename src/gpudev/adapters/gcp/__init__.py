"""Google Cloud: managed instance groups, Compute disks and snapshots.

Google's packages are imported only when a cloud is started, because they take seconds and much memory.
"""
