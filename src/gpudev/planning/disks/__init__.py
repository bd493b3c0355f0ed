"""Decisions about disks: which requests are accepted, the steps of operations, retention and reconciliation."""
