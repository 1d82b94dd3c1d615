"""Programs of several versions on one store, each with formats of its own: none loses or spoils another's work."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from cache_engine.cache.cache import open_cache
from cache_engine.index.sync import Mirror
from cache_engine.model.gemm import DType, GemmProblem
from cache_engine.store.journal import read_journal
from cache_engine.upkeep import integrity
from cache_engine.upkeep.findings import Kind
from cache_engine.upkeep.plan import Limits

_PROGRAM = """
import json, sys
version, store, *widths = int(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])
from cache_engine.store import codec
from cache_engine.index import sync
codec.FORMAT = version  # of records and blobs; the store's own stays
sync.SCHEMA_VERSION = f"of version {version}"
from cache_engine import GemmProblem, open_cache
got = []
with open_cache(store) as cache:
    for width in widths:
        kernel = cache.get_or_compile(GemmProblem(64, width, 80, dtype="fp32", arch="sm_90"))
        got.append([kernel.tier, str(kernel.unpublished or ""), kernel.key])
    listed = sorted(row["key"] for row in cache.search("sm_90"))
    notes = [finding.kind for finding in cache.verify() if finding.is_damage]
print(json.dumps({"got": got, "listed": listed, "damage": notes}))
"""


def _run(version: int, store: Path, *widths: int) -> Any:
    command = [sys.executable, "-c", _PROGRAM, *map(str, (version, store, *widths))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_older_this_and_newer_share_a_store(tmp_path: Path) -> None:
    store = tmp_path / "store"
    for version, width in ((0, 16), (1, 32), (2, 48)):
        made = _run(version, store, width)
        assert [tier for tier, *_ in made["got"]] == ["compiled"]
        assert made["got"][0][1] == ""
    for version, own in ((2, 48), (0, 16), (1, 32)):
        again = _run(version, store, 16, 32, 48)
        mine = (16, 32, 48).index(own)
        for number, (tier, unpublished, _) in enumerate(again["got"]):
            assert tier == ("disk" if number == mine else "compiled")
            assert bool(unpublished) == (number != mine), "the entry of another version was replaced"
        assert again["listed"] == [again["got"][mine][2]]
        assert again["damage"] == []
    with open_cache(store) as cache:
        cache.clean(Limits(everything=True))
        assert [finding.kind for finding in cache.verify()] == [Kind.UNKNOWN_FORMAT] * 2
    for version, width in ((0, 16), (2, 48)):
        assert _run(version, store, width)["got"][0][0] == "disk"


def test_a_clock_a_year_off_breaks_nothing(tmp_path: Path, monkeypatch: object) -> None:
    """Used now, in a year and a year ago, in that order: sums are right, and nothing fresh is evicted."""
    import time
    from unittest.mock import patch

    problem = GemmProblem(64, 48, 80, dtype=DType.FP32, arch="sm_90")
    year, really = 365 * 86_400.0, time.time
    for number, shift in enumerate((0.0, year, -year, 0.0)):
        with patch.object(time, "time", lambda shift=shift: really() + shift), open_cache(tmp_path / "store") as cache:
            kernel = cache.get_or_compile(problem)
            assert kernel.tier == ("disk" if number else "compiled")
            assert cache.verify() == []
            cache.search("sm_90")
            if shift <= 0:
                assert cache.clean(dry_run=True).victims == ()
    with open_cache(tmp_path / "store") as cache:
        totals = cache.stats().totals
        assert (totals.hits, totals.misses, totals.compiles) == ({"disk": 3}, 1, 1)
        assert cache.clean().victims == (), "a use in the future counts as now"
        (usage,) = read_journal(cache.layout.journal).usage
        assert usage.last_used_at > usage.previous_used_at > 0
        assert list(integrity.check(cache.store)) == []
        mirror = Mirror(cache.store)
        mirror.sync()
