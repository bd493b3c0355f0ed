"""Decisions about queues: the planner, estimates, forecasts and what is written of them."""
