"""A kernel at a glance: its speed, who asks for it, and its life in the cache."""

from __future__ import annotations

from datetime import UTC

from app.presenters.kernel import demand_words, life_words, speed_words
from app.presenters.speed import predictions
from cache_engine.model.shapes import Shape
from cache_engine.usage.demand import Ledger
from tests.pages.opening import a_record

HOUR_S = 3600.0


def test_demand_is_that_of_the_kernels_shape_and_says_how_much_of_it_the_kernel_serves() -> None:
    record, ledger = a_record(), Ledger(7 * 24 * HOUR_S)
    shape = Shape.of(record.problem.on(record.arch))
    assert (demand_words(record, ledger, lambda *_: ("", "")))["Requests"] == "none lately"
    for m, count in ((1, 60), (16, 30), (64, 10)):
        ledger.add(shape, m, count, at=HOUR_S)
    ledger.add(Shape(n=8, k=8, arch="sm_90"), 1, 100, at=HOUR_S)
    said = demand_words(record, ledger, lambda _, m: ("", record.key if m < 64 else "another"))
    assert said["Of all requests"] == "50.0%"
    assert [(name, value) for name, value in said.items() if name.startswith("With m")] == [
        ("With m = 1", "60.0%"),
        ("With m = 16", "30.0%"),
        ("With m = 64", "10.0%"),
    ]
    assert said["Served by this kernel"] == "90.0%"


def test_hits_of_memory_save_no_compile_time() -> None:
    record = a_record()
    row = {"hits": 12, "memory_hits": 9, "pack_hits": 0, "disk_hits": 3, "remote_hits": 0, "last_used_at": 40.0}
    said = life_words(record, row, is_pinned=True, zone=UTC, now=100.0)
    assert (said["Hits"], said["By tier"]) == ("12", "memory 9, disk 3")
    saved = life_words(record, row | {"hits": 9, "disk_hits": 0}, is_pinned=False, zone=UTC, now=100.0)
    assert said["Compile time saved"] != saved["Compile time saved"] == "–"
    assert (said["Pinned"], saved["Pinned"]) == ("yes: it is not evicted", "no")
    assert "Hits" not in (life_words(record, None, is_pinned=False, zone=UTC, now=100.0))


def test_the_last_measurement_and_the_predictions() -> None:
    record = a_record()
    timing = {"m": 64, "device": "a GPU", "median_us": 1234.5, "tflops": 55.0, "speed_ratio": 0.97, "verified": True}
    said = speed_words([timing], predictions(record)[0])
    assert said["Measured, m = 64"] == "1.234 ms, 55.0 TFLOP/s"
    assert (said["On"], said["Of cuBLAS"]) == ("a GPU", "97.0%")
    assert "predicted" in " ".join(said[name] for name in said if name.startswith("cuBLAS-like kernel on ")), (
        "it is not this kernel's own time"
    )
    wrong = speed_words([timing | {"verified": False}], [])
    assert wrong["Measured, m = 64"] == "WRONG RESULT"
