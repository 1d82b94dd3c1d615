"""What a page shows, where its script would be too long: a compile farm, a fleet of stores, kernels of others."""
