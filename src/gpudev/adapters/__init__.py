"""Adapters: the ports on PostgreSQL, Kubernetes, one machine, clouds and other services."""
