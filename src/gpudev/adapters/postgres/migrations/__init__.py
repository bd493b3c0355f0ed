"""Numbered SQL files, applied in order, never edited once released."""
