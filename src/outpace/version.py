"""The package's version, where every room may ask for it."""

__version__ = "0.1.0"
