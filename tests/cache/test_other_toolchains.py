"""Kernels that another build of the compiler made: served only where that is asked for, and only as their key says."""

from __future__ import annotations

import json
import os
import re
import shutil
import site
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cache_engine.cache import selection as selection_module
from cache_engine.cache.cache import Cache, open_cache
from cache_engine.cache.other_toolchains import MOST_TOOLCHAINS, STORE, OtherToolchains
from cache_engine.cache.selection import INSTALLED
from cache_engine.compilers import COMPILERS, nvrtc
from cache_engine.compilers.contents import package_files
from cache_engine.errors import CompilerMissing, NotCached, PackUnusable, StoreUnusable, UsageError
from cache_engine.gpu import probe
from cache_engine.kernels.select import ranking
from cache_engine.model.artifact import SECTIONS, Artifact, Record
from cache_engine.model.fingerprint import Provenance
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.key import CacheKey, key_of
from cache_engine.settings import Settings
from cache_engine.store.disk import DiskStore
from cache_engine.store.pack import Pack
from cache_engine.store.signatures.signers import SigningKey
from cache_engine.team import worker
from cache_engine.team.broker import CompileMessage
from cache_engine.upkeep.plan import Limits
from tests.cli.test_cli import document
from tests.conftest import SAMPLE
from tests.helpers import INVENTED_GPU, blob_file, invented_timing, make_store, patch_in_place
from tests.trust.keys import Builder, signers_file

PROBLEM = SAMPLE[3]
FORMATS = Path(__file__).parent.parent / "formats"


@pytest.fixture(scope="module")
def patched_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of NVRTC of which one byte is another."""
    (library,) = package_files("lib/libnvrtc.so.*")
    folder = tmp_path_factory.mktemp("nvrtc")
    for path in library.parent.glob("libnvrtc*.so*"):
        shutil.copyfile(path, folder / path.name)
    patch_in_place(folder / library.name)
    return folder / library.name


@pytest.fixture
def another_build(patched_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVRTC here is another build than the one that made the sample."""
    monkeypatch.setattr(nvrtc, "package_files", lambda *_: iter([patched_library]))
    made_it = COMPILERS["nvrtc"].fingerprint()
    monkeypatch.setitem(COMPILERS._made, "nvrtc", nvrtc.Nvrtc())
    assert COMPILERS["nvrtc"].fingerprint().build != made_it.build


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVRTC is not installed here."""
    monkeypatch.setattr(nvrtc, "_libraries", lambda version: iter(()))
    monkeypatch.setitem(COMPILERS._made, "nvrtc", nvrtc.Nvrtc())


def _remade(source: DiskStore, target: DiskStore, record: Record, build: str) -> CacheKey:
    """Publishes a kernel as another build of its compiler would have made it; returns its key."""
    components = tuple((label, build if label == "compiler_build" else value) for label, value in record.components)
    key = key_of(components)
    sections = {name: source.section(record, name) for name in SECTIONS}
    artifact = Artifact(**sections, resources=record.resources)
    target.publish(
        key, artifact, lambda blob: msgspec.structs.replace(record, key=key, components=components, blob=blob)
    )
    return key


@pytest.fixture
def older(compiled_store: Path, tmp_path: Path) -> Path:
    """A pack of the sample as another build of the installed NVRTC would have made it."""
    store = make_store(tmp_path / "older")
    with open_cache(compiled_store) as source:
        for record in source.records():
            _remade(source.store, store, record, "another build")
    with open_cache(tmp_path / "older") as cache:
        cache.admin.export(tmp_path / "older.gemmpack")
    return tmp_path / "older.gemmpack"


@pytest.mark.parametrize("asked", [{}, {"wait_ms": 0}])
def test_a_pack_of_another_build_serves_although_its_kernel_could_be_compiled(
    older: Path, tmp_path: Path, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``wait_ms``, which is for callers who want a better kernel later, the installed compiler's comes behind."""
    with open_cache(tmp_path / "new", packs=(older,)) as cache:
        with monkeypatch.context() as patched:
            patched.setattr(nvrtc.Nvrtc, "compile", lambda *_: pytest.fail("a kernel was compiled"))
            kernel = cache.get_or_compile(PROBLEM)
            assert (kernel.tier, kernel.toolchain_from, kernel.better) == ("pack", "pack older.gemmpack", None)
        kernel = cache.get_or_compile(PROBLEM, **asked)
        assert kernel.toolchain_from == "pack older.gemmpack"
        if asked:
            assert kernel.better is not None
            assert kernel.better.wait(60)
        else:
            cache.get_or_compile(PROBLEM, force=True)
        after = cache.get_or_compile(PROBLEM, **asked)
        assert (after.tier, after.toolchain_from, after.better) == ("memory", INSTALLED, None)
    with open_cache(tmp_path / "new", packs=(older,), memory_bytes=0) as cache:
        assert cache.get_or_compile(PROBLEM).toolchain_from == INSTALLED
        cache.store.delete(after.key)
        assert cache.get_or_compile(PROBLEM).toolchain_from == "pack older.gemmpack"


def test_a_kernel_that_another_process_compiled_serves_in_place_of_a_packs(older: Path, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"dir": tmp_path / "new", "packs": (older,)}
    with open_cache(**asked) as cache, open_cache(**asked) as another:
        assert cache.get_or_compile(PROBLEM).toolchain_from == "pack older.gemmpack"
        another.get_or_compile(PROBLEM, force=True)
        better = cache.get_or_compile(PROBLEM, wait_ms=0).better
        assert better is not None
        assert better.wait(60)
        assert better.kernel is not None
        assert (better.kernel.tier, cache.get_or_compile(PROBLEM).toolchain_from) == ("disk", INSTALLED)


def test_a_damaged_kernel_of_the_store_is_quarantined_although_a_pack_has_another(older: Path, tmp_path: Path) -> None:
    with open_cache(tmp_path / "new", packs=(older,)) as cache:
        key = cache.get_or_compile(PROBLEM, force=True).key
        blob_file(cache.store, key).write_bytes(b"damaged")
    with open_cache(tmp_path / "new", packs=(older,)) as cache:
        assert cache.get_or_compile(PROBLEM).tier == "compiled"
        assert len(cache.admin.quarantined()) == 1


@pytest.mark.parametrize(("driver", "source"), [("12.8", INSTALLED), ("14.0", "pack newer.gemmpack")])
def test_a_pack_of_a_newer_cuda_serves_only_where_the_driver_loads_it(
    compiled_store: Path, tmp_path: Path, driver: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(tmp_path / "newer")
    with open_cache(compiled_store) as cache:
        record = cache.find(cache.select(PROBLEM).key)
        newer = tuple((label, "14.0" if label == "compiler_version" else value) for label, value in record.components)
        _remade(cache.store, store, msgspec.structs.replace(record, components=newer, compiler_version="14.0"), "newer")
    with open_cache(tmp_path / "newer") as cache:
        cache.admin.export(tmp_path / "newer.gemmpack")
    monkeypatch.setattr(probe, "gpu", lambda: msgspec.structs.replace(INVENTED_GPU, driver=driver))
    with open_cache(tmp_path / "new", packs=(tmp_path / "newer.gemmpack",)) as cache:
        assert cache.select(PROBLEM).toolchain_from == source


def test_migrate_and_workers_of_a_farm_make_kernels_that_a_pack_has_of_another_build(
    older: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_cache(tmp_path / "new") as cache:
        asked = CompileMessage.of("0" * 32, cache.select(PROBLEM))
    monkeypatch.setenv("GEMM_CACHE_PACKS", str(older))
    assert document("store", "migrate", "--dry-run", store=tmp_path / "older")["to_compile"] == len(SAMPLE)
    key = SigningKey.read(Builder(tmp_path / "key").file)
    assert worker._Maker(Settings.load(dir=tmp_path / "new"), tmp_path.as_uri(), key.sign).checked(asked) == asked.key
    as_asked = Settings(toolchain="pack")
    assert as_asked.made_here() is as_asked


@pytest.mark.usefixtures("another_build")
def test_with_local_a_pack_of_another_build_serves_nothing(pack: Path, tmp_path: Path) -> None:
    with open_cache(tmp_path / "new", packs=(pack,), toolchain="local", enable_jit=False) as cache:
        selection = cache.select(PROBLEM)
        assert selection.is_compilable
        there = cache.selector.select_elsewhere(selection, cache.other_toolchains)
        assert there is not None
        with pytest.raises(NotCached, match=selection.key[:12]):
            cache.get_or_compile(PROBLEM)
        assert cache.stats().totals.misses == 1
    ways: tuple[dict[str, Any], ...] = ({}, {"toolchain": "pack"}, {"enable_jit": False})
    for asked in ways:
        with open_cache(tmp_path / "new", packs=(pack,), **asked) as cache:
            kernel = cache.get_or_compile(PROBLEM)
            assert (kernel.key, kernel.tier, kernel.toolchain_from) == (there.key, "pack", "pack kernels.gemmpack")
            assert cache.get_or_compile(PROBLEM).tier == "memory"
            assert kernel.key == kernel.record.key == key_of(kernel.record.components)
            assert cache.get_or_compile(PROBLEM).toolchain_from == "pack kernels.gemmpack"


@pytest.mark.usefixtures("another_build")
def test_nothing_but_the_identity_of_the_compiler_is_from_the_pack(
    pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another template, other flags, another target, size or level: each is a miss."""

    def misses(problem: GemmProblem = PROBLEM, **asked: Any) -> bool:
        with open_cache(tmp_path / "new", packs=(pack,), toolchain="pack", enable_jit=False, **asked) as cache:
            try:
                cache.get_or_compile(problem)
            except NotCached:
                return True
            return False

    assert not misses()
    assert misses(compiler_flags=("--use_fast_math",))
    assert misses(compiler_flags=("--fmad=false",))
    assert misses(replace(PROBLEM, arch="sm_80"))
    assert misses(replace(PROBLEM, n=PROBLEM.n + 16))
    assert misses(replace(PROBLEM, opt_level=2))
    monkeypatch.setattr(selection_module, "template_digest", lambda _: "another")
    assert misses()


def test_a_pack_made_with_other_flags_serves_no_lookup_without_them(tmp_path: Path) -> None:
    with open_cache(tmp_path / "fast", compiler_flags=("--use_fast_math",), durability="fast") as source:
        source.get_or_compile(PROBLEM)
        source.admin.export(tmp_path / "fast.gemmpack")
    asked: dict[str, Any] = {"packs": (tmp_path / "fast.gemmpack",), "toolchain": "pack", "enable_jit": False}
    with open_cache(tmp_path / "new", **asked) as cache, pytest.raises(NotCached):
        cache.get_or_compile(PROBLEM)
    with open_cache(tmp_path / "new", **asked, compiler_flags=("--use_fast_math",)) as cache:
        assert cache.get_or_compile(PROBLEM).tier == "pack"


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_packs_serve_and_a_miss_says_what_is_missing(pack: Path, tmp_path: Path) -> None:
    other = replace(PROBLEM, n=PROBLEM.n + 16)
    with open_cache(tmp_path / "new", packs=(pack,)) as cache:
        assert cache.get_or_compile(PROBLEM).toolchain_from == "pack kernels.gemmpack"
        with pytest.raises(CompilerMissing, match="pip install"):
            cache.get_or_compile(other)
        assert cache.stats().totals.misses == 1
    with open_cache(tmp_path / "new", packs=(pack,), toolchain="local") as cache, pytest.raises(CompilerMissing):
        cache.get_or_compile(PROBLEM)
    with open_cache(tmp_path / "new", packs=(pack,), enable_jit=False) as cache, pytest.raises(NotCached):
        cache.get_or_compile(other)
    with open_cache(tmp_path / "new", enable_jit=False) as cache, pytest.raises(CompilerMissing):
        cache.select(PROBLEM)


def test_a_compiler_that_is_installed_later_compiles_the_next_lookup(pack: Path, tmp_path: Path) -> None:
    other = replace(PROBLEM, n=PROBLEM.n + 16)
    with open_cache(tmp_path / "new", packs=(pack,), toolchain="pack") as cache:
        with pytest.MonkeyPatch.context() as gone:
            gone.setattr(nvrtc, "_libraries", lambda version: iter(()))
            gone.setitem(COMPILERS._made, "nvrtc", nvrtc.Nvrtc())
            with pytest.raises(CompilerMissing):
                cache.get_or_compile(other)
        assert cache.get_or_compile(other).tier == "compiled"


@pytest.mark.usefixtures("another_build")
def test_a_store_that_another_build_filled_serves_and_is_not_stale(compiled_store: Path) -> None:
    with open_cache(compiled_store) as cache:
        assert len(cache.admin.plan_cleaning(Limits(stale_toolchain=True)).victims) == len(SAMPLE)
    with open_cache(compiled_store, toolchain="pack") as cache:
        kernel = cache.get_or_compile(PROBLEM)
        assert (kernel.tier, kernel.toolchain_from) == ("disk", STORE)
        assert cache.admin.plan_cleaning(Limits(stale_toolchain=True)).victims == ()
    with open_cache(compiled_store, toolchain="pack", compiler_flags=("--use_fast_math",)) as cache:
        stale = cache.admin.plan_cleaning(Limits(stale_toolchain=True)).victims
        assert stale == (), "a problem can ask for no fast math"
    with open_cache(compiled_store, toolchain="pack", compiler_flags=("--ftz=true",)) as cache:
        assert len(cache.admin.plan_cleaning(Limits(stale_toolchain=True)).victims) == len(SAMPLE)


def test_a_kernel_compiled_here_never_has_a_key_of_another_build(compiled_store: Path, tmp_path: Path) -> None:
    """Also when the entry of another build was there at the last lookup, and is gone."""
    elsewhere = make_store(tmp_path / "elsewhere")
    with open_cache(compiled_store) as source:
        record = source.find(source.select(PROBLEM).key)
        key = _remade(source.store, elsewhere, record, "another build")
    with open_cache(tmp_path / "elsewhere", toolchain="pack", memory_bytes=0) as cache:
        assert cache.get_or_compile(PROBLEM).key == key
        assert cache.get_or_compile(PROBLEM, force=True).key == record.key
        cache.store.delete(CacheKey(record.key))
        cache.store.delete(key)
        kernel = cache.get_or_compile(PROBLEM)
        assert (kernel.tier, kernel.key, kernel.toolchain_from) == ("compiled", record.key, INSTALLED)
        assert cache.get_or_compile(PROBLEM).tier == "disk"


def test_where_the_entry_of_one_build_is_damaged_another_serves(compiled_store: Path, tmp_path: Path) -> None:
    elsewhere = make_store(tmp_path / "elsewhere")
    with open_cache(compiled_store) as source:
        record = source.find(source.select(PROBLEM).key)
        keys = [_remade(source.store, elsewhere, record, build) for build in ("one", "two")]
    with open_cache(tmp_path / "elsewhere", toolchain="pack", enable_jit=False, memory_bytes=0) as cache:
        first = cache.get_or_compile(PROBLEM).key
        blob_file(elsewhere, first).write_bytes(b"damaged")
        second = cache.get_or_compile(PROBLEM)
        assert (first in keys, second.key in keys, second.key == first) == (True, True, False)


def test_a_pack_of_several_builds_shows_them_and_serves_each(compiled_store: Path, tmp_path: Path) -> None:
    mixed = make_store(tmp_path / "mixed")
    with open_cache(compiled_store) as source:
        for number, problem in enumerate(SAMPLE):
            _remade(source.store, mixed, source.find(source.select(problem).key), f"build {number % 2}")
        a_kernel = source.find(source.select(PROBLEM).key)
        for number in range(MOST_TOOLCHAINS):  # of each no more than one kernel, which no lookup asks for
            rare = msgspec.structs.replace(a_kernel, components=(*a_kernel.components, ("MORE", "1")))
            _remade(source.store, mixed, rare, f"rare {number}")
    with open_cache(tmp_path / "mixed") as cache:
        cache.admin.export(tmp_path / "mixed.gemmpack")
    asked: dict[str, Any] = {"packs": (tmp_path / "mixed.gemmpack",), "enable_caching": "packs", "toolchain": "pack"}
    with open_cache(enable_jit=False, **asked) as cache:
        assert {cache.get_or_compile(problem).tier for problem in SAMPLE} == {"pack"}
        assert len(cache.other_toolchains.of_packs("nvrtc")) == MOST_TOOLCHAINS
    stated = Pack(tmp_path / "mixed.gemmpack").made_with
    assert sum(stated.values()) == len(SAMPLE) + MOST_TOOLCHAINS
    assert list(stated.values()) == sorted(stated.values(), reverse=True)


def test_where_the_compiler_is_installed_no_record_is_read_to_select(
    compiled_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when measurements choose, which must not choose what cannot be compiled."""
    monkeypatch.setattr(OtherToolchains, "of_store", lambda *_: pytest.fail("the store's records were read"))
    with open_cache(compiled_store, timings_of=INVENTED_GPU.name) as cache:
        configs = [config for _, config in ranking(SAMPLE[0], "tensor_core")][:2]
        cache.timings.add([invented_timing(SAMPLE[0], config, 20.0 - at) for at, config in enumerate(configs)])
        selection = cache.select(SAMPLE[0])
        assert (selection.config, selection.config_from[:8]) == (configs[1], "measured")


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_measurements_choose_among_the_kernels_of_a_store(compiled_store: Path) -> None:
    with open_cache(compiled_store, timings_of=INVENTED_GPU.name) as cache:
        configs = [config for _, config in ranking(SAMPLE[0], "tensor_core")][:2]
        cache.timings.add([invented_timing(SAMPLE[0], config, 20.0 + at) for at, config in enumerate(configs)])
        kernel = cache.get_or_compile(SAMPLE[0])
        assert (kernel.tier, kernel.toolchain_from, kernel.config_from[:8]) == ("disk", STORE, "measured")


# ---- Packs that serve nothing ----


@pytest.fixture(params=["local", "flags", "signers", "text"])
def useless(request: pytest.FixtureRequest, older: Path, tmp_path: Path) -> tuple[dict[str, Any], str]:
    """Settings under which a pack can serve nothing, and why."""
    given: dict[str, Any] = {"packs": (older,)}
    match request.param:
        case "local":
            return {**given, "toolchain": "local"}, "made by nvrtc 13.5 (build another"
        case "flags":
            return {**given, "compiler_flags": ("--use_fast_math",)}, "4 have other templates or flags"
        case "signers":
            signers = signers_file(tmp_path, f"builder {Builder(tmp_path / 'key').line}")
            return {**given, "trusted_signers": signers}, "the kernel has no signature"
    (tmp_path / "text.gemmpack").write_text("text")
    return {"packs": (tmp_path / "text.gemmpack",)}, "is not a pack"


def test_a_pack_that_can_serve_nothing_is_one_warning_and_is_named_by_a_miss(
    useless: tuple[dict[str, Any], str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings, why = useless
    with open_cache(tmp_path / "new", **settings, enable_jit=False) as cache:
        (warned,) = [one.message for one in caplog.records if one.levelname == "WARNING"]
        assert why in warned
        with pytest.raises(NotCached, match=re.escape(why)):
            cache.get_or_compile(PROBLEM)


def test_with_packs_alone_of_which_none_can_serve_opening_fails(
    useless: tuple[dict[str, Any], str], tmp_path: Path
) -> None:
    settings, why = useless
    with pytest.raises(PackUnusable, match=re.escape(why)):
        open_cache(**settings, enable_caching="packs")
    with pytest.raises(PackUnusable, match="there is no pack in"):
        open_cache(packs=(tmp_path / "older",), enable_caching="packs")
    with open_cache(enable_caching="packs") as cache:  # none is named
        assert cache.packs == ()


def test_a_pack_that_can_serve_is_no_warning(pack: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_cache(tmp_path / "new", packs=(pack,)), open_cache(packs=(pack,), enable_caching="packs"):
        assert caplog.text == ""


# ---- How a pack says what made it ----


def test_a_pack_says_how_its_kernels_were_made_without_reading_them(
    pack: Path, compiled_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_cache(compiled_store) as cache:
        made = [Provenance.of(record.components) for record in cache.records()]
    opened = Pack(pack)
    with monkeypatch.context() as patched:
        patched.setattr(Pack, "record_data", lambda *_: pytest.fail("a record was read"))
        assert opened.made_with == {each: made.count(each) for each in made}
    assert {each.toolchain for each in opened.made_with} == {COMPILERS["nvrtc"].fingerprint()}


def test_of_a_pack_of_an_older_program_the_records_are_read() -> None:
    old = Pack(next(FORMATS.glob("*.gemmpack")), trust=True)
    (toolchain,) = {each.toolchain for each in old.made_with}
    assert (toolchain.compiler, toolchain.version) == ("nvrtc", "13.5")
    assert sum(old.made_with.values()) == len(old) > 0


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o644), (0, 0o644)])
def test_a_pack_can_be_read_as_the_umask_says_and_written_by_its_owner_alone(
    cache: Cache, tmp_path: Path, umask: int, mode: int
) -> None:
    before = os.umask(umask)
    try:
        cache.admin.export(tmp_path / "some.gemmpack")
    finally:
        os.umask(before)
    assert (tmp_path / "some.gemmpack").stat().st_mode & 0o777 == mode


# ---- Packs alone ----


def test_with_packs_alone_no_directory_is_made_and_lookups_are_counted(pack: Path, tmp_path: Path) -> None:
    with open_cache(tmp_path / "none", packs=(pack,), enable_caching="packs") as cache:
        assert [cache.get_or_compile(PROBLEM).tier for _ in range(2)] == ["pack", "memory"]
        other = cache.get_or_compile(replace(PROBLEM, k=PROBLEM.k + 16))
        assert (other.tier, "packs" in str(other.unpublished)) == ("compiled", True)
        totals = cache.stats().totals
        assert (totals.hits, totals.misses, totals.publish_failures) == ({"pack": 1, "memory": 1}, 1, 1)
        with pytest.raises(StoreUnusable, match="enable_caching = packs"):
            cache.layout  # noqa: B018
    assert not (tmp_path / "none").exists()
    with pytest.raises(UsageError, match="enable_caching"):
        open_cache(enable_caching="disk")


def test_where_the_directory_cannot_be_made_packs_serve_all_the_same(
    pack: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(StoreUnusable):
        open_cache("/proc/none/store")
    caplog.clear()
    with open_cache("/proc/none/store", packs=(pack,)) as cache:
        assert cache.get_or_compile(PROBLEM).tier == "pack"
        assert cache.stats().hits == 1
    assert caplog.text.count("packs are served, and kernels are cached in this process alone") == 1
    with pytest.raises(StoreUnusable):
        open_cache("/proc/none/store", packs=(pack,), create=False)


CONTAINER = """
import json, os, sys
from cache_engine import GemmProblem, open_cache
from cache_engine.errors import NotCached
served = []
with open_cache() as cache:
    for m in range(1, 513):
        try:
            kernel = cache.get_or_compile(GemmProblem(m, *map(int, sys.argv[1:]), arch="sm_90"))
            served.append((m, kernel.key, kernel.toolchain_from))
        except NotCached:
            pass
assert not [name for name in sys.modules if name.partition(".")[0] in ("nvidia", "cuda", "triton", "cupy")]
print(json.dumps(served))
"""


def test_in_a_container_without_a_compiler_a_pack_serves_every_size_that_it_covers(
    pack: Path, compiled_store: Path, tmp_path: Path, free_of_compilers: Callable[..., str]
) -> None:
    """No home, no directory that can be written, no packages of NVIDIA."""
    n, k = SAMPLE[0].n, SAMPLE[0].k
    with open_cache(compiled_store) as cache:
        keys = {record.key for record in cache.records()}
        wanted = {m: cache.select(GemmProblem(m, n, k, arch="sm_90")).key for m in range(1, 513)}
    covered = [[m, key, "pack kernels.gemmpack"] for m, key in wanted.items() if key in keys]
    assert len(covered) > 10
    for settings in ({"ENABLE_CACHING": "packs"}, {}):
        printed = free_of_compilers(CONTAINER, n, k, PACKS=pack, ENABLE_JIT="0", **settings)
        assert json.loads(printed) == covered


@pytest.fixture
def free_of_compilers(tmp_path: Path) -> Callable[..., str]:
    """Runs a program where none of the compilers' packages is installed; returns what it prints."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for folder in site.getsitepackages():
        for path in Path(folder).iterdir():
            if not path.name.startswith(("nvidia", "cuda", "cupy", "triton", "__")) and path.suffix != ".pth":
                (packages / path.name).symlink_to(path)
    root = Path(__file__).parents[2]

    def run(code: str, *arguments: object, **settings: object) -> str:
        variables = {f"GEMM_CACHE_{name}": str(value) for name, value in settings.items()}
        done = subprocess.run(
            [sys.executable, "-S", "-c", code, *map(str, arguments)],
            env={"HOME": "/proc/none", "PYTHONPATH": f"{root}:{packages}", "PYTHONDONTWRITEBYTECODE": "1", **variables},
            cwd="/proc",
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
