"""Programs of several versions on one store, each with formats of its own: none loses or spoils another's work."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from cache_engine.cache.cache import open_cache
from cache_engine.index import sync
from cache_engine.index.sync import Index
from cache_engine.model.gemm import DType, GemmProblem
from cache_engine.store import codec
from cache_engine.store.journal import read_journal
from cache_engine.upkeep import integrity
from cache_engine.upkeep.findings import FindingKind
from cache_engine.upkeep.plan import Limits

PROBLEM = GemmProblem(64, 48, 80, dtype=DType.FP32, arch="sm_90")


def _run(version: int, store: Path, *widths: int) -> tuple[list[tuple[str, str, str]], list[str], list[Any]]:
    """A program of a version, with formats of records, blobs and the index of its own; the store's own stays.

    Returns the tier, why it was not stored, and the key of each kernel; what a search lists; and what is damaged.
    """
    got: list[tuple[str, str, str]] = []
    with (
        patch.object(codec, "FORMAT", version),
        patch.object(codec, "_FORMATS", (version,)),
        patch.object(sync, "SCHEMA_VERSION", f"of version {version}"),
        open_cache(store) as cache,
    ):
        for width in widths:
            kernel = cache.get_or_compile(replace(PROBLEM, n=width))
            got.append((kernel.tier, str(kernel.unpublished or ""), str(kernel.key)))
        listed = sorted(row["key"] for row in cache.search("sm_90"))
        return got, listed, [finding.kind for finding in cache.admin.verify() if finding.is_damage]


def test_older_this_and_newer_share_a_store(tmp_path: Path) -> None:
    store = tmp_path / "store"
    for version, width in ((0, 16), (2, 32), (3, 48)):
        made, *_ = _run(version, store, width)
        assert [(tier, unpublished) for tier, unpublished, _ in made] == [("compiled", "")]
    for version, own in ((3, 48), (0, 16), (2, 32)):
        again, listed, damage = _run(version, store, 16, 32, 48)
        mine = (16, 32, 48).index(own)
        for number, (tier, unpublished, _) in enumerate(again):
            assert tier == ("disk" if number == mine else "compiled")
            assert bool(unpublished) == (number != mine), "the entry of another version was replaced"
        assert listed == [again[mine][2]]
        assert damage == []
    with open_cache(store) as cache:
        cache.admin.clean(Limits(everything=True))
        assert [finding.kind for finding in cache.admin.verify()] == [FindingKind.UNKNOWN_FORMAT] * 2
    for version, width in ((0, 16), (3, 48)):
        assert _run(version, store, width)[0][0][0] == "disk"


def test_a_clock_a_year_off_breaks_nothing(tmp_path: Path) -> None:
    """Used now, in a year and a year ago, in that order: sums are right, and nothing fresh is evicted."""
    year, really = 365 * 86_400.0, time.time
    for number, shift in enumerate((0.0, year, -year, 0.0)):
        with patch.object(time, "time", lambda shift=shift: really() + shift), open_cache(tmp_path / "store") as cache:
            kernel = cache.get_or_compile(PROBLEM)
            assert kernel.tier == ("disk" if number else "compiled")
            assert cache.admin.verify() == []
            cache.search("sm_90")
            if shift <= 0:
                assert cache.admin.clean(dry_run=True).victims == ()
    with open_cache(tmp_path / "store") as cache:
        totals = cache.stats().totals
        assert (totals.hits, totals.misses, totals.compiles) == ({"disk": 3}, 1, 1)
        assert cache.admin.clean().victims == (), "a use in the future counts as now"
        (usage,) = read_journal(cache.layout.journal).usage
        assert usage.last_used_at > usage.previous_used_at > 0
        assert list(integrity.check(cache.store)) == []
        index = Index(cache.store)
        index.sync()
