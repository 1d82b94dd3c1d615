"""Entries on disk and in memory: paths, bytes, publishing, locks, journal."""
