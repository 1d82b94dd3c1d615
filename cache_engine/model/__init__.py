"""Values, nothing else: what is asked, what was chosen, what came of it, and the key of it all."""
