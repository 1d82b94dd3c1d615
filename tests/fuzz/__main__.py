"""Fuzzes one target with atheris: ``python -m tests.fuzz TARGET [SECONDS]``, or ``python -m tests.fuzz TARGET FILE``.

The second form reads one input again, such as the ``crash-…`` that a run has left. The first needs the extra ``fuzz``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

_MOST_MEMORY_MB = 1024


def main(name: str, what: str = "60") -> None:
    """Fuzzes, or reads one input."""
    folder = Path(tempfile.mkdtemp(prefix="gemm-cache-fuzz-"))
    if not what.isdigit():
        from tests.fuzz.targets import TARGETS

        TARGETS[name].read(Path(what).read_bytes(), folder)
        return
    import atheris

    with atheris.instrument_imports(include=["cache_engine"]):  # modules imported here report which branches they take
        from tests.fuzz.targets import TARGETS
    target, corpus = TARGETS[name], folder / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(target.seeds(folder)):
        (corpus / str(number)).write_bytes(seed)
    limits = [f"-max_total_time={what}", f"-rss_limit_mb={_MOST_MEMORY_MB}", "-timeout=20", "-max_len=65536"]
    atheris.Setup([sys.argv[0], *limits, str(corpus)], lambda data: target.read(data, folder))
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
