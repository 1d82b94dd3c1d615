"""What to evict, decided purely."""
