"""Sessions on dev servers: grants and addons."""
