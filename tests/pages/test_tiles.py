"""The drawing of a kernel's tiles, and its table."""

from __future__ import annotations

import re
from itertools import pairwise

import msgspec
import pytest

from cache_engine.insight.inspection import block_threads, level_table, levels
from cache_engine.insight.report.drawing import alone, tiles
from cache_engine.model.artifact import Record
from cache_engine.model.kernel import MAX_TILE, KernelConfig
from tests.pages.opening import a_record


def record_with(config: KernelConfig, family: str = "tensor_core", dtype: str = "bf16") -> Record:
    record = a_record()
    problem = msgspec.structs.replace(record.problem, m=1000, n=512, k=7168, dtype=dtype)
    return msgspec.structs.replace(record, config=config, family=family, problem=problem)


def words_of(drawn: str) -> list[str]:
    """The texts of a drawing, without those of its marks."""
    return re.findall(r"<text [^>]*>(.*?)</text>", drawn)


CONFIG = KernelConfig(128, 256, 64, 2, 4, 3, split_k=4)


@pytest.mark.parametrize(
    ("family", "dtype", "innermost"),
    [
        ("tensor_core", "bf16", ("mma", 16, 8, 16)),
        ("tensor_core", "fp8_e4m3", ("mma", 16, 8, 32)),
        ("tensor_core", "tf32", ("mma", 16, 8, 8)),
        ("simt", "fp32", ("Lane", 16, 8, 1)),
        ("triton", "bf16", ("Block", 128, 256, 64)),
        ("<b>", "bf16", ("Block", 128, 256, 64)),
        ("tensor_core", "<b>", ("Warp", 64, 64, 64)),
    ],
)
def test_levels_go_as_deep_as_the_template_fixes_them(
    family: str, dtype: str, innermost: tuple[str, int, int, int]
) -> None:
    last = levels(record_with(CONFIG, family, dtype))[-1]
    assert (last.name, int(last.m), int(last.n), last.k) == innermost


def test_each_level_fills_the_one_above() -> None:
    for family in ("tensor_core", "simt"):
        chain = levels(record_with(CONFIG, family))
        for outer, inner in pairwise(chain):
            assert (inner.m * inner.along_m, inner.n * inner.along_n) == (outer.m, outer.n)


def test_warp_groups_of_a_hopper_kernel_stand_over_its_tile() -> None:
    for config, group in (
        (KernelConfig(256, 128, 64, 8, 1, 4), (128, 128)),
        (KernelConfig(64, 256, 64, 4, 2, 5), (64, 128)),
    ):
        record = record_with(config, "hopper")
        chain = levels(record)
        assert [one.name for one in chain] == ["Block", "Warp group", "wgmma"]
        assert (int(chain[1].m), int(chain[1].n)) == group
        assert (int(chain[2].m), int(chain[2].n), chain[2].k) == (64, group[1], 16)
        assert all((low.m * low.along_m, low.n * low.along_n) == (up.m, up.n) for up, low in pairwise(chain))
        assert "tiles × batch 1" in level_table(record)[0]["Count"]
        assert block_threads(record) == 384


def test_a_cluster_is_named_and_its_grid_is_whole_pairs() -> None:
    record = record_with(KernelConfig(128, 256, 64, 8, 1, 4, cluster=2), "hopper")
    record = msgspec.structs.replace(record, problem=msgspec.structs.replace(record.problem, m=1100))
    count = level_table(record)[0]["Count"]
    assert count == "10 × 2 tiles, in clusters of 2 that share B × batch 1; 112 steps of 64"
    assert "cluster of 2 blocks, one below the other, shares B" in words_of(tiles(record))
    assert "cluster" not in tiles(record_with(KernelConfig(128, 256, 64, 8, 1, 4), "hopper"))


def test_the_table_shows_the_grid_and_the_split() -> None:
    grid, block, warp, _ = level_table(record_with(CONFIG))
    assert grid["Count"] == "8 × 2 blocks × 4 split-k slices × batch 1; 28 steps of 64"
    assert (block["Tile of C"], warp["Count"]) == ("128 × 256", "2 × 4 per block")


@pytest.mark.parametrize(
    ("mode", "m", "count"),
    [("grouped", 1000, "4 × 2 tiles (of even groups) × 2 groups"), ("masked", 1000, "8 × 2 tiles at most × 2 groups")],
)
def test_the_last_tile_of_a_group_may_be_a_part_of_one(mode: str, m: int, count: str) -> None:
    """500 rows of a group are 4 tiles of 128; 1,000 are 8."""
    record = record_with(KernelConfig(128, 256, 64, 2, 4, 3), "grouped")
    problem = msgspec.structs.replace(record.problem, mode=mode, batch=2, m=m)
    grid = level_table(msgspec.structs.replace(record, problem=problem))[0]
    assert grid["Count"] == f"{count}; 112 steps of 64"


def test_the_drawing_is_to_scale() -> None:
    drawn = tiles(record_with(CONFIG))
    sizes = [tuple(map(float, each)) for each in re.findall(r'<rect .*?width="(.*?)" height="(.*?)"', drawn)]
    scale = 300 / 256
    assert sizes == [(64 * scale, 128 * scale), (256 * scale, 64 * scale)] * 3 + [(256 * scale, 128 * scale)]
    assert {"Block 128 × 256 · Warp 64 × 64 · mma 16 × 8", "split-k over 4 blocks"} <= set(words_of(drawn))
    assert re.match(r"<svg [^>]*><style>.*--c0.*color-scheme: dark.*</style>", alone(drawn, "dark"), re.DOTALL)


def test_a_hopper_kernel_shows_who_fills_its_stages_and_who_empties_them() -> None:
    words = words_of(tiles(record_with(KernelConfig(256, 128, 64, 8, 1, 4), "hopper")))
    assert {"1 producer, TMA", "2 consumers, wgmma", "→ 4 stages →"} <= set(words)
    assert [word for word in words if word.startswith("Consumer ")] == ["Consumer 1", "Consumer 2"]
    others = words_of(tiles(record_with(CONFIG)))
    assert not any("producer" in word or "scales" in word for word in others)


def test_a_scaled_kernel_shows_what_shares_a_scale() -> None:
    for scales, of_b, count, borders in (
        ("1x128,128x128", "128 × 128", "1 scale", 1),  # those of A would hide it
        ("1x128,1x128,e8m0", "128 × 1", "64 scales", 0),
    ):
        record = record_with(KernelConfig(128, 64, 128, 2, 2, 3), "scaled", "fp8_e4m3")
        record = msgspec.structs.replace(record, problem=msgspec.structs.replace(record.problem, scales=scales))
        drawn = tiles(record)
        assert any(f"scales {of_b}" in word for word in words_of(drawn))
        assert drawn.count("<polyline") - tiles(record_with(record.config, "scaled")).count("<polyline") == borders
        rows = {row["Level"]: row["Count"] for row in level_table(record)}
        assert rows["Scales of A"] == "128 scales per step, of 1 × 128 elements each"
        assert rows["Scales of B"] == f"{count} per step, of {of_b} elements each"


@pytest.mark.parametrize(
    ("mode", "batch", "names", "count"),
    [
        ("grouped", 256, ["Group 1", "Group 2", "Group 3", "… Group 256"], 2),  # DeepSeek-V3's experts
        ("masked", 128, ["Group 1", "Group 2", "Group 3", "… Group 128"], 8 * 2),  # gpt-oss's
        ("masked", 4, ["Group 1", "Group 2", "Group 3", "Group 4"], 8 * 2),
        ("grouped", 2, ["Group 1", "Group 2"], 4 * 2),
    ],
)
def test_a_grouped_kernel_shows_how_blocks_walk_through_the_groups(
    mode: str, batch: int, names: list[str], count: int
) -> None:
    record = record_with(KernelConfig(128, 256, 64, 2, 4, 3), "grouped")
    record = msgspec.structs.replace(record, problem=msgspec.structs.replace(record.problem, mode=mode, batch=batch))
    figure, plain = tiles(record), tiles(record_with(record.config))
    words = words_of(figure)
    assert [word for word in words if "Group " in word] == names
    assert any(word.startswith(f"{count} tiles each, if rows are even") for word in words)
    colours = re.findall(r'<rect .*?fill="(.*?)"', figure)[plain.count("<rect") :]
    assert len(colours) == len(names) * min(count, 8)
    # Tiles are taken in turn, across groups: the first of group 2 is the next block's.
    assert colours[min(count, 8)] == colours[0 if count % 3 == 0 else count % 3], "three blocks"
    assert len(set(colours)) == min(3, len(colours))


def test_an_extreme_config_is_drawn_quickly() -> None:
    """A record made up by someone else, with the largest numbers that one may hold."""
    for family in ("tensor_core", "hopper", "scaled", "grouped"):
        record = record_with(KernelConfig(*[MAX_TILE] * 7), family)
        record = msgspec.structs.replace(record, problem=msgspec.structs.replace(record.problem, scales="1x128,1x128"))
        if family == "grouped":
            huge = msgspec.structs.replace(record.problem, mode="masked", m=2**60, n=2**60, batch=2**60)
            record = msgspec.structs.replace(record, problem=huge)
        assert len(tiles(record)) < 100_000
