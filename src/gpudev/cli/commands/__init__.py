"""The commands, by subject, each with its helpers."""
