"""Lookups, publishing and opening a store, compared with other caches."""
