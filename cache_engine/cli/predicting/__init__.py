"""The verbs that predict: ``evaluate``, ``evaluations``, ``calibrate``, ``demand`` and ``promote``."""
