"""Sources of plug-ins, and the places that a user names."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from cache_engine.errors import UsageError
from cache_engine.foreign import registry
from cache_engine.foreign.frameworks.triton import Triton
from cache_engine.foreign.registry import load_sources, surroundings
from cache_engine.foreign.values import Fault


class Own(Triton):
    """A plug-in of this test."""

    kind = "own"


class _Fails:
    def __init__(self) -> None:
        raise RuntimeError("no luck")


@pytest.fixture
def plug_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Adds an entry point, as an installed package would."""

    def add(value: str) -> None:
        found = [EntryPoint("its-name", value, registry.GROUP)]
        monkeypatch.setattr("importlib.metadata.entry_points", lambda group: found if group == registry.GROUP else [])

    return add


def test_a_plug_in_is_a_source_as_ours(plug_in: Callable[[str], None], tmp_path: Path) -> None:
    plug_in("tests.foreign.test_registry:Own")
    sources = load_sources()
    assert sources.findings == ()
    assert sources.by_kind["own"].title == "Triton"
    where = surroundings([f"own={tmp_path}"], {"HOME": str(tmp_path)})
    assert ("own", tmp_path) in [(place.kind, place.path) for place in sources.places(where)]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("tests.foreign.test_registry:_Fails", "RuntimeError: no luck"),
        ("no.such.module:Source", "ModuleNotFoundError"),
        ("tests.foreign.test_registry:Path", "kind"),
        ("cache_engine.foreign.frameworks.triton:Triton", "there is a source triton already"),
    ],
)
def test_a_plug_in_that_fails_is_a_finding_and_the_others_stay(
    plug_in: Callable[[str], None], value: str, reason: str
) -> None:
    ours = set(load_sources().by_kind)
    plug_in(value)
    sources = load_sources()
    assert set(sources.by_kind) == ours
    (finding,) = sources.findings
    assert (finding.fault, finding.id) == (Fault.PLUGIN, "its-name")
    assert reason in finding.detail


def test_a_named_place_is_listed_once_and_also_where_it_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    given = [f"triton={tmp_path / name}" for name in ("there", "link", "missing")]
    where = surroundings(given, {"HOME": str(tmp_path)})
    found = [place.path.name for place in load_sources().places(where) if place.origin == "given"]
    assert found == ["there", "missing"]


@pytest.mark.parametrize("given", ["triton", "triton=", "=x", "tri\0ton=/x"])
def test_what_is_no_kind_and_directory_is_refused(given: str) -> None:
    with pytest.raises(UsageError, match="KIND=DIR"):
        surroundings([given], {})


def test_a_kind_without_a_source_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"tritium=.*there are: .*triton"):
        list(load_sources().places(surroundings([f"tritium={tmp_path}"], {})))


def test_the_docs_say_of_each_framework_what_is_known_what_not_and_how_it_is_deleted() -> None:
    sections = {
        text.partition("\n")[0]: text
        for text in (Path(__file__).parents[2] / "docs" / "caches.md").read_text().split("\n## ")
    }
    for kind, source in load_sources().by_kind.items():
        if source.title in sections:
            for row in ("where", "layout", "known", "not known", "inputs of the key", "deletion"):
                assert f"\n| {row} | " in sections[source.title], (kind, row)
        else:
            assert f"\n| `{kind}` | " in sections["Others, by size and age"], kind
