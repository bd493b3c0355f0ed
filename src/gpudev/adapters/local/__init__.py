"""This machine as cluster and cloud: dev servers are processes, volumes are folders."""
