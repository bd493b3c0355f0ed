"""The embedded system: PostgreSQL, the supervisor and its processes, `up` and `down` on one machine."""
