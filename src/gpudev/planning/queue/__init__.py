"""Decisions about queues: planner, estimates, forecasts, delay and wait reasons, fair share."""
