"""The machine itself: kernel calls, processes, GPUs as nodes, and how far dev servers can be isolated."""
