"""Reservations, their guarded writes, moves and notifications, as rows."""
