"""The composition root: settings → adapters → what runs. Nothing below knows which adapters it got.

A module for each service, so that a process loads only what it runs.
"""
