"""A source for each framework; ``registry`` has the list. None of them imports its framework."""
