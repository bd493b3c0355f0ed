"""The edge of every HTTP service: client addresses, rate limits, error responses, audit log."""
