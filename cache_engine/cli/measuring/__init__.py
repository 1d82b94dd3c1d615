"""The verbs of what was measured: timings, tuning, and toolchains compared."""
