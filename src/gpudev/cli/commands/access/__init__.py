"""Logging in and out: the commands and the login methods."""
