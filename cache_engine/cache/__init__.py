"""Gets kernels: makes a problem's key, looks it up in the tiers, and compiles and stores the kernel after a miss."""
