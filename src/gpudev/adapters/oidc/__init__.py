"""OpenID Connect: verification of ID tokens, and the person that a token names."""
