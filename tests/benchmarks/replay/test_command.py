"""The verb ``replay``: what it prints, and how it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cache_engine.cache.cache import open_cache
from tests.benchmarks.running import run
from tests.cli import test_cli as cli

SMALL = ("--token-budget", "256", "--sequences", "16")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    lines = [f"{number / 4},{20 + number * 7 % 300},{1 + number * 3 % 40}" for number in range(60)]
    path.write_text("\n".join(("arrival_s,prompt_tokens,output_tokens", *lines, "")))
    return path


def replayed(*arguments: object, store: Path) -> Any:
    done = run("replay", *arguments, *SMALL, "--json", store=store)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_policy_is_played_from_every_start_and_load(trace: Path, place: Path) -> None:
    found = replayed(
        trace, "--load", "1", "--load", "4", "--start", "cold", "--start", "profile", "--start", "restart", store=place
    )
    policies = ["exact", "warm", "warm-best", "capture", "powers", "counts", "ours"]
    each = [("cold", name) for name in [*policies, "oracle"]]
    each += [("profile", "ours"), *(("restart", name) for name in policies)]
    assert [(row["load"], row["start"], row["policy"]) for row in found["rows"]] == [
        (load, *one) for load in (1.0, 4.0) for one in each
    ]
    assert (found["requests"], found["duration_seconds"]) == (60, 14.75)
    assert found["gpu_times"].startswith("GPU model ")
    assert found["gpu"] == "H100"
    assert "docs/performance.md" in found["compile_from"]
    assert found["compile_seconds"] == 0.161
    assert not place.exists(), "a replay makes no store"


def test_the_terminal_shows_tables_and_says_what_is_predicted(trace: Path, place: Path) -> None:
    done = run("replay", trace, *SMALL, "--policy", "ours", "--policy", "warm", store=place)
    assert done.returncode == 0, done.stderr
    assert "predicted by the GPU model" in done.stdout
    assert "load × 1, start: cold" in done.stdout
    rows = [line.split()[0] for line in done.stdout.splitlines() if line.startswith(("ours ", "warm ", "oracle "))]
    assert rows == ["warm", "ours", "oracle"]
    assert "serving requests" in done.stderr
    assert "serving requests" not in done.stdout


def test_compiles_take_what_they_took_in_the_store(trace: Path, compiled_store: Path) -> None:
    found = replayed(trace, "--policy", "warm", store=compiled_store)
    assert found["compile_from"].startswith("the median of ")
    assert found["compile_from"].endswith("in this store")
    (warm, _) = found["rows"]
    assert warm["compile_seconds"] == pytest.approx(warm["kernels"] * found["compile_seconds"])
    assert warm["stored_bytes"] == pytest.approx(warm["kernels"] * found["kernel_bytes"])


def test_a_trace_that_comes_along_is_named_without_a_path(place: Path) -> None:
    found = replayed("azure2023_code", "--policy", "warm", store=place)
    assert (found["requests"], found["trace"]) == (8_819, "azure2023_code")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("none.csv",), "none.csv cannot be read: No such file or directory"),
        (("azure2023_code", "--policy", "best"), "unknown policy 'best'; use one or more of: exact, warm"),
        (("azure2023_code", "--arch", "sm_75"), "no GPU of the evaluator runs sm_75"),
        (("azure2023_code", "--gpu", "A100"), "use one of: H100, H200"),
        (("azure2023_code", "--dtype", "fp64"), "fp64 are not calibrated; use one of: bf16, fp16"),
        (("azure2023_code", "--model", "Llama-9"), "unknown model 'Llama-9'"),
        (("azure2023_code", "--load", "0"), "0.0 is not in the range"),
        (("azure2023_code", "--load", "nan"), "'nan' is not a number"),
        (("azure2023_code", "--horizon", "nan"), "'nan' is not a number"),
        (("azure2023_code", "--sequences", "256"), "the limit of sequences is 256"),
        (("azure2023_code", "--start", "warm"), "'warm' is not one of"),
    ],
)
def test_what_cannot_be_replayed_is_wrong_usage(arguments: tuple[str, ...], said: str, place: Path) -> None:
    done = run("replay", *SMALL, *arguments, store=place)
    assert done.returncode == 2, done.stdout
    assert said in done.stderr
    assert done.stdout == ""


def test_text_of_a_hostile_trace_reaches_no_terminal(tmp_path: Path, place: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,\x1b]0;owned\x07,1\n")
    done = run("replay", path, *SMALL, store=place)
    assert done.returncode == 2
    assert "\x1b]" not in done.stderr
    assert "line 2: prompt_tokens is" in done.stderr


def test_the_stores_own_requests_are_played_against_each_size_and_order(place: Path) -> None:
    shape = ("--dtype", "fp32", "--arch", "sm_90")
    for n, times in ((48, 3), (96, 1)):
        for _ in range(times):
            assert cli.run("compile", 16, n, 80, *shape, store=place).returncode == 0
    done = run("replay", "journal", "--json", store=place)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["requests"], found["kernels"], found["predicted_kernels"], found["left_out"]) == (4, 2, 0, 0)
    assert [row["order"] for row in found["rows"][:3]] == ["lru", "lru2", "value"]
    assert found["rows"][-1]["size_bytes"] == found["needed_bytes"]
    assert found["rows"][-1]["hit_rate"] == 0.5
    assert found["rows"][-1]["again_seconds"] == 0

    assert cli.run("clean", "--yes", "--all", store=place).returncode == 0
    evicted = run("replay", "journal", "--size", "1GB", store=place)
    assert evicted.returncode == 0, evicted.stderr
    assert "4 since just now" in evicted.stdout
    assert "2 of the kernels are not in the store: their sizes and compile times are predicted" in evicted.stdout
    assert [line.split()[-2:] for line in evicted.stdout.splitlines() if " value " in line] == [["s", "0"]]


def test_options_of_a_trace_are_refused_with_the_stores_own_requests_and_the_reverse(trace: Path, place: Path) -> None:
    assert cli.run("compile", 16, 48, 80, "--dtype", "fp32", "--arch", "sm_90", store=place).returncode == 0
    refused = run("replay", "journal", "--load", "4", store=place)
    assert refused.returncode == 2
    assert "--load is for traces; replay journal takes --size" in refused.stderr
    refused = run("replay", trace, "--size", "1GB", store=place)
    assert refused.returncode == 2
    assert "python -m benchmarks replay journal --size 1GB" in refused.stderr
    refused = run("replay", "journal", "--size", "many", store=place)
    assert refused.returncode == 2
    assert run("replay", "journal", store=place / "none").returncode == 2


def test_a_store_that_nothing_was_asked_of_says_so(place: Path) -> None:
    open_cache(place).close()
    done = run("replay", "journal", store=place)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "no request has been counted yet\n"
