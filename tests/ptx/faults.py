"""What the hardware would not forgive."""

from __future__ import annotations


class Fault(Exception):
    """A kernel did something that is undefined, or that some order of its threads would make so."""
