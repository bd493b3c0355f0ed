"""The version of this package, apart from it: its modules need the number and not the package's names."""

__version__ = "0.1.0"
