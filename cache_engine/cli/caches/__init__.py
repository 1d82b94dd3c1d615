"""The verbs of the caches of other frameworks; ``overview`` has the group."""
