"""Reservations: their statuses and transitions, their values, and how a detached command ends one."""
