"""OpenID Connect: who an ID token is about, and whether to believe it."""
