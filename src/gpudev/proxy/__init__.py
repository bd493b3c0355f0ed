"""The proxy: ssh and Jupyter through HTTPS to dev servers."""
