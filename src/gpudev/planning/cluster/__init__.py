"""Decisions about nodes and GPU types: availability and orphaned dev servers."""
