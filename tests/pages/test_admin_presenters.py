"""The Admin page's words and figures, with hostile input."""

from __future__ import annotations

from datetime import UTC

import pytest

from app.presenters import admin, cleaning
from app.presenters.columns import rows_of
from cache_engine.store.codec import encode_blob
from cache_engine.upkeep.findings import Finding, FindingKind
from cache_engine.upkeep.integrity import RepairAct
from cache_engine.upkeep.packs import Incoming
from cache_engine.upkeep.plan import EXPIRED, TOO_MANY, Victim
from tests.helpers import make_entry

KEY = "a" * 64


def test_only_whole_keys_of_an_address_are_taken() -> None:
    assert cleaning.asked_keys(f"{KEY},{KEY.upper()}, ,") == (frozenset({KEY}), 0)
    assert cleaning.asked_keys(f"{KEY[:-1]},../../etc,{KEY}") == (frozenset({KEY}), 2)
    assert cleaning.asked_keys("") == (frozenset(), 0)


def test_single_kernels_are_the_rule_where_a_link_names_some() -> None:
    assert cleaning.rule_in({"keys": KEY}, cleaning.RULES) == "keys"
    assert cleaning.rule_in({"keys": "nonsense"}, cleaning.RULES) == "settings"
    assert cleaning.rule_in({"keys": KEY, "rule": "stale"}, cleaning.RULES) == "stale"
    assert cleaning.rule_in({"keys": KEY, "rule": "stale"}, cleaning.OTHER_RULES) == "expired"


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("some.gemmpack", "some.gemmpack"),
        ("../../etc/passwd", "passwd.gemmpack"),
        ("..\\..\\evil.gemmpack", "evil.gemmpack"),
        ("\x1b[31m\n**x**.gemmpack", "31m-x.gemmpack"),
        ("", "uploaded.gemmpack"),
        (".gemmpack", "gemmpack.gemmpack"),
        ("ü" * 300, "uploaded.gemmpack"),
        ("a" * 300, "a" * 80 + ".gemmpack"),
    ],
)
def test_a_name_that_was_sent_becomes_one_of_ours(name: str, ours: str) -> None:
    assert admin.safe_name(name) == ours


def test_reasons_and_repairs_are_shown_in_a_sentence() -> None:
    victims = [Victim("a", 1, 0, EXPIRED), Victim("b", 1, 0, TOO_MANY), Victim("c", 1, 0, TOO_MANY)]
    assert admin.reason_line(victims) == "too many entries (2), expired (1)"
    acts = [
        RepairAct(Finding(FindingKind.TRUNCATED, "metadata/aa/x", KEY, "?"), "quarantine", (("r", 1024), ("b", 1024))),
        RepairAct(Finding(FindingKind.STALE_TEMPORARY, "temp/x", "", "?"), "delete", (("temp/x", 3),)),
        RepairAct(Finding(FindingKind.CORRUPT_TIMINGS, "timings/x", "", "?"), "copy", (("timings/x", 5),)),
        RepairAct(Finding(FindingKind.UNREADABLE, "metadata/aa/y", "", "?"), "leave", ()),
    ]
    assert admin.repair_line(acts).split(", ") == [
        "2 files (2.0 KiB) moved to quarantine", "1 file (5 B) copied to quarantine", "1 file (3 B) deleted",
        "1 finding: no action",
    ]  # fmt: skip
    assert [row["File"] for row in rows_of(admin.repair_files(acts), admin.REPAIRED_FILES, UTC)] == [
        "r",
        "b",
        "temp/x",
        "timings/x",
    ]


def test_only_entries_to_import_are_summed() -> None:
    key, artifact, describe = make_entry()
    record = describe(encode_blob(key, artifact, compress=True)[1])
    incoming = [
        Incoming(key, 100, record),
        Incoming(KEY, 10, record, present=True),
        Incoming(KEY, 1, None, refused="damaged"),
    ]
    assert admin.incoming_sums(incoming) == [{"arch": "sm_80", "entries": 1, "stored_bytes": 100}]
    assert [row["On import"] for row in rows_of(incoming, admin.INCOMING, UTC)] == [
        "import",
        "skip (already present)",
        "reject: damaged",
    ]
