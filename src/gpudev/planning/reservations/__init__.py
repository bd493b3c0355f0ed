"""Decisions about single reservations: admission, readiness, expiry, requeue and notifications."""
