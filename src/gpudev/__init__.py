"""gpu-dev: shared GPU developer servers."""

__version__ = "0.1.0"
