"""The verbs that predict: ``evaluate``, ``evaluations`` and ``replay``."""
