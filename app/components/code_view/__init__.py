"""Panes of linked code: ``component`` draws them, ``frontend`` is its program."""
