"""The only package that uses a GPU. It is imported at its first use, and raises a clear error if there is no GPU."""
