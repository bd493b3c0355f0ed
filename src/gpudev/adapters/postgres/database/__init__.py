"""Connections, leases, LISTEN, migrations, database roles, and queries over the whole database."""
