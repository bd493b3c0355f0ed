"""Logging in with an OpenID Connect provider: in a browser, with a code on another device, and again by itself."""
