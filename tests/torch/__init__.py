"""``cache_engine.torch`` with PyTorch for the CPU, whose tensors stand for a GPU's memory. ``make torch`` runs them."""
