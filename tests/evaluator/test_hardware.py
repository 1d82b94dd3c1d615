"""Hardware descriptions: what they accept, what they refuse, and how two of them differ."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from cache_engine.errors import InvalidHardware
from cache_engine.evaluator.chips import load_hardware
from cache_engine.evaluator.hardware import PRESETS, Hardware

CHIP = PRESETS["SG2262"]
PLAIN = CHIP.to_dict()


def without(name: str) -> dict[str, Any]:
    return {field: value for field, value in PLAIN.items() if field != name}


@pytest.mark.parametrize(("name", "tflops"), [("SG2260E", 768), ("SG2261", 256), ("SG2262", 384)])
def test_presets_have_the_peak_of_their_configuration(name: str, tflops: float) -> None:
    assert math.isclose(PRESETS[name].peak_flops, tflops * 1e12, rel_tol=1e-12)
    assert load_hardware(name.lower()) is PRESETS[name]


@pytest.mark.parametrize("field", fields(Hardware), ids=lambda field: field.name)
def test_changing_any_field_changes_the_fingerprint(field: Any) -> None:
    value = getattr(CHIP, field.name)
    changed: Any = (
        value + 1 if isinstance(value, int) else value * (1 - 2**-50) if isinstance(value, float) else "other"
    )
    changed = (("int8", 2.0),) if field.name == "rates" else changed
    assert changed != value
    assert replace(CHIP, **{field.name: changed}).fingerprint() != CHIP.fingerprint()
    assert replace(CHIP).fingerprint() == CHIP.fingerprint()


@pytest.mark.parametrize("field", sorted(PLAIN))
def test_a_missing_field_is_named(field: str) -> None:
    with pytest.raises(InvalidHardware, match=f"lacks the field {field}"):
        Hardware.from_dict(without(field))


@pytest.mark.parametrize("value", [0, -1, "many", None, True, float("nan"), float("inf"), [], 10**30])
@pytest.mark.parametrize("field", sorted(set(PLAIN) - {"name", "compute_dma_overlap"}))
def test_a_value_that_cannot_be_is_named(field: str, value: object) -> None:
    with pytest.raises(InvalidHardware, match=f"{field} is"):
        Hardware.from_dict({**PLAIN, field: value})


def test_odd_values_are_refused() -> None:
    overlaps: tuple[Any, ...] = (-0.1, 1.1, "half", float("nan"))
    for overlap in overlaps:
        with pytest.raises(InvalidHardware, match="compute_dma_overlap is"):
            replace(CHIP, compute_dma_overlap=overlap)
    assert replace(CHIP, compute_dma_overlap=0).compute_dma_overlap == 0
    for name in ("", "a\nb", 7, "x" * 101):
        with pytest.raises(InvalidHardware, match="name is"):
            replace(CHIP, name=name)  # type: ignore[arg-type]
    with pytest.raises(InvalidHardware, match=r"cube_m is 2\.5"):
        replace(CHIP, cube_m=2.5)  # type: ignore[arg-type]
    with pytest.raises(InvalidHardware, match="unknown field 'cores'"):
        Hardware.from_dict({**PLAIN, "cores": 3})
    with pytest.raises(InvalidHardware, match="no JSON object"):
        Hardware.from_dict([1])


def test_the_clock_follows_from_the_peak_and_must_not_contradict_it() -> None:
    peak = CHIP.peak_flops
    assert Hardware.from_dict({**without("freq_ghz"), "peak_flops": peak}) == CHIP
    assert Hardware.from_dict({**PLAIN, "peak_flops": peak}) == CHIP
    with pytest.raises(InvalidHardware, match="contradict"):
        Hardware.from_dict({**PLAIN, "peak_flops": peak * 2})
    with pytest.raises(InvalidHardware, match="peak_flops is -1"):
        Hardware.from_dict({**without("freq_ghz"), "peak_flops": -1})


def test_a_file_may_have_the_names_of_the_reference_evaluator(tmp_path: Path) -> None:
    path = tmp_path / "chip.json"
    renamed = ("sram_bytes", "dram_bandwidth", "compute_dma_overlap")
    theirs = {name: value for name, value in PLAIN.items() if name not in renamed}
    theirs |= {"sram_size_bytes": 2**21, "dram_bandwidth_bytes": 12e12, "compute_dma_overlap_rate": 0.8}
    theirs |= {"eu_num": 512, "intra_bw": 448e9, "comm_latency": {"chip_to_chip_us": 0.2}}
    path.write_text(json.dumps(theirs))
    assert load_hardware(path) == CHIP
    for name in ("sram_kb", "sram_size_kb"):
        kept = {field: value for field, value in theirs.items() if field not in ("sram_size_bytes", "name")}
        path.write_text(json.dumps({**kept, name: 2048, "chip_type": "SG2262"}))
        assert load_hardware(path) == CHIP
    path.write_text(json.dumps({**theirs, "sram_bytes": 2**21}))
    with pytest.raises(InvalidHardware, match=r"chip\.json has sram_size_bytes and another name.*sram_bytes"):
        load_hardware(path)
    path.write_text(json.dumps({**theirs, "sram_size_bytes": "2M"}))
    with pytest.raises(InvalidHardware, match="sram_bytes is '2M'"):
        load_hardware(path)


def test_a_file_describes_hardware(tmp_path: Path) -> None:
    path = tmp_path / "chip.json"
    path.write_text(json.dumps({**PLAIN, "name": "Mine"}))
    assert load_hardware(path) == replace(CHIP, name="Mine")
    path.write_text(json.dumps({**PLAIN, "sram_bytes": -5}))
    with pytest.raises(InvalidHardware, match=r"chip\.json: sram_bytes is -5"):
        load_hardware(path)
    for text in ("", "{", "[" * 100_000, "\x00", "7"):
        path.write_text(text)
        with pytest.raises(InvalidHardware, match=r"chip\.json"):
            load_hardware(path)
    for none in (tmp_path / "none.json", tmp_path, "H9000", "a\0b", ""):
        with pytest.raises(InvalidHardware):
            load_hardware(none)
