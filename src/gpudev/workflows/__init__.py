"""Use cases: gather facts, ask planning for a decision, write it."""
