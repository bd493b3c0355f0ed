"""Addons, personalization and tokens of sessions, as rows."""
