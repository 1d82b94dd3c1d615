"""A verb of ``python -m benchmarks``."""

from cache_engine.cli.support import Verb


class Experiment(Verb):
    """A verb whose examples name this program."""

    program = "python -m benchmarks"
