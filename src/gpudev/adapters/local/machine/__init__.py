"""The machine: kernel calls, processes, GPUs as nodes, and isolation of dev servers."""
