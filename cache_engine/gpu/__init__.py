"""The only package that uses a GPU. Everything here is imported lazily and reports clearly when there is no GPU."""
