"""What the Compile page asks, and what came of it."""
