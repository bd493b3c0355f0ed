"""Talking to the API: transport, endpoints, retries and event streams, as I/O-free routines."""
