"""The client: what a person types. It speaks the wire models over HTTP and knows nothing of how a server works."""
