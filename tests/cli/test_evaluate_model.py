"""``evaluate`` of whole models, as other programs and people use it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from cache_engine.assets import model_configs
from tests.cli.test_cli import document, run

CHIP = ("--chip", "SG2262")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_a_models_passes_add_up_to_their_rows(place: Path) -> None:
    asked = ("evaluate", "DeepSeek-V3", *CHIP, "--chip", "H100", "--m", "1,4096")
    found = document(*asked, store=place)
    assert [(one["chip"], one["tokens"]) for one in found["passes"]] == [
        ("SG2262", 1), ("H100", 1), ("SG2262", 4096), ("H100", 4096),
    ]  # fmt: skip
    for one in found["passes"]:
        rows = one["operations"]
        assert one["pass_us"] == pytest.approx(sum(row["pass_us"] for row in rows), rel=1e-12)
        assert (one["flops"], one["bytes"]) == tuple(sum(row[name] for row in rows) for name in ("flops", "bytes"))
        assert sum(row["share"] for row in rows) == pytest.approx(1)
        assert all(row["pass_us"] == row["latency_us"] * row["calls"] for row in rows)
    large = found["passes"][2]
    assert large["pass_us"] / 1e6 == pytest.approx(0.81, abs=0.01)
    assert [row["bound_by"] for row in found["passes"][0]["operations"]] == ["memory"] * 12
    assert document(*asked, store=place) == found
    assert document("evaluate", 128, 4096, 7168, "--batch", 256, *CHIP, store=place)["cached"]


def test_without_caching_a_model_is_evaluated_and_nothing_is_stored(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("evaluate", "Mixtral-8x7B", *CHIP, "--m", "1")
    stored = document(*asked, store=place)
    monkeypatch.setenv("GEMM_CACHE_ENABLE_CACHING", "0")
    assert document(*asked, store=place.with_name("other")) == stored
    assert not place.with_name("other").exists()


def test_the_csv_has_a_row_for_each_operation_and_no_total(place: Path) -> None:
    asked = ("evaluate", "Mixtral-8x7B", *CHIP, "--m", "1,100", "--mode", "decode", "--experts", "1")
    rows = list(csv.DictReader(io.StringIO(run(*asked, "--format", "csv", store=place).stdout)))
    passes = document(*asked, store=place)["passes"]
    assert len(rows) == sum(len(one["operations"]) for one in passes)
    assert sum(float(row["pass_us"]) for row in rows) == pytest.approx(sum(one["pass_us"] for one in passes))
    assert {row["chip"] for row in rows} == {"SG2262"}
    assert passes[1]["operations"][3]["groups"][0]["rows"] == passes[1]["operations"][3]["m"] > 25


def test_a_config_that_the_catalogue_lacks_is_evaluated(place: Path, tmp_path: Path) -> None:
    folder = tmp_path / "some model"
    folder.mkdir()
    path = folder / "config.json"
    config = json.loads(model_configs().read_bytes())["Qwen3-30B-A3B"]
    path.write_text(json.dumps({**config, "num_hidden_layers": 2}))
    asked = (*CHIP, "--m", "64", "--parallel", "tp=4", "--mode", "decode")
    found = document("evaluate", path, *asked, store=place)
    assert (found["model"], found["source"], found["tensor_parallel"]) == ("some model", str(path), 4)
    whole = document("evaluate", "Qwen3-30B-A3B", *asked, store=place)["passes"][0]
    assert found["passes"][0]["layers"] == whole["layers"]
    assert [row["calls"] for row in found["passes"][0]["operations"]] == [2, 2, 2, 2, 2, 1]


def test_people_read_a_table_with_totals(place: Path, tmp_path: Path) -> None:
    counts = tmp_path / "counts.csv"
    counts.write_text("tokens\n" + "5\n" * 7 + "40\n")
    asked = ("evaluate", "Mixtral-8x7B", *CHIP, "--m", "64", "--parallel", "tp=2,ep=2", "--experts", counts)
    text = run(*asked, store=place).stdout
    assert (
        "Mixtral-8x7B, prefill, 64 tokens, bf16, on SG2262 (one of 2 chips: tensor parallel 2, expert parallel 2)"
        in text
    )
    assert "9–64 × 28672 × 4096" in text
    last = text.splitlines()[-1].split()
    assert (last[0], last[2]) == ("pass", "100.0%")
    assert "one MoE layer" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("DeepSeek-V4",), "unknown model 'DeepSeek-V4'; use one of: DeepSeek-V3"),
        ((), "give M N K, or a MODEL"),
        (("4", "5"), "give all of M, N and K, or a MODEL alone"),
        (("4", "5", "6", "--parallel", "tp=2"), "--parallel goes with a MODEL"),
        (("Qwen3-8B", "--batch", "2"), "--batch goes with M, N and K"),
        (("x.json",), "x.json cannot be read: No such file"),
        (("Qwen3-8B", "--m", "0"), "m is 0"),
        (("Qwen3-8B", "--m", "1-20000"), "these are 20,000 passes"),
        (("Qwen3-8B", "--parallel", "tp=0"), "the tensor parallel size is 0"),
        (
            ("Qwen3-8B", "--parallel", "tp=7"),
            "num_attention_heads is 32, which the tensor parallel size 7 does not divide",
        ),
        (("Qwen3-8B", "--parallel", "ep=2"), "the expert parallel size 2 does not divide the number of chips"),
        (("Qwen3-8B", "--parallel", "8"), "'8' is no parallel size; write tp=N"),
        (("Qwen3-8B", "--parallel", "tp=2,ep"), "'' is not a whole number"),
        (("Qwen3-8B", "--mode", "both"), "unknown mode 'both'; use one of: prefill, decode, fused"),
        (("Qwen3-8B", "--mode", "decode", "--mode", "prefill"), "prefill and decode exclude each other"),
        (("Mixtral-8x7B", "--experts", "-1"), "-1 is not a size"),
        (("Mixtral-8x7B", "--experts", "nan"), "skew is nan"),
        (("Mixtral-8x7B", "--experts", "x.csv"), "x.csv cannot be read"),
        (("Qwen3-8B", "--json", "--format", "csv"), "--json and --format csv exclude each other"),
        (("Qwen3-8B", "--chip", "H100", "--no-search", "tile"), "H100 is a GPU"),
        (("Qwen3-8B", "--dtype", "fp7"), "unknown dtype 'fp7'"),
        (("4", "5", "6", "--chip", "H100"), "a single shape is evaluated on one chip"),
    ],
)
def test_what_cannot_be_right_is_refused(place: Path, arguments: tuple[str, ...], said: str) -> None:
    done = run("evaluate", *arguments, *CHIP, store=place)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_counts_that_cannot_be_right_are_refused(place: Path, tmp_path: Path) -> None:
    path = tmp_path / "counts.csv"
    for text, said in (
        ("expert\n1\n", "has no column tokens"),
        ("tokens\n1\nx\n", "line 3: tokens is 'x'"),
        ("tokens\n0\n0\n", "gives no expert any tokens"),
        ("tokens\n1\n2\n", "the counts are of 2 experts"),
        ("tokens\n" + "1\n" + "0\n" * 7, "a token goes to 2 experts, and only 1 get any"),
    ):
        path.write_text(text)
        done = run("evaluate", "Mixtral-8x7B", *CHIP, "--experts", path, store=place)
        assert done.returncode in (1, 2)
        assert said in done.stderr
