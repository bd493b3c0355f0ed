"""Implementations of the ports: PostgreSQL, Kubernetes, one machine, clouds, other services."""
