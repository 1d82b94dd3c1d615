"""Panes with the linked texts of a kernel's code: ``component`` draws them, ``frontend`` is the browser's program."""
