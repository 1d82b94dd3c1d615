"""Results in files that other tools can read, each with append-only logs."""
