"""Keeping a store in order: cleaning, checking, quarantine, packs, and who may do so."""
