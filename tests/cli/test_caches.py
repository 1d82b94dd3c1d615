"""The verbs of the caches of other frameworks, on what Triton made."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cache_engine.cache.cache import open_cache
from cache_engine.cli import caches, caches_show
from cache_engine.cli.main import commands
from cache_engine.errors import GemmCacheError, IndexUnavailable, StoreUnusable
from cache_engine.index import framework_caches, framework_queries
from tests.frameworks.fixtures import unpack
from tests.frameworks.test_tuning import inductor, triton


class Machine:
    """A home directory with Triton's cache at its usual place."""

    def __init__(self, home: Path) -> None:
        self.home = home
        (home / ".triton").mkdir()
        self.cache = unpack("triton", home / ".triton").rename(home / ".triton" / "cache")

    def run(self, *arguments: object, code: int = 0) -> Result:
        """What the command prints; it must end with this code."""
        done = CliRunner().invoke(commands, ["caches", *map(str, arguments)])
        assert done.exit_code == code, (done.output, done.exception)
        return done

    def json(self, *arguments: object) -> Any:
        """The JSON document that it prints."""
        return json.loads(self.run(*arguments, "--json").stdout)


@pytest.fixture(params=["read", "indexed"])
def machine(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Machine:
    """A machine whose only cache is Triton's: all of it is read, or the index of a store is used."""
    if request.param == "indexed":
        monkeypatch.setattr(caches, "PAYS_FROM", 0)
        monkeypatch.setenv("GEMM_CACHE_DIR", str(tmp_path / "indexing store"))
        open_cache(tmp_path / "indexing store").close()
    monkeypatch.setenv("COLUMNS", "300")  # a table drops columns next to long paths, as those of xdist's workers are
    return Machine(home)


def test_the_overview_needs_no_configuration_and_no_store(machine: Machine) -> None:
    document = machine.json()
    (row,) = document["directories"]
    assert (row["kind"], row["path"], row["origin"]) == ("triton", str(machine.cache), "default")
    assert (row["entries"], row["targets"], row["versions"]) == (4, {"sm_90a": 3, "sm_80": 1}, {"3.9.0": 4})
    files = [path for path in machine.cache.rglob("*") if path.is_file()]
    assert row["size_bytes"] == sum(row["part_bytes"].values()) == sum(path.stat().st_size for path in files)
    assert row["part_bytes"]["llir"] == sum(path.stat().st_size for path in files if path.suffix == ".llir")
    assert document["findings"] == []
    printed = machine.run().stdout
    assert "sm_90a (3), sm_80 (1)" in printed
    assert "By part: llir" in printed
    assert not (machine.home / ".cache" / "gemm-cache").exists()


def test_a_further_directory_is_named_before_or_after_the_verb_or_in_the_settings(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [unpack("triton", tmp_path / name) for name in "abc"]
    monkeypatch.setenv("GEMM_CACHE_CACHES", f"triton={others[2]}")
    found = machine.json("--cache", f"triton={others[0]}", "ls", "--cache", f"triton={others[1]}")
    assert {row["path"] for row in found["entries"]} == {str(path) for path in (*others, machine.cache)}
    assert found["total"] == 16


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        ((), 4),
        (("tile",), 1),
        (("scale", "sm_90a"), 2),
        (("scale", "num_warps=8"), 1),
        (("--arch", "sm_80", "--arch", "sm_90a"), 4),
        (("--arch", "sm_80"), 1),
        (("--kind", "triton", "--state", "complete"), 4),
        (("--state", "partial"), 0),
        (("nothing of this name",), 0),
    ],
)
def test_a_list_is_of_what_was_asked_for(machine: Machine, arguments: tuple[str, ...], count: int) -> None:
    assert machine.json("ls", *arguments)["total"] == count


def test_a_list_is_sorted_and_says_how_many_are_not_printed(machine: Machine) -> None:
    sizes = [row["size_bytes"] for row in machine.json("ls", "--sort", "size")["entries"]]
    assert sizes == sorted(sizes, reverse=True)
    names = [row["name"] for row in machine.json("ls", "--sort", "name", "--ascending")["entries"]]
    assert names == ["scale", "scale", "scale", "tile"]
    assert "4 entries, 3 of them not printed." in machine.run("ls", "--limit", 1).stdout


def test_an_entry_is_shown_with_what_is_not_known_and_why(machine: Machine) -> None:
    (row,) = machine.json("ls", "tile")["entries"]
    found = machine.json("show", row["id"][:6])
    assert {name: found[name] for name in row} == row
    assert found["unknown"]["compile_ms"] == "Triton does not store how long a compile took"
    assert {"group": "option", "name": "num_warps", "value": "4"} in found["factors"]
    assert [part["name"] for part in found["parts"]][:2] == ["group", "cubin"]
    printed = machine.run("show", row["id"][:6]).stdout
    assert "unknown: Triton does not store how long a compile took" in printed
    assert "Not stored: the build of Triton" in printed
    for part in found["parts"]:
        assert re.search(
            rf"^ *{part['name']} +{part['kind']} .*{re.escape(part['file'] or '–')} *$", printed, re.MULTILINE
        )


def test_a_part_is_printed_as_it_is_and_the_code_as_instructions(machine: Machine) -> None:
    (row,) = machine.json("ls", "tile")["entries"]
    ptx = (machine.cache / row["id"] / "tile.ptx").read_text()
    assert machine.json("show", row["id"], "--part", "ptx")["text"] == ptx
    assert "HGMMA" in machine.run("show", row["id"], "--part", "sass").stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("show", "no such id"), "no entry has an id that begins with"),
        (("show", ""), "entries begin with"),
        (("ls", "--cache", "tritium=/x"), "there are: triton,"),
        (("ls", "--cache", "/x"), "KIND=DIR"),
    ],
)
def test_what_cannot_be_done_is_said_with_what_to_do(machine: Machine, arguments: tuple[str, ...], said: str) -> None:
    done = machine.run(*arguments, code=1)
    assert isinstance(done.exception, GemmCacheError)
    assert said in str(done.exception)


@pytest.mark.parametrize(("part", "said"), [("lir", "there are: group, cubin"), ("cubin", "machine code")])
def test_a_part_that_cannot_be_printed_is_refused_with_the_others(machine: Machine, part: str, said: str) -> None:
    (row,) = machine.json("ls", "tile")["entries"]
    assert said in str(machine.run("show", row["id"], "--part", part, code=1).exception)


def test_the_same_id_in_two_directories_is_told_apart_by_the_directory(machine: Machine, tmp_path: Path) -> None:
    other = unpack("triton", tmp_path / "other")
    (row,) = machine.json("ls", "tile")["entries"]
    two = ("show", row["id"], "--cache", f"triton={other}")
    assert "--in DIR" in str(machine.run(*two, code=1).exception)
    assert machine.json(*two, "--in", other)["path"] == str(other)


def test_what_cannot_be_read_is_a_finding_and_the_rest_is_listed(machine: Machine) -> None:
    """Names of files are hostile: none moves the cursor or begins a line."""
    os.symlink("/etc", machine.cache / "a\nb\x1b[2J")
    done = machine.run("ls")
    assert "4 entries." in done.stdout
    assert done.stderr == f"not a regular file: {machine.cache}/a%0Ab%1B[2J: it is a link or a device\n"
    assert machine.json()["findings"][0]["fault"] == "not a regular file"


def test_a_machine_without_any_cache_is_told_how_to_name_one(machine: Machine) -> None:
    machine.cache.rename(machine.home / "elsewhere")
    assert "Name one with --cache KIND=DIR" in machine.run().stdout


def test_two_entries_are_compared_by_the_inputs_of_their_keys(machine: Machine) -> None:
    ids = [row["id"] for row in machine.json("ls", "scale", "--arch", "sm_90a", "--sort", "name")["entries"]]
    found = machine.json("show", *ids)
    (each,) = found["differences"]
    assert (each["name"], sorted((each["a"], each["b"]))) == ("num_warps", ["4", "8"])
    printed = machine.run("show", *ids).stdout
    assert "num_warps" in printed
    assert "May differ too, and is not stored: the build of Triton" in printed
    assert "They are the same key." in machine.run("show", ids[0], ids[0]).stdout


def test_two_directories_are_compared_named_or_known(machine: Machine, tmp_path: Path) -> None:
    other = unpack("triton", tmp_path / "other")
    (row,) = machine.json("ls", "tile")["entries"]
    shutil.rmtree(other / row["id"])
    found = machine.json("show", machine.cache, f"triton={other}")
    assert (found["same"], found["changed"], [each["id"] for each in found["only_a"]]) == (3, [], [row["id"]])
    assert "1 entry only in A, 0 entries only in B." in machine.run("show", machine.cache, f"triton={other}").stdout


def test_results_of_tuning_are_listed_and_compared(machine: Machine, tmp_path: Path) -> None:
    other = tmp_path / "other"
    for number in range(3):
        triton(machine.cache, {64: 1.0, 128: 1.09}, key=[number], digest=f"{'A' * 51}{number + 2}")
        triton(other, {64: 1.1, 128: 1.0 + number}, key=[number], digest=f"{'B' * 51}{number + 2}")
    inductor(tmp_path / "inductor", XBLOCK=32)
    (machine.cache / ("C" * 52)).mkdir()
    (machine.cache / ("C" * 52) / "x.autotune.json").write_text("{")
    named = ("--cache", f"inductor={tmp_path / 'inductor'}")
    listed = machine.json("ls", "--part", "tuning", *named, "num_stages=3")
    assert (listed["total"], [one["ms"] for one in listed["results"]]) == (3, [1.0] * 3)
    assert [one["fault"] for one in listed["findings"]] == ["damaged"]
    text = machine.run("ls", "--part", "tuning", "--kind", "inductor", *named).output
    assert "XBLOCK=32" in text
    assert "1 result of tuning." in text
    text = machine.run("show", machine.cache, f"triton={other}", "--part", "tuning").output
    assert "1 of 3 keys chose differently, worst 10%." in text
    assert machine.json("show", machine.cache, f"triton={other}", "--part", "tuning")["both"] == 3
    assert "two directories" in str(machine.run("show", "A", "B", "--part", "tuning", code=1).exception)
    assert "--part" in str(machine.run("ls", "--part", "tuning", "--arch", "sm_90", code=1).exception)


def test_what_cannot_be_compared_is_refused(machine: Machine, tmp_path: Path) -> None:
    (row,) = machine.json("ls", "tile")["entries"]
    for arguments, said in (
        ((machine.cache, row["id"]), "two entries, or two directories"),
        ((machine.cache, tmp_path), f"write KIND={tmp_path}"),
        (("nothing", row["id"]), "no entry has an id"),
    ):
        assert said in str(machine.run("show", *arguments, code=1).exception)


def test_the_check_finds_a_planted_empty_entry_and_says_what_to_do(machine: Machine) -> None:
    printed = machine.run("--check", code=1).stdout
    assert "points elsewhere: 4 findings" in printed  # the fixture has moved them
    for group in machine.cache.rglob("__grp__*"):
        group.write_text(group.read_text().replace(str(machine.cache.with_name("triton")), str(machine.cache)))
    assert "Nothing is wrong in 1 directory." in machine.run("--check").stdout
    (row,) = machine.json("ls", "tile")["entries"]
    (machine.cache / row["id"] / "tile.cubin").write_bytes(b"")
    printed = machine.run("--check", code=1).stdout
    assert f"empty file: 1 finding\n  {machine.cache}/{row['id']}: {row['id']}/tile.cubin\n" in printed
    assert "  What to do: the framework may load it" in printed
    document = json.loads(machine.run("--check", "--json", code=1).stdout)
    (found,) = document["findings"]
    assert (found["ailment"], found["kind"], found["id"]) == ("empty file", "triton", row["id"])
    assert "delete the entry" in found["cure"]


def test_with_an_index_only_what_has_changed_is_read_again(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a store, all of it is, each time."""
    has_index = (tmp_path / "indexing store").exists()
    first = machine.json("ls")
    really, opened = os.open, []

    def opening(path: str, *rest: int, **named: int) -> int:
        opened.append(str(path))
        return really(path, *rest, **named)

    monkeypatch.setattr(os, "open", opening)
    assert machine.json("ls") == first
    assert any(path.endswith(".cubin") for path in opened) != has_index
    gone = next(machine.cache.glob("*/tile.ptx")).parent
    shutil.rmtree(gone)
    (machine.cache / "a link").symlink_to("/etc")
    document = machine.json("ls")
    assert document["total"] == 3
    assert [finding["fault"] for finding in document["findings"]] == ["not a regular file"]


def test_one_directory_alone_leaves_the_index_of_the_others_as_it_is(machine: Machine, tmp_path: Path) -> None:
    store = tmp_path / "indexing store"
    other = unpack("cupy", tmp_path)
    entry = next(machine.cache.iterdir()).name
    machine.run("ls", "--cache", f"cupy={other}")
    machine.run("show", entry, "--in", machine.cache)
    if store.exists():
        with open_cache(store) as cache:
            assert {row["kind"]: row["entries"] for row in cache.query(framework_queries.places)} == {
                "triton": 4, "cupy": 3,
            }  # fmt: skip


@pytest.mark.parametrize("trouble", [IndexUnavailable("it is busy"), StoreUnusable("others may write it")])
def test_where_the_index_cannot_be_used_all_is_read(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, trouble: GemmCacheError
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise trouble

    monkeypatch.setattr(framework_caches, "scan", failing)
    assert machine.json("ls")["total"] == 4


def test_two_caches_of_vllm_differ_in_a_port_and_in_a_tuned_config(machine: Machine, tmp_path: Path) -> None:
    """Written by hand, as vLLM writes them."""
    for name, key, port in (("a", "0a1b2c3d4e", "29500"), ("b", "5f6a7b8c9d", "29777")):
        for each, environment in ((key, {"VLLM_PORT": port}), ("1111111111", {"VLLM_PORT": "1"})):
            folder = tmp_path / name / each / "rank_0_0" / "backbone"
            folder.mkdir(parents=True)
            (folder / "cache_key_factors.json").write_text(json.dumps({"code_hash": "c", "env": environment}))
            (folder / "abc.best_config").write_text(json.dumps({"tuned by": name}))
    sides = [f"vllm={tmp_path / name}" for name in ("a", "b")]
    document = machine.json("show", *sides)
    ((changed,), (cause,)) = document["changed"], document["causes"]
    assert (changed["id"], changed["parts"]) == ("1111111111/rank_0_0/backbone", ["abc.best_config"])
    assert (cause["group"], cause["name"], cause["entries"]) == ("environment", "VLLM_PORT", 1)
    printed = machine.run("show", *sides).stdout
    assert "VLLM_PORT: a port of the network" in printed


def test_a_list_shows_the_key_of_an_id_without_its_name_and_that_is_enough(machine: Machine, tmp_path: Path) -> None:
    """The ids of DeepGEMM's kernels begin alike."""
    place = unpack("deepgemm", tmp_path / "more")
    there = ("--cache", f"deepgemm={place}")
    listed = machine.run("ls", "--kind", "deepgemm", *there).stdout.splitlines()
    keys = [line.split()[0] for line in listed if "sm90_" in line]
    assert len({*keys}) == len(keys) == 2
    (source,) = place.glob(f"cache/*{keys[0]}*/kernel.cu")
    assert machine.json("show", keys[0], "--part", "kernel.cu", *there)["text"] == source.read_text()
    assert "argument 12" in machine.run("show", *keys, *there).stdout
    assert keys[1] in str(machine.run("show", "cache/", *there, code=1).exception)


def test_each_short_id_of_a_list_names_its_entry(machine: Machine, tmp_path: Path) -> None:
    """Inductor's generated files have one digest and differ in how their names end."""
    place = tmp_path / "inductor"
    digest = f"c{'ab' * 26}"
    for file in (f"{digest}.py", f"{digest}.cpp", f"{digest}.main.so", f"{digest}.kernel.so", f"d{digest}.py"):
        (place / "ab" / file).parent.mkdir(parents=True, exist_ok=True)
        (place / "ab" / file).write_text("generated")
    there = ("--cache", f"inductor={place}")
    shown = [line.split()[0] for line in machine.run("ls", "--kind", "inductor", *there).stdout.splitlines()[1:-1]]
    assert len(shown) == 5
    assert len({machine.json("show", short, *there)["id"] for short in shown}) == 5
    assert f"ab/d{digest[:11]}" in shown  # no longer than it must be
    said = str(machine.run("show", digest[:12], *there, code=1).exception)
    assert all(f"ab/{digest}{end} in {place}" in said for end in (".py", ".cpp", ".main.so", ".kernel.so"))


def test_an_overview_says_how_many_targets_and_parts_it_does_not_show(machine: Machine, tmp_path: Path) -> None:
    place = tmp_path / "core"
    (place / "entries" / "00").mkdir(parents=True)
    for number, target in enumerate((80, 86, 87, 89, "90a", "100a", 120)):
        text = f".version 9.0\n.target sm_{target}\n.visible .entry f()\n"
        (place / "entries" / "00" / (f"{number}" * 62)).write_text(text)
    (place / "entries" / "00" / ("a" * 62)).write_text("")  # the ninth kind of part
    there = ("--cache", f"cuda_core={place}")
    assert "sm_89 (1) and 3 more" in machine.run(*there).stdout
    assert re.search(r"By part: .* and 1 more\n", machine.run(*there).stdout)
    (row,) = [row for row in machine.json(*there)["directories"] if row["kind"] == "cuda_core"]
    assert len(row["targets"]) == 7


def test_a_framework_that_keeps_nothing_on_disk_is_named(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert machine.json()["in_memory"] == []
    package = tmp_path / "site" / "nvidia_cutlass_dsl-4.8.1.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-cutlass-dsl\nVersion: 4.8.1\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert machine.json()["in_memory"] == ["CuTe DSL 4.8.1"]
    for verb, code in (((), 0), (("--check",), 1)):
        assert "CuTe DSL 4.8.1 is installed and keeps nothing on disk" in machine.run(*verb, code=code).stdout


def test_programs_without_inputs_are_compared_by_what_was_made(machine: Machine, tmp_path: Path) -> None:
    place = unpack("cuda_core", tmp_path / "core")
    there = ("--cache", f"cuda_core={place}")
    rows = machine.json("ls", "--kind", "cuda_core", *there)["entries"]
    ids = [next(row["id"] for row in rows if row["arch"] == arch) for arch in ("sm_80", "sm_90a")]
    printed = machine.run("show", *ids, *there).stdout
    assert re.search(r"^target +sm_80 +sm_90a$", printed, re.MULTILINE)
    assert not re.search(r"^version", printed, re.MULTILINE)  # neither is known
    assert all(each in printed for each in ids)


def test_in_a_pipe_both_values_are_whole_and_on_a_terminal_where_they_differ(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [f"{'x' * 100}{end}{'y' * 100}" for end in ("one", "two")]
    for name, value in zip("ab", values, strict=True):
        folder = tmp_path / name / f"{name}123456789" / "rank_0_0" / "backbone"
        folder.mkdir(parents=True)
        (folder / "cache_key_factors.json").write_text(json.dumps({"env": {"X": value}}))
    printed = machine.run("show", *(f"vllm={tmp_path / name}" for name in "ab")).stdout
    assert all(value in printed for value in values)
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stdout", terminal)
    assert caches_show._both(*values) == tuple(f"…{'x' * 20}{end}{'y' * 37}…" for end in ("one", "two"))
    assert caches_show._around(values[1], 0) == f"{'x' * 60}…"
    assert caches_show._around(values[0], 203) == f"…{'y' * 60}"
    assert caches_show._around(None, 0) == "–"
