"""Results in files that other tools can read, with an append-only log for each."""
