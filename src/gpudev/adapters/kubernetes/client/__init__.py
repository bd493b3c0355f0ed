"""Client of the Kubernetes API server: credentials, transport, calls and their permissions (RBAC)."""
