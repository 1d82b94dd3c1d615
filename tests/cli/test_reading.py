"""``toolchains``, ``coverage`` and ``jobs``: what the pages show, on the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from cache_engine.batch.jobs import Jobs
from cache_engine.cli.main import commands
from tests.batch.test_jobs import jobs
from tests.cli.test_cli import SHAPE, document, run
from tests.helpers import make_store
from tests.remote.waiting import until

__all__ = ["jobs"]  # a fixture

ROOT = Path(__file__).parent.parent.parent


def test_toolchains_say_what_compiled_the_kernels_and_whether_they_can_be_hit(compiled_store: Path) -> None:
    records = list(make_store(compiled_store).records())
    found = document("stats", "--by", "toolchain", store=compiled_store)["rows"]
    assert sum(row["entries"] for row in found) == len(records)
    assert {row["compiler"] for row in found} == {record.compiler for record in records}
    assert [row["state"] for row in found] == ["present"]
    assert set(found[0]["archs"]) == {record.arch for record in records}
    text = run("stats", "--by", "toolchain", store=compiled_store).stdout
    assert f"{found[0]['compiler']} {found[0]['version']}" in text
    assert "present" in text


def test_toolchains_of_an_empty_store(place: Path) -> None:
    make_store(place)
    assert run("stats", "--by", "toolchain", store=place).stdout == "The store is empty.\n"


def test_coverage_agrees_with_what_warm_would_compile(place: Path) -> None:
    """Before and after one of its shapes is compiled."""
    make_store(place)
    table = ROOT / "sample_data" / "model_gemm_shapes.csv"
    assert table.exists()
    shapes = place.parent / "shapes.csv"
    shapes.write_text("n,k\n256,192\n512,96\n")
    asked = (shapes, "--arch", "sm_90", "--m", "1-64")
    before = document("warm", "--dry-run", "--by", "shape", *asked, store=place)
    assert (before["cached"], [row["cached"] for row in before["rows"]]) == (0, [0, 0])
    assert before["kernels"] == document("warm", *asked, "--dry-run", store=place)["missing"]
    assert "0 of" in run("warm", "--dry-run", "--by", "shape", *asked, store=place).stdout
    shapes.write_text("n,k\n256,192\n")
    document("warm", *asked, store=place)
    shapes.write_text("n,k\n256,192\n512,96\n")
    after = document("warm", "--dry-run", "--by", "shape", *asked, store=place)
    first, second = after["rows"]
    assert first["cached"] == first["kernels"] > 0 == second["cached"]
    assert first["missing"] == []
    assert len(second["missing"]) == second["kernels"]
    assert after["cached"] == first["kernels"]
    missing = document("warm", "--dry-run", "--by", "shape", *asked, "--missing", store=place)["rows"]
    assert missing == [second]


def test_coverage_of_no_model_is_refused(place: Path) -> None:
    make_store(place)
    assert run("warm", "--dry-run", "--by", "shape", "no-such-model", store=place).returncode == 2
    wrong = run("warm", "--dry-run", "--by", "shape", "Llama-3.1-8B", "--dtype", "bf17", store=place)
    assert (wrong.returncode, "use one of: fp16" in wrong.stderr) == (2, True)


def test_a_job_of_the_dashboard_is_listed_shown_and_canceled(jobs: Jobs) -> None:
    place = jobs._layout.root
    assert run("log", "--jobs", store=place).stdout == "There are no jobs.\n"
    done = jobs.start(["compile", *SHAPE])
    long = jobs.start(["warm", "DeepSeek-V3", "--arch", "sm_90", "--jobs", "1"])
    listed = document("log", "--jobs", store=place)["jobs"]
    assert [job["id"] for job in listed] == [long, done]
    assert listed[0]["command"][:2] == ["warm", "DeepSeek-V3"]
    until(lambda: document("log", "--jobs", long, store=place)["pid"])
    assert document("log", "--jobs", long, store=place)["state"] == "running"
    assert document("log", "--jobs", "--cancel", long, store=place)["cancel_asked"] is True
    document("log", "--jobs", "--cancel", long, store=place)
    until(lambda: document("log", "--jobs", long, store=place)["state"] != "running")
    assert document("log", "--jobs", long, store=place)["state"] == "canceled"
    until(lambda: document("log", "--jobs", done, store=place)["state"] != "running")
    shown = run("log", "--jobs", done, store=place).stdout
    assert re.search(r"state +done", shown)
    assert '"tier": "compiled"' in shown
    assert done in run("log", "--jobs", store=place).stdout


def test_a_job_that_is_not_there_is_an_error(place: Path) -> None:
    make_store(place)
    for verb in ("show", "cancel"):
        done = run("jobs", verb, "../../etc/passwd", store=place)
        assert done.returncode == 1
        assert "is not a job id" in done.stderr
        assert run("jobs", verb, "18c7f2a1b3e4d500-1f2e3d4c", store=place).returncode == 1


def _verbs(group: click.Group = commands, path: str = "") -> Iterator[str]:
    for name, verb in group.commands.items():
        if verb.hidden:
            continue
        if isinstance(verb, click.Group) and not verb.invoke_without_command:
            yield from _verbs(verb, f"{path}{name} ")
        else:
            yield f"{path}{name}"
            if isinstance(verb, click.Group):
                yield from _verbs(verb, f"{path}{name} ")


def test_the_documentation_says_of_every_verb_where_it_is_in_the_dashboard() -> None:
    page = (ROOT / "docs" / "dashboard.md").read_text(encoding="utf-8")
    table = page.partition("| verb | in the dashboard |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `([a-z ]+)` \| .+ \|$", table, re.MULTILINE)) == set(_verbs())
