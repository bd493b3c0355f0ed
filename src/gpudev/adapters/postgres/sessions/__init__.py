"""Addons and tokens of sessions, as rows."""
