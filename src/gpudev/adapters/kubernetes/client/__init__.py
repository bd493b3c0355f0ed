"""Client of the Kubernetes API server: credentials, transport, calls, RBAC rules."""
