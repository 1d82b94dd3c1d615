"""Kernels that other frameworks keep in the store, on the pages Kernels and Kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from cache_engine.frameworks.bundles import Group, put_group
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal
from tests.adapters.made import STAGES, TILE, put_kernel, triton_groups
from tests.helpers import publish
from tests.pages.opening import Open, as_shown, code_of, frames, listed, sound


def test_they_are_listed_below_ours_and_found_by_words(open_page: Open, store: DiskStore, tmp_path: Path) -> None:
    publish(store, 1)
    for group in triton_groups(tmp_path / "made").values():
        put_group(store.layout, group, durable=False)
    app = sound(open_page(store.layout.root, "kernels"))
    assert [heading.value for heading in app.header] == ["Kernels of other frameworks"]
    (theirs,) = (frame for frame in frames(app))
    assert (len(listed(app)), len(theirs)) == (1, 4)
    assert set(theirs["Name"]) == {"tile", "scale"}
    app.text_input(key="q").set_value("tile sm_90a").run()
    (theirs,) = (frame for frame in frames(sound(app)))
    assert list(theirs["Version"]) == ["3.9.0"]
    app.text_input(key="q").set_value("no such kernel").run()
    assert [note.value for note in sound(app).info] == ["No matching kernels."]
    app = sound(open_page(store.layout.root, "kernels", dtype="fp32"))
    assert not app.header


def test_the_page_of_one_says_what_is_known(open_page: Open, store: DiskStore, tmp_path: Path) -> None:
    key = put_kernel(store.layout, tmp_path / "made")
    journal = Journal(store.layout.journal, 3600.0)
    for _ in range(3):
        journal.hit(key, "disk", made_at=1_700_000_000.0)
    journal.close()
    app = sound(open_page(store.layout.root, "kernel", key=key[:12]))
    assert app.code[0].value == f"tile\n{key}"
    facts = next(frame for frame in frames(app) if "Property" in frame)
    shown = dict(zip(facts["Property"], facts["Value"], strict=True))
    assert (shown["Framework"], shown["Target"], shown["Version"]) == ("triton", "sm_90a", "3.9.0")
    assert shown["Hits"] == "3"
    assert shown["Spills per thread"].startswith("unknown: the report")
    stages = next(frame for frame in frames(app) if "Stage" in frame)
    assert dict(zip(stages["Stage"], stages["Time"], strict=True)) == STAGES
    ptx = triton_groups(tmp_path / "again")[TILE].files["tile.ptx"].decode()
    assert code_of(app)["PTX"].splitlines()[:10] == ptx.splitlines()[:10]
    assert "HGMMA" in code_of(app)["SASS"]
    assert "Pin" in [button.label for button in app.button]


@pytest.mark.parametrize("name", ["[link](http://a.b)", "<b>x</b>", "$x$ :material/key:", "=1+1"])
def test_hostile_text_is_shown_as_it_is(open_page: Open, store: DiskStore, name: str) -> None:
    index = b'{"name": "%s"}' % name.encode()
    group = Group(name, name, "a.json", {"a.json": index, "a.ptx": b".version 8.0 " + name.encode()})
    put_group(store.layout, group, durable=False)
    app = sound(open_page(store.layout.root, "kernels"))
    assert list(map(as_shown, frames(app)[0]["Framework"])) == [name]
    app = sound(open_page(store.layout.root, "kernel", key=group.key))
    assert app.code[0].value == f"{name}\n{group.key}"
    assert code_of(app)["PTX"] == f".version 8.0 {name}"
    assert name not in "".join(markdown.value for markdown in app.markdown)
