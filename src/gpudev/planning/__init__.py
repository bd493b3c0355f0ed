"""Decisions: facts and the time in, values out. Nothing here awaits, reads a clock or knows a database."""
