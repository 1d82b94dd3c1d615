"""What a fleet asks of a shared store: ``costs`` measured on this machine, and ``events`` of many machines."""
