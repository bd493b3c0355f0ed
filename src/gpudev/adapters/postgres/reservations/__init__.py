"""Reservations, their personalizations, guarded writes, moves and notifications, as rows."""
