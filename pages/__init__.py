"""The dashboard's pages, one short script each."""
