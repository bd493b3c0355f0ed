"""Prometheus metrics of every service.

Each metric is declared here, once. Nothing here decides anything, and no decider imports it: services and adapters
record what happened, and the /metrics endpoint collects it. Labels are few and bounded: types, kinds and states, never
users or ids.
"""
