"""From cached records to the state of nodes and dev servers, and what only their pods can report."""
