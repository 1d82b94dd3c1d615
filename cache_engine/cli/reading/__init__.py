"""Verbs that say what a store or a kernel is like, to read or to send; they change nothing."""
