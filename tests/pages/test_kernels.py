"""The list of kernels."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path

import pytest

from app.presenters.columns import cells
from app.presenters.kernel_list import COLUMNS, facet_choices, first_choices, kernel_columns, page_number
from cache_engine.cache.cache import open_cache
from cache_engine.index.queries import SORTS
from cache_engine.model.gemm import GemmProblem
from cache_engine.store.disk import DiskStore
from tests.helpers import fill, make_store
from tests.pages.opening import Open, components, listed, openings, sound


def test_columns_of_timings_are_hidden_where_no_kernel_was_timed() -> None:
    row = dict.fromkeys(("median_us", "tflops", "speed_ratio", "device", "tags", "note"))
    shown = [[column.name for column in kernel_columns(rows) if not column.hidden] for rows in ([row], [])]
    assert not {"Time", "TFLOP/s", "% of library", "Tags"} & {*shown[0], *shown[1]}
    timed = [row, {**row, "tags": "prod", "median_us": 12.5, "tflops": 3.0, "speed_ratio": 0.5, "device": "H100"}]
    speed = [column for column in kernel_columns(timed) if column.name in ("Time", "TFLOP/s", "% of library")]
    assert not any(column.hidden for column in (*speed, *(one for one in kernel_columns(timed) if one.name == "Tags")))
    (cells_of_none, cells_of_timed) = cells(timed, speed, UTC, 0.0)
    assert [cell["text"] for cell in cells_of_none] == ["–", "–", "–"]
    assert [cell["text"] for cell in cells_of_timed] == ["12.50 µs", "3", "50.0%"]
    assert speed[0].title is not None
    assert "H100" in speed[0].title(timed[1])


def test_a_kernel_compiled_meanwhile_appears(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "kernels"))
    assert len(listed(app)) == 4
    fill(make_store(compiled_store), 2)
    assert len(listed(sound(app.run()))) == 6


@pytest.mark.parametrize(
    ("text", "count"), [("sm_90", 2), ("SM_90 fp16", 1), ("128×256×192", 2), ("simt", 1), ("tensor_* hits=0", 2)]
)
def test_search_narrows_the_list(open_page: Open, compiled_store: Path, text: str, count: int) -> None:
    app = sound(open_page(compiled_store, "kernels"))
    app.text_input(key="q").set_value(text).run()
    assert len(listed(sound(app))) == count


def test_a_search_for_an_unknown_field_is_refused_with_those_there_are(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "kernels"))
    app.text_input(key="q").set_value("hit>0").run()
    assert not any("columns" in one for one in components(sound(app))), "no list of kernels"
    assert app.button(key="search-button"), "the header is drawn"
    assert any("there is no field hit. Did you mean hits? Fields: m, n, k, " in text.value for text in app.text)
    app.text_input(key="q").set_value("hits>0").run()
    assert not any("field" in text.value for text in sound(app).text)


def test_a_search_opens_the_index_once(open_page: Open, compiled_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening it takes longer than most of its answers, and a reader waits for it at each letter."""
    app = sound(open_page(compiled_store, "kernels"))
    opened = openings(monkeypatch)
    app.text_input(key="q").set_value("sm_90").run()
    assert len(listed(sound(app))) == 2
    assert len(opened) == 1


def test_a_models_name_finds_its_shapes(open_page: Open, tmp_path: Path) -> None:
    with open_cache(tmp_path / "models", durability="fast") as opened:
        opened.get_or_compile(GemmProblem(16, 576, 7168, arch="sm_90"))
        opened.get_or_compile(GemmProblem(16, 576, 7000, arch="sm_90"))
    app = sound(open_page(tmp_path / "models", "kernels", q="deepseek-v3 bf16"))
    assert [row["m × n × k"] for row in listed(app)] == ["16 × 576 × 7168"]


def test_facets_tell_how_many_there_would_be(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "kernels", arch="sm_90"))
    assert app.multiselect(key="arch").options == ["sm_75 (1)", "sm_80 (1)", "sm_90 (2)"]
    assert app.multiselect(key="dtype").options == ["bf16 (1)", "fp16 (1)"]
    assert app.multiselect(key="arch").value == ["sm_90"]
    app.multiselect(key="dtype").set_value(["fp16"]).run()
    assert app.query_params["dtype"] == "fp16"
    assert app.multiselect(key="arch").options == ["sm_90 (1)"]
    assert len(listed(sound(app))) == 1


def test_an_address_holds_the_whole_list(open_page: Open, store: DiskStore) -> None:
    fill(store, 60)
    asked = {"arch": "sm_90", "family": "tensor_core", "text": "nt", "sort": "registers", "asc": "true"}
    app = sound(open_page(store.layout.root, "kernels", **asked))
    assert "1–15 of 15" in app.caption[0].value
    registers = [row["Registers"] for row in listed(app)]
    assert registers == sorted(registers, key=int)
    assert app.text_input(key="q").value == "nt"
    app = sound(open_page(store.layout.root, "kernels", page="2"))
    assert "51–60 of 60" in app.caption[0].value


@pytest.mark.parametrize("address", [{"page": "99999"}, {"page": "-1"}, {"sort": "no such"}, {"arch": "sm_0"}])
def test_an_address_that_asks_for_nothing_there_breaks_nothing(
    open_page: Open, compiled_store: Path, address: dict[str, str]
) -> None:
    app = sound(open_page(compiled_store, "kernels", **address))
    assert len([one for one in app.get("bidi_component") if one.key == "list of kernels"]) == (
        0 if "arch" in address else 1
    )


def test_long_names_of_toolchains_are_cut_where_that_leaves_them_apart() -> None:
    builds = {"nvrtc 13.5 " + "a" * 40: 3, "nvrtc 13.5 " + "b" * 40: 1, "nvcc " + "c" * 20: 1, "nvcc " + "c" * 21: 1}
    called = facet_choices(builds, ["gone"])
    assert list(called.values()) == [
        "nvrtc 13.5 aaaaaaaa… (3)",
        "nvrtc 13.5 bbbbbbbb… (1)",
        f"nvcc {'c' * 20} (1)",
        f"nvcc {'c' * 21} (1)",
        "gone (0)",
    ]


def test_where_there_is_room_the_counts_stand_below_the_filters(open_page: Open, compiled_store: Path) -> None:
    shown = [text.value for text in sound(open_page(compiled_store, "kernels")).text]
    assert any("sm_90 (2)" in text.split("\n") for text in shown), shown
    assert first_choices({str(number): f"{number} (1)" for number in range(7)}).split("\n")[3:] == [
        "3 (1)",
        "and 3 more",
    ]
    assert first_choices({name: name for name in "abcde"}) == "a\nb\nc\nd\ne", "a line for one more says which"


def test_an_address_names_a_page_that_there_is() -> None:
    assert [page_number(asked, 5) for asked in ("", "3", "9", "0", "-2", "x", "1e3", "٣")] == [1, 3, 5, 1, 1, 1, 1, 1]


def test_a_search_without_matches_reports_that(open_page: Open, compiled_store: Path) -> None:
    app = open_page(compiled_store, "kernels")
    app.text_input(key="q").set_value("no such kernel").run()
    assert "No matching kernels" in sound(app).info[0].value


def test_filters_and_sorting(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "kernels", sort="target", asc="true"))
    app.multiselect(key="dtype").set_value(["bf16"])
    app.multiselect(key="arch").set_value(["sm_80", "sm_90"]).run()
    table = listed(sound(app))
    assert [row["Target"] for row in table] == ["sm_80", "sm_90"]
    assert {row["Dtype"] for row in table} == {"bf16"}


def test_a_link_names_the_order(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "kernels", sort="target", asc="true"))
    assert [row["Target"] for row in listed(app)] == ["sm_75", "sm_80", "sm_90", "sm_90"]


def test_every_header_sorts_by_an_order_that_there_is() -> None:
    sorts = [column.sort for column in COLUMNS if column.sort]
    assert set(sorts) == set(SORTS)
    assert len(sorts) == len(SORTS)


def test_pages_of_the_list(open_page: Open, store: DiskStore) -> None:
    keys = fill(store, 60)
    app = sound(open_page(store.layout.root, "kernels"))
    seen = [row["Key"] for row in listed(app)]
    for number in (2,):
        app.pagination(key="page").set_value(number).run()
        seen += [row["Key"] for row in listed(sound(app))]
    assert app.pagination(key="page").value == 2
    assert sorted(seen) == sorted(key[:12] for key in keys)
    # Another search starts at its own first page.
    app.text_input(key="q").set_value("sm_80").run()
    assert len(listed(sound(app))) == 15
    assert "1–15 of 15" in app.caption[0].value


def test_the_rebuilt_mirror_shows_the_current_store(open_page: Open, compiled_store: Path) -> None:
    """Not what an earlier index had answered."""
    app = sound(open_page(compiled_store, "kernels"))
    for count in (1, 2):
        fill(make_store(compiled_store), count)
        (compiled_store / "mirror.duckdb").unlink()
        assert len(listed(sound(app.run()))) == 4 + count
