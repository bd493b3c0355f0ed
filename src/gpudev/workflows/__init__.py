"""Use cases: load facts, let `planning` decide, write the result."""
