"""The command line, written on the SDK. It knows the wire models and nothing else of the server."""

COMPLETION_VARIABLE = "_GPU_DEV_COMPLETE"
"""Set by a shell that requests completions."""
