"""Plain values: the problem, the config chosen for it, the resulting artifact and record, and the key."""
