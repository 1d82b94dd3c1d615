"""One kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from cache_engine.model.key import CacheKey
from tests.helpers import blob_file, make_store
from tests.pages.opening import Open, sound


@pytest.mark.parametrize("part", ["Summary", "Key", "Source", "PTX", "SASS", "Log"])
def test_the_page_shows_every_part(open_page: Open, compiled_store: Path, part: str) -> None:
    store = make_store(compiled_store)
    record = next(record for record in store.records() if record.family == "tensor_core")
    app = sound(open_page(compiled_store, "kernel", key=record.key))
    assert app.code[0].value == f"{record.name}\n{record.key}"
    app.segmented_control(key="part").set_value(part).run()
    sound(app)
    if part == "Summary":
        facts, occupancy = (table.value for table in app.dataframe)
        assert str(record.resources.registers) in dict(facts.itertuples(index=False))["Registers"]
        assert list(occupancy["Limit"]) == ["registers", "shared memory", "warps", "blocks"]
        assert occupancy["Binds"].any()
        assert any("instructions" in caption.value or "in the code" in caption.value for caption in app.caption)
    elif part == "Key":
        assert dict(app.dataframe[-1].value.itertuples(index=False)) == dict(record.components)
    else:
        expected = {"Source": "KERNEL(THREADS)", "PTX": ".target", "SASS": "HMMA", "Log": "Used"}
        assert expected[part] in app.code[1].value


def test_a_kernel_that_cannot_be_disassembled_shows_the_rest(open_page: Open, compiled_store: Path) -> None:
    store = make_store(compiled_store)
    record = next(store.records())
    blob = blob_file(store, CacheKey(record.key))
    blob.write_bytes(bytes(blob.stat().st_size))
    app = sound(open_page(compiled_store, "kernel", key=record.key))
    assert [subheader.value for subheader in app.subheader] == ["Theoretical occupancy"]
    assert any(text.value.startswith("instructions were not counted: ") for text in app.text)


@pytest.mark.parametrize("key", ["0" * 64, "nonsense", "<script>alert(1)</script>", "../../etc/passwd"])
def test_a_link_to_no_kernel_is_told_plainly(open_page: Open, compiled_store: Path, key: str) -> None:
    app = open_page(compiled_store, "kernel", key=key)
    assert not app.exception
    assert [error.value for error in app.error] == ["This kernel cannot be shown."]


def test_a_damaged_part_is_told_plainly(open_page: Open, compiled_store: Path) -> None:
    store = make_store(compiled_store)
    key = next(iter(store.keys()))
    blob_file(store, key).write_bytes(b"damaged")
    app = open_page(compiled_store, "kernel", key=key)
    app.segmented_control(key="part").set_value("PTX").run()
    assert not app.exception
    assert [error.value for error in app.error] == ["The PTX cannot be shown."]
