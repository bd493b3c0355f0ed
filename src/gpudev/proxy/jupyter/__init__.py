"""Jupyter for browsers: header rules, the guard, HTTP requests and WebSockets."""
