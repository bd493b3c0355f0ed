"""Stores on PostgreSQL, and the message queue (PGMQ)."""
