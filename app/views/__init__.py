"""Views of pages whose scripts would be too long: a compile farm, a fleet of stores, evaluations, kernels of others."""
