"""The operators' commands, a module for each subject."""
