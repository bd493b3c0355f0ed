"""The queue: published plans and estimates, planning records, and PGMQ messages, as rows."""
