"""The command line. It talks to the API with the wire models and knows nothing of the server's inside."""

COMPLETION_VARIABLE = "_GPU_DEV_COMPLETE"
"""Set by a shell that asks for completions."""
