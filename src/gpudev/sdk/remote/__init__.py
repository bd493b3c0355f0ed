"""Reaching a dev server with the system's own ssh: keys, route, command lines, uploads."""
