"""The dashboard's rooms, one short script each."""
