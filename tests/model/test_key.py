"""Keys: complete, unambiguous, stable, and without any path."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_engine.cache.cache import Cache
from cache_engine.cache.selection import Selector
from cache_engine.compilers import COMPILERS
from cache_engine.compilers import contents as environment_module
from cache_engine.compilers import nvrtc as nvrtc_module
from cache_engine.compilers.contents import digests
from cache_engine.compilers.nvrtc import Nvrtc
from cache_engine.errors import UsageError
from cache_engine.kernels import source as source_module
from cache_engine.model import key as key_module
from cache_engine.model.fingerprint import ToolchainFingerprint
from cache_engine.model.gemm import MAX_DIMENSION, DType, GemmProblem, Layout, Mode, Scales, Specialisation
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.key import KeyPrefix, check_prefix, is_key, key_of
from tests.helpers import needs_host_compiler, require_triton

TEXT = st.text(min_size=1, max_size=6)
COMPONENTS = st.lists(st.tuples(TEXT, TEXT), max_size=4).map(tuple)


@given(COMPONENTS, COMPONENTS)
def test_different_components_have_different_keys(one: Any, other: Any) -> None:
    """Length prefixes: no way of cutting the same text differently gives the same key."""
    assert (key_of(one) == key_of(other)) == (one == other)


@given(st.lists(st.tuples(TEXT, TEXT), max_size=3), st.dictionaries(TEXT, TEXT | st.integers(), max_size=4))
def test_a_key_from_a_prefix_is_the_key_of_all_its_components(prefix: Any, constants: Any) -> None:
    hashed = KeyPrefix(prefix)
    assert hashed.key(constants) == key_of(hashed.with_constants(constants))


def test_a_key_stays_the_same_across_versions_of_this_program() -> None:
    """Were this to change, every store in the world would go cold: raise SCHEMA only knowingly."""
    prefix = KeyPrefix((("family", "simt"), ("arch", "sm_90")))
    text = b"6:schema1:16:family4:simt4:arch5:sm_901:N3:128"
    assert prefix.key({"N": 128}) == hashlib.sha256(text).hexdigest()


@pytest.mark.parametrize("unknown", [None, "", 1.5, b"bytes"])
def test_a_component_that_cannot_be_observed_is_refused(unknown: Any) -> None:
    with pytest.raises(ValueError, match="cannot be keyed"):
        KeyPrefix((("compiler_build", unknown),))


PROBLEM = GemmProblem(4096, 7168, 2048, arch="sm_90")
CONFIG = KernelConfig(64, 64, 32, 2, 2, 4)


def _key(cache: Cache, problem: GemmProblem = PROBLEM, config: KernelConfig = CONFIG) -> str:
    return cache.select(problem, config=config).key


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"n": 7176}, id="n"),
        pytest.param({"k": 2056}, id="k"),
        pytest.param({"dtype": DType.FP16}, id="dtype"),
        pytest.param({"out_dtype": DType.FP32}, id="out dtype"),
        pytest.param({"layout": Layout.NN}, id="layout of B"),
        pytest.param({"layout": Layout.TT}, id="layout of A"),
        pytest.param({"arch": "sm_90a"}, id="target"),
        pytest.param({"arch": "sm_80"}, id="older target"),
        pytest.param({"specialisation": Specialisation.EXACT}, id="exact"),
        pytest.param({"specialisation": Specialisation.BUCKETED}, id="bucketed"),
        pytest.param({"specialisation": Specialisation.DYNAMIC}, id="dynamic"),
        pytest.param({"opt_level": 2}, id="level of optimisation"),
        pytest.param({"fast_math": True}, id="fast math"),
    ],
)
def test_a_problem_that_compiles_to_other_bytes_has_another_key(cache: Cache, change: dict[str, Any]) -> None:
    assert _key(cache, replace(PROBLEM, **change)) != _key(cache)


def test_scales_change_the_key(cache: Cache) -> None:
    """Of each kind; and a problem without them has the constants that it had before there were any."""
    plain = GemmProblem(16, 256, 512, dtype="fp8_e4m3", arch="sm_90")
    keys = {cache.select(replace(plain, scales=scales)).key for scales in Scales}
    assert len(keys) == len(Scales)
    labels = {"KERNEL_NAME", "IN_TYPE", "SUM_TYPE", "OUT_TYPE", "BLOCK_M", "BLOCK_N", "BLOCK_K", "WARPS_M", "WARPS_N"}
    labels |= {"STAGES", "SPLIT_K", "RASTER_ROWS", "N", "K", "A_TRANSPOSED", "B_TRANSPOSED", "A_VECTOR", "B_VECTOR"}
    labels |= {"C_VECTOR", "WITH_ALPHA", "WITH_BETA", "WITH_BIAS", "ACTIVATION"}
    assert set(cache.select(plain).constants) == labels


def test_the_mode_changes_the_key_and_the_number_of_groups_does_not(cache: Cache) -> None:
    plain = GemmProblem(256, 256, 512, 8, arch="sm_90")
    config = KernelConfig(64, 64, 32, 2, 2, 4)
    keys = {mode: _key(cache, replace(plain, mode=mode), config) for mode in Mode}
    assert len(set(keys.values())) == len(Mode)
    for mode in (Mode.GROUPED, Mode.MASKED):
        assert _key(cache, replace(plain, mode=mode, m=40, batch=3), config) == keys[mode]
    assert "MASKED" not in cache.select(plain).constants


def test_the_template_of_tensor_core_is_that_of_every_kernel_in_stores() -> None:
    """Its text may be divided into files, but not changed unless all its kernels are to be compiled again."""
    assert source_module.template_digest("tensor_core.cu").startswith("095d3873715ac4f3")


@pytest.mark.parametrize("field", ["block_m", "block_n", "block_k", "stages"])
def test_every_field_of_the_config_changes_the_key(cache: Cache, field: str) -> None:
    doubled = replace(CONFIG, **{field: getattr(CONFIG, field) * 2 if field != "stages" else 3})
    assert _key(cache, config=doubled) != _key(cache)


@pytest.mark.parametrize("change", [{"warps_m": 4}, {"warps_n": 4}], ids=["warps_m", "warps_n"])
def test_the_warps_change_the_key(cache: Cache, change: dict[str, int]) -> None:
    assert _key(cache, config=replace(CONFIG, **change)) != _key(cache)


@pytest.mark.parametrize("change", [{"m": 1}, {"batch": 3}], ids=["m", "batch"])
def test_a_size_passed_as_an_argument_does_not_change_the_key(cache: Cache, change: dict[str, Any]) -> None:
    assert _key(cache, replace(PROBLEM, **change)) == _key(cache)


def test_m_changes_the_key_where_it_sets_the_width_of_reads(cache: Cache) -> None:
    """A stored k × m is read along m, eight elements at a time only if m is a multiple of eight."""
    transposed = replace(PROBLEM, layout=Layout.TN)
    assert _key(cache, replace(transposed, m=4104)) == _key(cache, transposed)
    assert _key(cache, replace(transposed, m=4097)) != _key(cache, transposed)


SPECIALISED = [
    # specialisation, layout, what changes, whether that is another key
    pytest.param(Specialisation.EXACT, Layout.NT, {"m": 4095}, True, id="exact: m"),
    pytest.param(Specialisation.EXACT, Layout.NT, {"batch": 3}, False, id="exact: batch"),
    pytest.param(Specialisation.BUCKETED, Layout.NT, {"m": 2049}, False, id="bucketed: m, the bucket's first"),
    pytest.param(Specialisation.BUCKETED, Layout.NT, {"m": 2048}, True, id="bucketed: m, of the bucket before"),
    pytest.param(Specialisation.BUCKETED, Layout.NT, {"m": 4097}, True, id="bucketed: m, of the next bucket"),
    pytest.param(Specialisation.BUCKETED, Layout.NT, {"n": 7176}, True, id="bucketed: n"),
    pytest.param(Specialisation.BUCKETED, Layout.TN, {"m": 4088}, False, id="bucketed: m, as aligned"),
    pytest.param(Specialisation.BUCKETED, Layout.TN, {"m": 4095}, True, id="bucketed: m, less aligned"),
    pytest.param(Specialisation.DYNAMIC, Layout.NT, {"m": 3, "n": 8, "k": 64, "batch": 9}, False, id="dynamic: sizes"),
    pytest.param(Specialisation.DYNAMIC, Layout.NT, {"k": 2052}, True, id="dynamic: narrower reads along k"),
    pytest.param(Specialisation.DYNAMIC, Layout.NT, {"n": 7167}, True, id="dynamic: narrower writes along n"),
    pytest.param(Specialisation.DYNAMIC, Layout.NN, {"n": 7164}, True, id="dynamic: narrower reads along n"),
    pytest.param(Specialisation.DYNAMIC, Layout.TN, {"m": 4098}, True, id="dynamic: narrower reads along m"),
    pytest.param(Specialisation.DYNAMIC, Layout.TN, {"k": 3}, False, id="dynamic: k, along which nothing is read"),
]


@pytest.mark.parametrize(("specialisation", "layout", "change", "differs"), SPECIALISED)
@pytest.mark.parametrize("compiler", ["nvrtc", "triton"])
def test_a_kernel_is_shared_by_the_problems_it_serves_and_no_others(
    cache: Cache, compiler: str, specialisation: Specialisation, layout: Layout, change: dict[str, int], differs: bool
) -> None:
    """The config is chosen here too: it must not come apart where the kernel is to be shared."""
    if compiler == "triton":
        require_triton()
    problem = replace(PROBLEM, layout=layout, specialisation=specialisation)
    other = replace(problem, **change)  # type: ignore[arg-type]
    assert (cache.select(problem, compiler=compiler).key != cache.select(other, compiler=compiler).key) == differs


@pytest.mark.parametrize("specialisation", Specialisation)
def test_the_largest_sizes_have_keys(cache: Cache, specialisation: Specialisation) -> None:
    """Also where the sizes that a config is chosen for would be beyond what a problem may have."""
    problem = GemmProblem(MAX_DIMENSION // 2 + 1, 100_000, 64, arch="sm_90", specialisation=specialisation)
    assert is_key(cache.select(problem).key)


def _other_version(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = COMPILERS["nvrtc"].fingerprint()
    other = msgspec.structs.replace(seen, version="99.9")
    monkeypatch.setattr(type(COMPILERS["nvrtc"]), "fingerprint", lambda self: other)


def _other_build(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = COMPILERS["nvrtc"].fingerprint()
    other = ToolchainFingerprint(seen.compiler, seen.version, "another build")
    monkeypatch.setattr(type(COMPILERS["nvrtc"]), "fingerprint", lambda self: other)


def _other_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(COMPILERS["nvrtc"]), "flags", ("--use_fast_math",))


def _other_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_module, "SCHEMA", "2")


def _other_included_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """One character more in a file that the template includes."""
    whole = source_module._with_includes
    monkeypatch.setattr(source_module, "_with_includes", lambda name, files: whole(name, files) + " ")
    source_module._text.cache_clear()


def _other_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that NVRTC reads. It is looked at once in a process, by a compiler that has not been asked yet."""
    monkeypatch.setenv("NV_NVVM_VERSION", "nvvm-latest")
    environment_module.environment_of_nvrtc.cache_clear()
    other = Nvrtc().fingerprint()
    monkeypatch.setattr(type(COMPILERS["nvrtc"]), "fingerprint", lambda self: other)


def _other_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """One byte of the library, of another content and so of another digest."""
    monkeypatch.setattr(nvrtc_module, "digests", lambda paths: ("0" * 64, digests(paths)[1]))
    other = Nvrtc().fingerprint()
    monkeypatch.setattr(type(COMPILERS["nvrtc"]), "fingerprint", lambda self: other)


def _other_companion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc_module, "digests", lambda paths: (digests(paths)[0], "0" * 64))
    other = Nvrtc().fingerprint()
    monkeypatch.setattr(type(COMPILERS["nvrtc"]), "fingerprint", lambda self: other)


@pytest.mark.parametrize(
    "change",
    [
        _other_version,
        _other_build,
        _other_library,
        _other_companion,
        _other_environment,
        _other_flags,
        _other_schema,
        _other_included_file,
    ],
    ids=lambda f: f.__name__,
)
def test_every_part_of_the_toolchain_changes_the_key(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, change: Callable[[pytest.MonkeyPatch], None]
) -> None:
    before = _key(cache)
    change(monkeypatch)
    try:
        cache.selector = Selector()  # as in another process
        assert _key(cache) != before
    finally:
        monkeypatch.undo()
        source_module._text.cache_clear()
        environment_module.environment_of_nvrtc.cache_clear()


@pytest.mark.parametrize("compiler", ["nvrtc", pytest.param("nvcc", marks=needs_host_compiler), "triton"])
def test_in_a_clean_environment_a_key_has_these_components_and_no_others(cache: Cache, compiler: str) -> None:
    """That of the environment is there only where a variable is set: no store goes cold for having it."""
    if compiler == "triton":
        require_triton()
    components = cache.select(PROBLEM, compiler=compiler).prefix.components
    labels = ["schema", "family", "template", "compiler", "compiler_version", "compiler_build", "flags", "arch"]
    assert [label for label, _ in components] == labels


def test_no_component_holds_a_path(cache: Cache) -> None:
    """So that a store can be moved, and shared between machines."""
    selection = cache.select(PROBLEM)
    for label, value in selection.prefix.with_constants(selection.constants):
        assert os.sep not in value, label


@pytest.mark.parametrize("text", ["", "abc", "xyz1", "g" * 8, "a" * 65, "../../etc", "ABC", None, 0xABCD])
def test_an_invalid_key_prefix_is_refused(text: Any) -> None:
    with pytest.raises(UsageError, match="hexadecimal"):
        check_prefix(text)


def test_a_key_may_be_typed_in_capitals_and_cut_short() -> None:
    assert check_prefix(" ABCD12 ") == "abcd12"
    assert is_key("0" * 64)
    assert not is_key("0" * 63)
