"""State of nodes and dev servers, from cached records and from reports of their pods."""
