"""Entries on disk and in memory: paths, encoding, publishing, locks, the journal, packs and signatures."""
