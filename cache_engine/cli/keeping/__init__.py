"""The verbs that keep a store in order: upkeep, packs, and the log of decisions."""
