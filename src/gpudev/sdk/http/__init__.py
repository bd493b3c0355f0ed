"""The HTTP client: transport, endpoints, retries and event streams, as I/O-free routines."""
