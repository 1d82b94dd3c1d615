"""Names of files: each is parsed back to what it was made of, and no other name is."""

from __future__ import annotations

from pathlib import Path

import pytest

from cache_engine.model.key import CacheKey
from cache_engine.store.layout import (
    StoreLayout,
    fingerprint_of_results_name,
    is_journal_name,
    is_lock_name,
    job_of_name,
    key_of_blob_name,
    key_of_record_name,
    original_of_quarantined,
)

LAYOUT = StoreLayout(Path("/store"))
KEY = CacheKey("ab" * 32)
DIGEST = "0123456789abcdef" * 4
FINGERPRINT = "0f" * 16
RESULTS = f"gemm_cache_{FINGERPRINT}"


def test_a_path_is_where_older_and_newer_programs_look_for_it() -> None:
    timings = LAYOUT.for_timings()
    for path, expected in (
        (LAYOUT.record_path(KEY), f"metadata/ab/{KEY}.json"),
        (LAYOUT.blob_path(KEY, DIGEST), f"kernels/ab/{KEY}-0123456789abcdef"),
        (LAYOUT.key_lock(KEY), "locks/key-aba.lock"),
        (LAYOUT.results_file(FINGERPRINT), f"evaluations/{RESULTS}.json"),
        (timings.results_file(FINGERPRINT), f"timings/{RESULTS}.json"),
        (LAYOUT.compressed_results_file(FINGERPRINT), f"evaluations/{RESULTS}.json.zst"),
        (LAYOUT.results_log(FINGERPRINT, 3), f"evaluations/{RESULTS}.3.log"),
        (LAYOUT.results_lock(FINGERPRINT), "locks/results-0f.lock"),
        (LAYOUT.quarantined("core", -5), "quarantine/0000000000000005-core"),
    ):
        assert str(path) == f"/store/{expected}"


def test_the_names_of_an_entry_give_its_key() -> None:
    assert key_of_record_name(Path(LAYOUT.record_path(KEY)).name, "ab") == KEY
    assert key_of_blob_name(Path(LAYOUT.blob_path(KEY, DIGEST)).name, "ab") == KEY


@pytest.mark.parametrize(
    "name", ["", KEY, f"{KEY}.json.json", f"{KEY}.jsonl", f"{KEY}.", "x.json", f"{KEY[1:]}.json", f"{KEY.upper()}.json"]
)
def test_a_name_that_is_not_a_records_gives_no_key(name: str) -> None:
    assert key_of_record_name(name, "ab") is None
    assert key_of_record_name(f"{KEY}.json", "ba") is None


@pytest.mark.parametrize("name", ["", KEY, f"{KEY}-", f"{KEY}-0123456789abcde", f"x-{DIGEST[:16]}", DIGEST[:16]])
def test_a_name_that_is_not_a_blobs_gives_no_key(name: str) -> None:
    assert key_of_blob_name(name, "ab") is None
    assert key_of_blob_name(f"{KEY}-{DIGEST[:16]}", "ba") is None


@pytest.mark.parametrize(
    ("name", "original", "at"),
    [
        (LAYOUT.quarantined("a-b.json", 1_700_000_000 * 10**9).name, "a-b.json", 1_700_000_000.0),
        (f"{RESULTS}-{1_700_000_000 * 10**9:016x}.json", f"{RESULTS}.json", 1_700_000_000.0),
        (f"{RESULTS}-{1_700_000_000 * 10**9:x}.json.zst", f"{RESULTS}.json.zst", 1_700_000_000.0),
        (f"{RESULTS}.json", f"{RESULTS}.json", None),
        ("core.1234", "core.1234", None),
    ],
)
def test_a_name_in_quarantine_gives_the_original_and_the_time(name: str, original: str, at: float | None) -> None:
    """The second and third are those of version 0.1.0."""
    assert original_of_quarantined(name) == (original, at)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (f"{RESULTS}.json", (FINGERPRINT, None)),
        (f"{RESULTS}.json.zst", (FINGERPRINT, None)),
        (f"{RESULTS}.12.log", (FINGERPRINT, 12)),
        (f"{RESULTS}.log", None),
        ("gemm_cache_0f.json", None),
    ],
)
def test_a_results_name_gives_fingerprint_and_generation(name: str, expected: tuple[str, int | None] | None) -> None:
    assert fingerprint_of_results_name(name) == expected


def test_names_that_belong_in_a_folder_are_known() -> None:
    assert [is_lock_name(name) for name in ("key-aba.lock", "lock", "a.lock.bak")] == [True, False, False]
    names = ("snapshot.json", "1-2-3.jsonl", "1-2-3.folding", "other.json", "jsonl")
    assert [is_journal_name(name) for name in names] == [True, True, True, False, False]
    jobs = ("18c-5f.json", "18c-5f.log", "18c-5f.cancel", "18c-5f.tmp", "18c.json")
    assert [job_of_name(name) for name in jobs] == ["18c-5f", "18c-5f", "18c-5f", None, None]


def test_a_digest_that_is_not_hexadecimal_names_no_blob() -> None:
    for digest in ("g" * 16, "0123456789ABCDEF", "0123456789abcde ", "0123456789abcde\n", "٠" * 16):
        assert key_of_blob_name(f"{KEY}-{digest}", "ab") is None
    assert key_of_blob_name(f"{KEY}-0123456789abcdef", "ab") == KEY
