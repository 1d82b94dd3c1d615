"""What there is in a store, and how it does: words, tables and figures."""
