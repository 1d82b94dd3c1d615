"""A reader for each framework; ``registry`` lists them. No reader imports its framework."""
