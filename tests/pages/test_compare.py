"""Two kernels compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from streamlit.testing.v1 import AppTest

from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal
from tests.adapters.made import SCALE, SCALE_8_WARPS, put_kernel
from tests.helpers import make_store
from tests.pages.opening import Open, frames, listed, sound, tabled, tables


def by_heading(app: AppTest) -> dict[str, list[list[dict[str, Any]]]]:
    """The cells of the tables of differences, by heading."""
    return {told["label"]: told["cells"] for told in tables(app) if told["columns"][0]["name"] == "Property"}


def test_two_kernels_are_compared(open_page: Open, compiled_store: Path) -> None:
    by_arch = {record.arch: record for record in make_store(compiled_store).records() if record.problem.dtype == "bf16"}
    first, second = by_arch["sm_90"], by_arch["sm_80"]
    app = sound(open_page(compiled_store, "compare", a=first.key[:10], b=second.key))
    rows = tabled(app, "Function")
    assert [(row["No."], row["Function"], row["Kernel"]) for row in rows] == [
        ("1", first.name, f"kernel?key={first.key}"), ("2", second.name, f"kernel?key={second.key}")
    ]  # fmt: skip
    (title,) = app.title
    assert all(each.arch in title.value.replace("\\", "") for each in (first, second)), "both are named"
    shown = by_heading(app)
    assert shown["Key differences"][0][0]["text"] == "arch"
    (registers,) = [row for row in shown["Resources"] if row[0]["text"] == "registers per thread"]
    assert [cell["value"] for cell in registers[1:]] == [each.resources.registers for each in (first, second)]
    assert "HMMA" in [row[0]["text"] for row in shown["Static instruction mix"]]
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
    assert len(listed(app)) == 3, "another can be chosen"


def _address(first: str, second: str, *more: str) -> str:
    return f"compare?{urlencode({'a': first, 'b': second, 'more': more}, doseq=True)}"


def _a_cell(shown: dict[str, list[list[dict[str, Any]]]], heading: str, name: str) -> list[dict[str, Any]]:
    (cells,) = [row[1:] for row in shown[heading] if row[0]["text"] == name]
    return cells


def test_several_are_compared_with_a_baseline_that_the_address_names(open_page: Open, compiled_store: Path) -> None:
    records = sorted(make_store(compiled_store).records(), key=lambda record: record.resources.registers)
    low, *middle, high = records
    keys = [high.key, low.key, *(each.key for each in middle)]
    app = sound(open_page(compiled_store, "compare", a=keys[0], b=keys[1], more=keys[2:]))
    first, *others = _a_cell(by_heading(app), "Resources", "registers per thread")
    assert "mark" not in first
    low_text = f"{low.resources.registers} ({low.resources.registers - high.resources.registers:+})"
    assert (others[0]["text"], others[0]["mark"]) == (low_text, True)
    rows = tabled(app, "Function")
    assert [row["Baseline"] for row in rows[:2]] == ["yes", _address(low.key, high.key, *keys[2:])]
    assert [row["Machine code"] for row in rows] == [
        "", "", *(_address(high.key, each, *(one for one in keys[1:] if one != each)) for each in keys[2:])
    ]  # fmt: skip
    app = sound(open_page(compiled_store, "compare", a=low.key, b=high.key, more=keys[2:]))
    first, *others = _a_cell(by_heading(app), "Resources", "registers per thread")
    assert first["text"] == str(low.resources.registers)
    assert all("mark" in cell for cell in others if cell["value"] != first["value"])
    assert not any("mark" in cell for cell in others if cell["value"] == first["value"])


def test_kernels_are_added_and_removed(open_page: Open, compiled_store: Path) -> None:
    keys = [record.key for record in make_store(compiled_store).records()]
    app = sound(open_page(compiled_store, "compare", a=keys[0], b=keys[1], more=keys[2]))
    app.multiselect(key="compared").set_value(keys[1:3]).run()
    assert sound(app).query_params == {"a": keys[1], "b": keys[2]}


def test_more_than_eight_are_not_compared(open_page: Open, compiled_store: Path) -> None:
    keys = [record.key for record in make_store(compiled_store).records()]
    app = open_page(compiled_store, "compare", a=keys[0], b=keys[1], more=[f"{digit:x}" * 9 for digit in range(8)])
    assert [warning.value for warning in app.warning] == ["The link names 10 kernels. The first 8 are compared."]
    assert not app.exception


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
    assert [(row["Function"], row["Key"]) for row in tabled(app, "Function")] == [
        ("scale", key[:12]) for key in (one, other)
    ]
    shown = by_heading(app)
    assert [cell["text"] for cell in shown["Key differences"][0]] == ["num_warps", "4", "8"]
    assert list(shown) == [
        "Key differences", "Config differences", "Resources", "Theoretical occupancy", "Static instruction mix"
    ]  # fmt: skip
    assert any("inputs that triton does not store" in text.value for text in app.text)
    app.toggle(key="sass").set_value(True).run()
    code = [each.proto.body for each in sound(app).get("html") if "<table>" in each.proto.body]
    assert code or [note.value for note in app.info] == ["SASS is identical."]
