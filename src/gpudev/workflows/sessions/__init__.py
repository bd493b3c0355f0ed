"""Use cases of running dev servers: addons, SSH tokens and Jupyter access."""
