"""The client: what a person types. It speaks the wire models over HTTP and knows nothing of how a server works."""

COMPLETION_VARIABLE = "_GPU_DEV_COMPLETE"
"""Set by a shell that asks for completions."""
