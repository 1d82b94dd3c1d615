"""Kernels are stale exactly when cleaning says so, and the reason is given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cache_engine.cache.cache import Cache, open_cache
from cache_engine.compilers import COMPILERS
from cache_engine.errors import CompilerMissing
from cache_engine.index import queries
from cache_engine.insight.toolchains import PRESENT, STALE, UNKNOWN, Made, made_by_toolchain
from cache_engine.model.artifact import Record
from cache_engine.model.fingerprint import ToolchainFingerprint
from cache_engine.store.codec import encode_record
from cache_engine.upkeep.plan import Limits
from tests.helpers import record_file


@pytest.fixture
def cache(compiled_store: Path) -> Iterator[Cache]:
    with open_cache(compiled_store) as opened:
        yield opened


def _made(cache: Cache) -> list[Made]:
    cache.index.sync(rebuild=True)
    with cache.index.read() as connection:
        return made_by_toolchain(cache, queries.made_with(connection))


def _changed(cache: Cache, **components: str) -> Record:
    """One of the records, as if it had been made with other components than it was; it stays where it is."""
    record = next(record for record in cache.records() if record.family == "tensor_core")
    labelled = tuple((label, components.get(label, value)) for label, value in record.components)
    record = msgspec.structs.replace(
        record, components=labelled, compiler_version=components.get("compiler_version", record.compiler_version)
    )
    record_file(cache.store, record.key).write_bytes(encode_record(record))  # type: ignore[arg-type]
    return record


def _as_cleaning_sees_it(cache: Cache) -> int:
    return len(cache.admin.plan_cleaning(Limits(stale_toolchain=True)).victims)


def test_a_kernel_compiled_here_is_of_the_present_toolchain(cache: Cache) -> None:
    (made,) = _made(cache)
    here = COMPILERS["nvrtc"].fingerprint()
    assert (made.state, made.changed) == (PRESENT, ())
    assert (made.compiler, made.version, made.build) == ("nvrtc", here.version, here.build)
    assert (made.entries, sorted(made.archs)) == (4, ["sm_75", "sm_80", "sm_90"])
    assert (sorted(made.families), sorted(made.dtypes)) == (["simt", "tensor_core"], ["bf16", "fp16", "fp32"])
    assert made.hits == 1
    assert _as_cleaning_sees_it(cache) == 0


@pytest.mark.parametrize(
    ("components", "why"),
    [
        ({"compiler_version": "12.9"}, "nvrtc is {version} here"),
        ({"compiler_build": "another"}, "another build of {version}"),
        ({"template": "0" * 64}, "the template of tensor_core"),
        ({"flags": "-O0"}, "the compiler's flags"),
        ({"schema": "0"}, "how keys are made"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_changes_are_shown(cache: Cache, components: dict[str, str], why: str) -> None:
    _changed(cache, **components)
    present, stale = _made(cache)
    assert (present.state, present.entries, stale.state, stale.entries) == (PRESENT, 3, STALE, 1)
    assert stale.changed == (why.format(version=COMPILERS["nvrtc"].fingerprint().version),)
    assert _as_cleaning_sees_it(cache) == 1


def test_a_changed_compiler_makes_everything_stale(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    here = COMPILERS["nvrtc"].fingerprint()
    newer = msgspec.structs.replace(here, version="99.0", build="newer")
    monkeypatch.setattr(COMPILERS["nvrtc"], "fingerprint", lambda: newer)
    (made,) = _made(cache)
    assert (made.state, made.changed, made.version) == (STALE, ("nvrtc is 99.0 here",), here.version)
    assert _as_cleaning_sees_it(cache) == 4


def test_kernels_of_another_environment_are_stale(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    other = msgspec.structs.replace(COMPILERS["nvrtc"].fingerprint(), environment="NV_NVVM_VERSION=" + "0" * 32)
    monkeypatch.setattr(COMPILERS["nvrtc"], "fingerprint", lambda: other)
    (made,) = _made(cache)
    assert (made.state, made.changed) == (STALE, ("environment variables that nvrtc reads",))
    assert _as_cleaning_sees_it(cache) == 4


def test_without_its_compiler_a_kernel_is_not_judged(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> ToolchainFingerprint:
        raise CompilerMissing("not installed")

    monkeypatch.setattr(COMPILERS["nvrtc"], "fingerprint", missing)
    (made,) = _made(cache)
    assert (made.state, made.changed) == (UNKNOWN, ())
    assert _as_cleaning_sees_it(cache) == 0


@pytest.mark.parametrize("field", ["family", "compiler", "arch"])
def test_a_record_made_up_does_not_stop_the_rest(cache: Cache, field: str) -> None:
    record = next(cache.records())
    strange: dict[str, Any] = {field: ""}
    forged = msgspec.structs.replace(record, **strange)
    record_file(cache.store, record.key).write_bytes(encode_record(forged))  # type: ignore[arg-type]
    assert {made.state: made.entries for made in _made(cache)} == {PRESENT: 3, STALE: 1}
