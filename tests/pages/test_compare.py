"""Two kernels compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal
from tests.adapters.made import SCALE, SCALE_8_WARPS, put_kernel
from tests.helpers import make_store
from tests.pages.opening import Open, frames, listed, sound


def test_two_kernels_are_compared(open_page: Open, compiled_store: Path) -> None:
    by_arch = {record.arch: record for record in make_store(compiled_store).records() if record.problem.dtype == "bf16"}
    first, second = by_arch["sm_90"], by_arch["sm_80"]
    app = sound(open_page(compiled_store, "compare", a=first.key[:10], b=second.key))
    assert [code.value for code in app.code][:2] == [f"{each.name}\n{each.key}" for each in (first, second)]
    (title,) = app.title
    assert all(each.arch in title.value.replace("\\", "") for each in (first, second)), "both are named"
    tables = dict(zip([each.value for each in app.header], frames(app), strict=True))
    assert tables["Key differences"]["Property"][0] == "arch"
    resources = tables["Resources"].set_index("Property")
    assert list(resources.loc["registers per thread"])[:2] == [
        str(each.resources.registers) for each in (first, second)
    ]
    assert "HMMA" in set(tables["Static instruction mix"]["Property"])
    app.toggle(key="sass").set_value(True).run()
    (table,) = (each.proto.body for each in sound(app).get("html") if "<table>" in each.proto.body)
    assert f"{first.key[:12]} {first.name}" in table
    assert "lines differ" in table


def test_a_page_is_exported_only_where_the_store_has_both_kernels(open_page: Open, compiled_store: Path) -> None:
    first, second, *_ = make_store(compiled_store).keys()
    for keys, offered in (((first, second), 1), (("zzz", second), 0), ((first, "0" * 64), 0)):
        app = open_page(compiled_store, "compare", a=keys[0], b=keys[1])
        assert len([one for one in app.get("download_button") if one.proto.label == "Export page"]) == offered


def test_a_kernel_compared_with_itself_differs_in_nothing(open_page: Open, compiled_store: Path) -> None:
    key = next(iter(make_store(compiled_store).keys()))
    app = sound(open_page(compiled_store, "compare", a=key, b=key))
    assert "Same key" in app.info[0].value
    assert [subheader.value for subheader in app.header] == [
        "Performance", "Resources", "Theoretical occupancy", "Static instruction mix"
    ]  # fmt: skip
    assert not any("Change" in table for table in frames(app))


@pytest.mark.parametrize("key", ["0" * 64, "nonsense", "<script>alert(1)</script>"])
def test_comparing_with_an_unknown_kernel_is_reported(open_page: Open, compiled_store: Path, key: str) -> None:
    app = open_page(compiled_store, "compare", a=next(iter(make_store(compiled_store).keys())), b=key)
    assert not app.exception
    assert [error.value for error in app.error] == ["No kernel with this key."]
    assert len(listed(app)) == 3  # without the first


def test_it_says_that_a_kernel_was_evicted_and_links_what_is_known(open_page: Open, compiled_store: Path) -> None:
    journal = Journal(make_store(compiled_store).layout.journal, 3600.0)
    journal.event("evict", key="0" * 64, detail="not used for 7 days")
    journal.close()
    app = sound(open_page(compiled_store, "compare", a=next(iter(make_store(compiled_store).keys())), b="0" * 64))
    assert [warning.value for warning in app.warning] == ["This kernel was evicted just now."]
    assert any("not used for 7 days" in text.value for text in app.text)
    (link,) = (each.proto for each in app.get("page_link") if each.proto.label == "What is known of it")
    assert link.query_string == f"key={'0' * 64}"


def test_a_kernel_is_found_in_the_list_to_pick_from(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "compare"))
    assert len(listed(app)) == 4
    app.text_input(key="pick").set_value("fp16").run()
    assert [row["Dtype"] for row in listed(sound(app))] == ["fp16"]
    app.text_input(key="pick").set_value("no such").run()
    assert "No matching kernels" in sound(app).info[0].value


def test_kernels_of_other_frameworks_are_compared(open_page: Open, store: DiskStore, tmp_path: Path) -> None:
    one, other = (put_kernel(store.layout, tmp_path / key, key) for key in (SCALE, SCALE_8_WARPS))
    app = sound(open_page(store.layout.root, "compare", a=one[:10]))
    (listed,) = frames(app)
    assert f"compare?a={one[:10]}&b={other}" in list(listed["Name →"])
    app = sound(open_page(store.layout.root, "compare", a=one[:10], b=other))
    assert [code.value for code in app.code][:2] == [f"scale\n{key}" for key in (one, other)]
    tables = dict(zip([each.value for each in app.header], frames(app), strict=True))
    assert list(tables["Key differences"].loc[0])[:3] == ["num_warps", "4", "8"]
    assert list(tables) == [
        "Key differences", "Config differences", "Resources", "Theoretical occupancy", "Static instruction mix"
    ]  # fmt: skip
    assert any("inputs that triton does not store" in text.value for text in app.text)
    app.toggle(key="sass").set_value(True).run()
    shown = [each.proto.body for each in sound(app).get("html") if "<table>" in each.proto.body]
    assert shown or [note.value for note in app.info] == ["SASS is identical."]
