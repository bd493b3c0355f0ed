"""Use cases of reservations: submit, cancel, extend, prioritise, stream, and stale requests."""
