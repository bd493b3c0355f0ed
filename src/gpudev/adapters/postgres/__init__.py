"""PostgreSQL: all stores, and the message queue (PGMQ)."""
