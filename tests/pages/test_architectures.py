"""Architectures."""

from __future__ import annotations

from pathlib import Path

import msgspec

from cache_engine.cache.cache import open_cache
from cache_engine.evaluator.catalogue import ModelShape
from cache_engine.model.key import CacheKey
from cache_engine.store.codec import encode_record
from tests.pages.opening import Open, frames, sound

SHAPES = [ModelShape("a model", "qkv", 1, 4096, 4096, 1), ModelShape("a model", "router", 8, 4096, 1024, 1)]


def test_architectures_have_plots_and_a_table(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "architectures"))
    table = frames(app)[0]
    assert list(table["Target"]) == ["sm_75", "sm_80", "sm_90"]
    assert list(table["Kernels"]) == [1, 1, 2]
    assert list(table["Hits"]) == [0, 0, 1]
    assert list(table["Misses"]) == [1, 1, 2]
    assert list(table["Dtypes"]) == ["fp32", "bf16", "bf16, fp16"]
    assert list(table["Target →"]) == [f"kernels?arch={arch}" for arch in table["Target"]]
    toolchains = frames(app)[1]
    assert (list(toolchains["Kernels"]), list(toolchains["State"])) == ([4], ["✓ current"])


def test_two_toolchains_are_compared_on_request(open_page: Open, compiled_store: Path) -> None:
    with open_cache(compiled_store) as cache:
        for number, record in enumerate(cache.records()):
            changed = {"compiler_version": "13.6", "compiler_build": "ab" * 20}
            other = msgspec.structs.replace(
                record,
                key=f"{number:0>4}{record.key[4:]}",
                components=tuple((label, changed.get(label, value)) for label, value in record.components),
                compiler_version="13.6",
                resources=msgspec.structs.replace(record.resources, registers=255),
            )
            path = Path(cache.layout.record_path(CacheKey(other.key)))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode_record(other))
    app = sound(open_page(compiled_store, "architectures"))
    newer = next(each for each in app.selectbox(key="to-toolchain").options if "13.6" in each)
    older = next(each for each in app.selectbox(key="to-toolchain").options if "13.6" not in each)
    app.selectbox(key="from-toolchain").set_value(older)
    app.selectbox(key="to-toolchain").set_value(newer)
    app.button[0].click().run()
    (figures,) = (one for one in frames(sound(app)) if "Figure" in one and "Worse" in one)
    (worse,) = (one for one in frames(app) if "After" in one)
    assert dict(zip(figures["Figure"], figures["Worse"], strict=True))["Registers"] == 4
    assert set(worse["After"]) == {255}
    app.selectbox(key="from-toolchain").set_value(newer)
    app.button[0].click().run()
    assert "name two toolchains" in " ".join(each.value for each in (*app.error, *app.text))
