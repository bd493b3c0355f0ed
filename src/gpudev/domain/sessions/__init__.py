"""Sessions on dev servers: grants, addons and personalization."""
