"""The commands by subject, with their helpers; modules next to the folders are shared by several subjects."""
