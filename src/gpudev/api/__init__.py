"""The REST API: endpoints by subject, the request guard in front of them, and the app that connects both to ports."""
