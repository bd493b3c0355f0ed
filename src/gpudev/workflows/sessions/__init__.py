"""Use cases of dev servers in use: addons, ssh tokens and Jupyter access."""
