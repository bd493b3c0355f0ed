"""Reservations: statuses and transitions, values, personalization, and how a detached command ends one."""
