"""The Kubernetes API server's client: credentials, transport, calls, and the permissions (RBAC) they need. It decides nothing."""
