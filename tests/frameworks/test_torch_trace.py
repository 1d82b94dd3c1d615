"""Traces of torch.compile: lookups of its caches, as torch 2.13 logged them, and logs that are damaged or hostile."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cache_engine.frameworks import torch_compile
from cache_engine.frameworks.comparison import differences
from cache_engine.frameworks.folder import MOST_TEXT_BYTES
from cache_engine.frameworks.torch_compile import MOST_LOG_BYTES, Lookup, lookups
from cache_engine.frameworks.values import Fault, ScanFinding
from tests.frameworks.fixtures import unpack

LOG = "dedicated_log_torch_trace_1234.log"
HEADER = 'V1127 13:39:28.309000 21 torch/_inductor/compile_fx.py:1] {"artifact": {"name": "fx_graph_cache_miss"}, '
RECORD = HEADER + '"frame_id": 0}\n'


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return unpack("torch_trace", tmp_path) / "trace"


def read(trace: Path) -> tuple[list[Lookup], list[ScanFinding]]:
    found = list(lookups(trace))
    return [each for each in found if isinstance(each, Lookup)], [
        each for each in found if isinstance(each, ScanFinding)
    ]


def test_the_lookups_are_those_that_torch_logged(trace: Path) -> None:
    found, findings = read(trace)
    assert findings == []
    assert [(each.cache, each.result, each.key[:13]) for each in found] == [
        ("aotautograd", "miss", "a2ibnypcxdi4h"), ("fx_graph", "miss", "fotsad5mkxelu"),
        ("aotautograd", "miss", "abpghv2ntis6p"), ("fx_graph", "miss", "fb2lpveacwwtc"),
        ("aotautograd", "miss", "aqq2lejifxpmj"), ("fx_graph", "hit", "fotsad5mkxelu"),
        ("aotautograd", "bypass", ""), ("fx_graph", "miss", "fd3h3pvf2s2co"),
    ]  # fmt: skip
    assert {(each.name, each.compile_id) for each in found} == {("gelu in compiled.py", "0/0")}
    assert found[6].reason == "Cannot cache a graph with freezing enabled"


def test_the_inputs_of_two_keys_name_what_was_changed(trace: Path) -> None:
    found, _ = read(trace)
    (difference,) = differences(found[1].factors, found[3].factors)
    assert (difference.group, difference.name, difference.a, difference.b) == (
        "config", "epilogue_fusion", "True", "False",
    )  # fmt: skip
    assert differences(found[1].factors, found[5].factors) == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (RECORD + "\t{not json\n", "not JSON"),
        (RECORD, "not JSON"),  # killed before the second line was written
        (RECORD + '\t["a"]\n', "not a JSON object"),
        (RECORD + "\t" + "[" * 100_000 + "\n", "not JSON"),
        (HEADER + "x" * 200 + "\n\t{}\n", "not JSON"),
        (RECORD + '\t{"key": "' + "k" * MOST_TEXT_BYTES + '"}\n', "at most 4,194,304 are read"),
    ],
)
def test_a_damaged_record_is_a_finding_and_the_others_are_read(text: str, said: str, trace: Path) -> None:
    (trace / LOG).write_text(text + (trace / LOG).read_text())
    found, (finding,) = read(trace)
    assert (finding.id, said in finding.detail) == (LOG, True), finding
    assert len(found) == 8


@pytest.mark.parametrize("value", [None, 1, "x", {"a": []}, [1, None, "no component"], ["[" * 1000]])
def test_values_of_any_type_are_taken_as_unknown(value: object, trace: Path) -> None:
    document = {"key": value, "components": value, "cache_bypass_reason": value}
    (trace / LOG).write_text(RECORD + "\t" + json.dumps(document) + "\n")
    (found,), findings = read(trace)
    assert (findings, found.factors.factors) == ([], ())


def test_a_hostile_directory(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links, pipes, other files, a log that is too large, and too many lookups."""
    (trace / "notes.log").write_text(RECORD)
    os.mkfifo(trace / "dedicated_log_torch_trace_2.log")
    os.symlink("/etc/passwd", trace / "dedicated_log_torch_trace_3.log")
    (trace / "dedicated_log_torch_trace_4\n.log").write_bytes(b"\xff\0" * 1000 + b"\n" + RECORD.encode() + b"\t{}\n")
    with (trace / "dedicated_log_torch_trace_5.log").open("wb") as log:
        log.truncate(MOST_LOG_BYTES + 1)
    found, findings = read(trace)
    assert len(found) == 8
    assert [each.fault for each in findings] == [Fault.NOT_A_FILE, Fault.NOT_A_FILE, Fault.TOO_LARGE]
    monkeypatch.setattr(torch_compile, "MOST_LOOKUPS", 3)
    found, (finding,) = read(trace)
    assert (len(found), finding.fault) == (3, Fault.TOO_MANY)


@pytest.mark.parametrize(
    "literal", ["\t\t\n", RECORD, 'V1234 {"str', '{"dynamo_start', "V1127 x\n", "V1127 " + "y" * 290]
)
def test_repeats_of_its_own_literals_are_read_in_linear_time(literal: str, trace: Path) -> None:
    """A pattern that goes back would not end within the test's time limit."""
    (trace / LOG).write_text(literal * (2_000_000 // len(literal)))
    found, _ = read(trace)
    assert len(found) <= torch_compile.MOST_LOOKUPS
