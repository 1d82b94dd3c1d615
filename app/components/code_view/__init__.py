"""Panes of linked code: ``document`` is what the browser gets, ``component`` draws it, ``frontend`` is its program."""
