"""The composition root: builds services from settings and adapters. Nothing else knows which adapters are used.

One module per service, so that a process imports only what it runs.
"""
