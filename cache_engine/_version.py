"""The version, in the one place that the build and the records read it from."""

__version__ = "0.2.0"
