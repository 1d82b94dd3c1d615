"""nvcc's launcher, on a toolkit that counts: a hit only where nvcc would make the same, and never a wrong one."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from cache_engine.adapters import nvcc
from cache_engine.adapters.shelf import shelf
from cache_engine.errors import CorruptEntry
from cache_engine.frameworks.bundle_facts import describe, inputs_of
from cache_engine.frameworks.bundle_packs import packed_row
from cache_engine.frameworks.bundles import Group, group_keys, put_group, read_group, read_stored
from cache_engine.frameworks.nvcc import inputs
from cache_engine.frameworks.nvcc.command import PassThrough, understood
from cache_engine.frameworks.nvcc.inputs import Digests
from cache_engine.frameworks.nvcc.results import PLACES, Document
from cache_engine.insight.explanation import explain_launch
from cache_engine.store.disk import DiskStore, open_store
from cache_engine.store.journal import Journal, read_journal
from cache_engine.store.layout import StoreLayout
from cache_engine.store.pack import Pack
from cache_engine.store.signatures.signers import TrustedSigners
from cache_engine.upkeep.packs import Imported, export_pack, import_pack
from tests.adapters.fake_nvcc import Fake, expected, make, moved, use
from tests.trust.keys import Builder, signers_file

CUBIN = "-cubin k.cu -o k.cubin"


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    return use(monkeypatch, make(tmp_path / "a", tmp_path / "store"))


def layout_of(fake: Fake) -> StoreLayout:
    return open_store(Path(fake.environment["GEMM_CACHE_DIR"]))


def check(fake: Fake, *words: str) -> bool:
    """Launches a command; whether it was a hit. The output is what nvcc would make now."""
    out, before = words[words.index("-o") + 1], len(fake.runs)
    Path(out).unlink(missing_ok=True)
    assert fake.launch(*words) == 0
    if fake.runs[before:] and fake.runs[-1][0] == "passed":
        return False
    assert Path(out).read_bytes() == expected([fake.compiler, *words], fake.environment)[0]
    return len(fake.runs) == before


@pytest.mark.parametrize(
    "text",
    [
        CUBIN, "--cubin k.cu --output-file=k.cubin", "-ptx k.cu -o k.ptx", "-c k.cu -o k.o -MD -MF k.d",
        "-dc -rdc=true k.cu -o k.o",
        f"{CUBIN} --compiler-options=-fPIC,-O3,-fconcepts,-Wno-abi -Xcompiler -Wall",
        f"{CUBIN} -O3 -t 4 --threads=2 -DA=1 -U B",
        f"{CUBIN} -gencode=arch=compute_90a,code=sm_90a --ptxas-options=--verbose,--warn-on-local-memory-usage",
        f"{CUBIN} -isystem x -Iy -I z --expt-relaxed-constexpr --diag-suppress=39,161 -use_fast_math -ccbin g++",
        # As CMake 3.25, PyTorch's extensions and FlashInfer write them.
        "-forward-unknown-to-host-compiler -O3 -DNDEBUG --generate-code=arch=compute_80,code=[compute_80,sm_80] "
        "-Xcompiler=-fPIC -std=c++17 -MD -MT k.o -MF k.o.d -x cu -c k.cu -o k.o",
        "--generate-dependencies-with-compile --dependency-output k.o.d -DTORCH_EXTENSION_NAME=k -isystem x "
        "-D__CUDA_NO_HALF_OPERATORS__ --expt-relaxed-constexpr -gencode=arch=compute_90,code=compute_90 "
        "-gencode=arch=compute_90,code=sm_90 --compiler-options -fPIC -std=c++17 -c k.cu -o k.o",
        "--generate-dependencies-with-compile --dependency-output k.o.d -DPy_LIMITED_API=0x03090000 -isystem x "
        "--compiler-options=-fPIC --expt-relaxed-constexpr -static-global-template-stub=false -use_fast_math "
        "-DFLASHINFER_ENABLE_F16 -gencode=arch=compute_90a,code=sm_90a -DNDEBUG -O3 -std=c++17 -c k.cu -o k.o",
    ],
)  # fmt: skip
def test_what_frameworks_ask_for_is_understood(text: str) -> None:
    assert understood("nvcc", text.split(), {}).source == "k.cu"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("--version", "option -version"), (f"{CUBIN} -keep", "option -keep"),
        (f"{CUBIN} --save-temps", "option -save-temps"),
        ("-E k.cu -o k", "option -E"), ("-M k.cu", "option -M"), ("k.cu -o k", "link, or no phase named"),
        ("-cubin a.cu b.cu -o k", "several sources"), ("-cubin k.cu -o -", "output is not a named file"),
        ("-cubin k.cu", "output is not a named file"), ("-c k.cpp -o k.o", "source is no .cu file"),
        (f"{CUBIN} -arch=native", "target of this machine"), (f"{CUBIN} @more", "options in a file"),
        (f"{CUBIN} -optf more", "option -optf"), (f"{CUBIN} -otherwise", "unknown option"), (f"{CUBIN} -tilecubin",
        "unknown option"),
        (f"{CUBIN} -include a.h", "unknown option"), (f"{CUBIN} -Ia,b", "comma in an include path"),
        (f"{CUBIN} -Xcompiler -march=native", "unknown option of the host's compiler"),
        (f"{CUBIN} -Xcompiler -Wp,-MD,x", "unknown option of the host's compiler"),
        (f"{CUBIN} -Xcompiler -I/x", "unknown option of the host's compiler"), (f"{CUBIN} -x c++",
        "language is not CUDA"),
        (f"{CUBIN} -Xptxas -optf=x", "unknown option in --ptxas-options"), (f"{CUBIN} -MF k.d",
        "dependency options without -MD"),
        (f"{CUBIN} -MMD", "unknown option"), (f"{CUBIN} -cubin -ptx", "two phases"), (f"{CUBIN} -D",
        "option without its value"),
        ("-cubin - -o k", "source on standard input"), (f"{CUBIN} -o other", "option --output-file twice"),
    ],
)  # fmt: skip
def test_all_else_passes_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(PassThrough) as raised:
        understood("nvcc", text.split(), {})
    assert str(raised.value) == reason


def test_variables_are_options_or_inputs_or_stop() -> None:
    made = understood(
        "nvcc", CUBIN.split(), {"NVCC_APPEND_FLAGS": "-O1 -DX", "CPATH": "/a:/b", "NVCC_X": "1", "LANG": "C"}
    )
    assert made.options[1:] == [("optimize", "1"), ("define-macro", "X")]
    assert (made.roots, made.variables) == (["/a", "/b"], {"CPATH": "0:1", "NVCC_X": "1"})
    for variables in ({"NVCC_PREPEND_FLAGS": "-keep"}, {"NVCC_APPEND_FLAGS": "-D'a b'"}, {"DEPENDENCIES_OUTPUT": "x"}):
        with pytest.raises(PassThrough):
            understood("nvcc", CUBIN.split(), variables)


def test_each_input_makes_a_miss_and_the_same_again_a_hit(fake: Fake) -> None:
    usual = fake.usual()
    assert [check(fake, *usual), check(fake, *usual)] == [False, True]
    changes: dict[str, tuple[str, str]] = {
        "a header": ("one/lib/b.h", "3\n"), "another": ("two/lib/c.h", "4\n"), "the source": ("place/k.cu", "5\n"),
        "a nearer header": ("place/lib/a.h", "6\n"), "beside its includer": ("one/lib/lib/c.h", "#7\n"),
        "an earlier root": ("one/lib/c.h", "8\n"), "asked for": ("two/lib/maybe.h", "9\n"),
        "ptxas": ("cuda/bin/ptxas", "\x7fELF"),
        "cicc": ("cuda/nvvm/bin/cicc", "\x7fELF x"), "the host's compiler": ("../host/gcc", "\x7fELF x"),
    }  # fmt: skip
    for name, (file, text) in changes.items():
        path = fake.root / file
        before = path.read_bytes() if path.exists() else None
        mode = path.stat().st_mode if before is not None else 0o644
        fake.write(file, text).chmod(mode)
        assert not check(fake, *usual), name
        path.unlink() if before is None else path.write_bytes(before)
        assert check(fake, *usual), f"{name}, back"
    for words in (fake.usual("-O1"), fake.usual("-DA"), fake.usual("-O1", "-DA"), fake.usual("-DA", "-O1")):
        assert [check(fake, *words), check(fake, *words)] == [False, True]
    for variables in ({"NVCC_TEST": "1"}, {"NVCC_APPEND_FLAGS": "-G"}, {"CPATH": str(fake.root / "three")}):
        fake.environment |= variables
        assert [check(fake, *usual), check(fake, *usual)] == [False, True]


@pytest.mark.parametrize(
    ("first", "file", "text"),
    [
        ("#include <../up.h>\n", "one/../up.h", "x\n"), ("#define M <lib/maybe.h>\n#if __has_include(M)\n",
        "two/lib/maybe.h", "x\n"),
        ("#if __has_include(\\\n<lib/maybe.h>)\n", "one/lib/maybe.h", "x\n"),
        ("#if __has_include(\"{root}/far.h\")\n", "far.h", "x\n"),
    ],
)  # fmt: skip
def test_a_file_that_comes_where_it_is_looked_for_is_a_miss(fake: Fake, first: str, file: str, text: str) -> None:
    fake.write("two/inner/x.h", "x\n")
    fake.write("place/k.cu", first.replace("{root}", str(fake.root)) + "#include <lib/a.h>\n")
    fake.environment["CPATH"] = str(fake.root / "two/inner")
    fake.write("two/up.h", "1\n")
    assert [fake.launch(*fake.usual()), fake.launch(*fake.usual())] == [0, 0]
    assert len(fake.runs) == 1
    fake.write(file, text)
    fake.launch(*fake.usual())
    assert len(fake.runs) == 2


def test_a_folder_that_becomes_a_file_shadows(fake: Fake) -> None:
    fake.write("two/near.h", "2\n")
    (fake.root / "one/near.h").mkdir()
    roots = _roots(fake, fake.usual())
    before = inputs.shadows([("1", "near.h")], (), roots)
    (fake.root / "one/near.h").rmdir()
    fake.write("one/near.h", "1\n")
    assert set(inputs.shadows([("1", "near.h")], (), roots)) - set(before) == {"0\0near.h"}


def test_shadows_are_looked_for_in_all_search_paths(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no include was read from: between a header of the system and the folder that has its name."""
    monkeypatch.setattr(inputs, "_MORE_ROOTS", (str(fake.root / "local"),))
    system = fake.write("system/machine/bits/config.h", "1")
    files, roots = [("/", str(system))], _roots(fake, fake.usual())
    found = [inputs.shadows(files, (), roots)]
    for place in ("local/bits/config.h", "system/machine/config.h"):
        fake.write(place, "1")
        found.append(inputs.shadows(files, (), roots))
    assert [len(one) for one in found] == [0, 1, 2]


def _roots(fake: Fake, words: list[str]) -> inputs.Roots:
    return inputs.Roots(understood(fake.compiler, words, fake.environment))


@pytest.mark.parametrize("text", ["__DA\\\nTE__", "CAT(__, TIME__)", 'asm(".incbin \\"x\\"");', "__TIMESTAMP__"])
def test_what_changes_without_a_file_is_not_stored(fake: Fake, text: str) -> None:
    fake.write("place/k.cu", f"{text}\n#include <lib/a.h>\n")
    assert [check(fake, *fake.usual()), check(fake, *fake.usual())] == [False, False]
    fake.write("place/k.cu", "#include <lib/a.h>\n")
    assert [check(fake, *fake.usual("-DX=__TIME__")), check(fake, *fake.usual("-DX=__TIME__"))] == [False, False]


def test_a_path_in_a_source_or_macro_does_not_move_with_its_root(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = fake.root / "one/lib/b.h"
    fake.write("place/k.cu", f'#include "{b}"\n')
    other = moved(fake, tmp_path / "b", tmp_path / "store")
    assert not check(fake, *fake.usual())
    use(monkeypatch, other)
    assert [check(other, *other.usual()), check(other, *other.usual())] == [False, True]
    b.write_text("changed\n")
    assert not check(other, *other.usual())
    assert not check(other, *other.usual(f"-DH={b}"))
    third = use(monkeypatch, moved(other, tmp_path / "c", tmp_path / "store"))
    assert not check(third, *third.usual(f"-DH={b}"))


def test_roots_that_lie_within_others_do_so_on_a_hit(fake: Fake, tmp_path: Path) -> None:
    words = ["-cubin", f"-I{fake.root}/place/in", f"{fake.root}/place/k.cu", "-o", f"{fake.root}/k.cubin"]
    fake.write("place/k.cu", "#include <x.h>\n")
    fake.write("place/in/x.h", "1\n")
    assert not check(fake, *words)
    (tmp_path / "empty").mkdir()
    words[1] = f"-I{tmp_path}/empty"
    assert not check(fake, *words)  # nvcc would not find it


def test_a_folder_that_is_replaced_during_a_compile_is_not_stored(fake: Fake) -> None:
    shutil.copytree(fake.root / "one", fake.root / "next")
    fake.write("next/lib/a.h", (fake.root / "one/lib/a.h").read_text() + "2\n")

    def replace() -> None:
        (fake.root / "one").rename(fake.root / "older")
        (fake.root / "next").rename(fake.root / "one")

    fake.before_end = replace
    assert fake.launch(*fake.usual()) == 0
    fake.before_end = lambda: None
    assert not check(fake, *fake.usual())


@pytest.mark.parametrize("name", ["ccache", "clang++", "script-gcc"])
def test_a_host_s_compiler_whose_files_are_not_known_passes(fake: Fake, name: str) -> None:
    fake.write(f"host2/{name}", "#!/bin/sh" if "script" in name else "\x7fELF").chmod(0o755)
    (fake.root / "host2/gcc").symlink_to(name)
    fake.environment["PATH"] = str(fake.root / "host2")
    fake.launch(*fake.usual())
    assert fake.runs[-1][0] == "passed"


def test_another_compiler_of_the_same_bytes_has_other_headers(fake: Fake) -> None:
    assert not check(fake, *fake.usual())
    fake.write("host2/gcc", "\x7fELF gcc 1").chmod(0o755)
    fake.environment["PATH"] = str(fake.root / "host2")
    assert not check(fake, *fake.usual())


def test_headers_of_nvcc_s_own_stubs_are_inputs_of_an_object(fake: Fake) -> None:
    usual = [("-c" if word == "-cubin" else word) for word in fake.usual(out="k.o")]
    for file in ("cuda/include/crt/host_runtime.h", "one/crt/host_runtime.h"):
        for text in ("1", "2"):
            fake.write(file, text)
            assert [check(fake, *usual), check(fake, *usual)] == [False, True]


def test_an_output_that_nvcc_could_not_write_to_its_end_is_not_stored(fake: Fake) -> None:
    """On a full disk ptxas leaves an empty file and exits with 0."""
    out = fake.root / "k.cubin"
    far = (10**6).to_bytes(8, "little")  # where the table of sections would be
    for kept, more in ((0, b""), (63, b""), (40, far + bytes(80))):

        def cut(kept: int = kept, more: bytes = more) -> None:
            out.write_bytes(out.read_bytes()[:kept] + more)

        fake.before_end = cut
        assert fake.launch(*fake.usual()) == 0
    fake.before_end = lambda: None
    assert not check(fake, *fake.usual())
    assert read_journal(layout_of(fake).journal).totals.passed == {"output is incomplete": 3}


def test_roots_in_another_order_are_another_command(fake: Fake) -> None:
    one, two = f"-I{fake.root / 'one'}", f"-I{fake.root / 'two'}"
    fake.write("two/lib/a.h", "other")
    rest = ["-cubin", str(fake.root / "place/k.cu"), "-o", str(fake.root / "k.cubin")]
    assert [check(fake, one, two, *rest), check(fake, two, one, *rest)] == [False, False]
    assert [check(fake, one, two, *rest), check(fake, two, one, *rest)] == [True, True]


def test_only_paths_differ_elsewhere_and_their_text_is_of_this_machine(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    check(fake, *fake.usual())
    other = use(monkeypatch, moved(fake, tmp_path / "b c", tmp_path / "store"))
    for folder in (tmp_path, other.root, other.root / "one", other.root / "place"):
        monkeypatch.chdir(folder)
        assert check(other, *other.usual())
    capfd.readouterr()
    words = other.usual("-MD", "-MF", str(other.root / "k.d"), "--threads=4", out="other.cubin")
    assert check(other, *words)
    assert capfd.readouterr().err == "a warning\n"
    read = inputs.dependencies_in((other.root / "k.d").read_text())
    assert read == expected([other.compiler, *words], other.environment)[1]
    assert all(one.startswith(str(other.root)) for one in read)


@pytest.mark.parametrize("option", ["-lineinfo", "-G", "-g", "-Xcompiler=-g"])
def test_paths_are_inputs_where_the_output_has_them(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    assert [check(fake, *fake.usual(option)), check(fake, *fake.usual(option))] == [False, True]
    other = use(monkeypatch, moved(fake, tmp_path / "b", tmp_path / "store"))
    assert not check(other, *other.usual(option))


def test_what_cannot_be_found_again_is_not_stored(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = fake.usual()
    fake.code = 2
    assert fake.launch(*usual) == 2
    fake.code = 0
    for file, text in (("place/k.cu", '"__TIME__"\n#include <lib/a.h>\n'), ("one/lib/b.h", "__DATE__\n")):
        before = (fake.root / file).read_text()
        fake.write(file, text)
        assert [check(fake, *usual), check(fake, *usual)] == [False, False]
        fake.write(file, before)
    fake.before_end = lambda: fake.write("place/k.cu", '#include <lib/a.h>\n#include "near.h"\n// edited')
    assert fake.launch(*usual) == 0
    fake.before_end = lambda: None
    monkeypatch.setattr(nvcc, "_CLOCK_NS", 10**12)  # as if each header were younger than the compile
    assert fake.launch(*usual) == 0
    assert list(group_keys(layout_of(fake))) == []
    passed = read_journal(layout_of(fake).journal).totals.passed
    assert passed["date, time or .incbin in a header"] == 2
    assert passed["a header changed while it was compiled"] == 1


def test_places_are_few_and_the_oldest_goes(fake: Fake) -> None:
    for number in range(PLACES + 3):
        fake.write("one/lib/b.h", f"{number}\n")
        assert not check(fake, *fake.usual())
    assert len(list(group_keys(layout_of(fake)))) == PLACES
    assert check(fake, *fake.usual())


def test_damage_is_a_miss_that_is_counted_and_mended(fake: Fake) -> None:
    usual = fake.usual()
    check(fake, *usual)
    layout = layout_of(fake)
    (key,) = group_keys(layout)
    path = Path(layout.group_path(key))
    whole = path.read_bytes()
    stored = read_group(layout, key)
    assert stored is not None
    for broken in (
        replace(stored, files={"nvcc.json": stored.files["nvcc.json"]}),
        replace(stored, stages_ms={"compile": float("inf")}),
    ):
        put_group(layout, broken, durable=False)
        assert [check(fake, *usual), check(fake, *usual)] == [False, True]
    for data in (b"", whole[:-1], whole[:80] + bytes([whole[80] ^ 1]) + whole[81:], os.urandom(200)):
        path.write_bytes(data)
        assert [check(fake, *usual), check(fake, *usual)] == [False, True]
    group = read_group(layout, key)
    assert group is not None
    for document in (b"[]", b"{", b'{"format":1}', group.files["nvcc.json"].replace(b'"includes"', b'"x"')):
        put_group(layout, Group("nvcc", group.name, "nvcc.json", group.files | {"nvcc.json": document}), durable=False)
        assert [check(fake, *usual), check(fake, *usual)] == [False, True]
    path.write_bytes(whole[:8] + b"\x09\0" + whole[10:])  # of the future: it stays, and another place is used
    assert [check(fake, *usual), check(fake, *usual)] == [False, True]
    assert path.read_bytes()[8] == 9
    assert read_journal(layout.journal).totals.corruptions == 5
    layout.digests.write_text("[[")
    assert check(fake, *usual)


def test_a_digest_is_remembered_until_the_file_changes(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    path, now = fake.write("h.h", "1"), time.time_ns
    store = layout_of(fake)
    assert inputs.Digests(store).of(str(path)) == sha256(b"1").hexdigest()
    digests = inputs.Digests(store)
    digests.of(str(path))
    digests.save()
    assert not store.digests.exists()  # it is too young
    monkeypatch.setattr(time, "time_ns", lambda: now() + 10**11)
    digests.of(str(path))
    digests.save()
    with monkeypatch.context() as patch:
        patch.setattr(inputs, "sha256", lambda _: pytest.fail("it is read again"))
        assert inputs.Digests(store).of(str(path)) == digests.of(str(path))
    before = path.stat()
    path.write_text("2")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # the time of change tells
    assert inputs.Digests(store).of(str(path)) == sha256(b"2").hexdigest()


def test_two_at_once_compile_once(fake: Fake) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def held() -> None:
        begun.set()
        assert go_on.wait(30)

    fake.before_end = held
    usual = fake.usual()
    first = threading.Thread(target=fake.launch, args=usual)
    first.start()
    assert begun.wait(30)
    second = threading.Thread(target=fake.launch, args=usual)
    second.start()
    go_on.set()
    first.join()
    second.join()
    assert len(fake.runs) == 1


def test_without_a_store_nvcc_runs(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = fake.usual()
    check(fake, *usual)
    monkeypatch.setattr(
        "cache_engine.adapters.shelf.put_group", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "full"))
    )
    fake.write("one/lib/b.h", "full\n")
    assert [check(fake, *usual), check(fake, *usual)] == [False, False]
    assert read_journal(layout_of(fake).journal).totals.passed == {"store cannot be written": 2}
    fake.environment["GEMM_CACHE_DIR"] = str(fake.write("a file", ""))
    shelf.cache_clear()
    fake.launch(*usual)
    assert fake.runs[-1][0] == "passed"


def test_the_store_is_that_of_the_settings(fake: Fake) -> None:
    own = fake.root / "own"
    file = fake.write("conf/gemm-cache/gemm-cache.toml", f'dir = "{own}"\n')
    file.chmod(0o600)
    fake.environment |= {"XDG_CONFIG_HOME": str(file.parent.parent)}
    del fake.environment["GEMM_CACHE_DIR"]
    assert [check(fake, *fake.usual()), check(fake, *fake.usual())] == [False, True]
    assert len(list(group_keys(open_store(own)))) == 1
    fake.environment["GEMM_CACHE_ENABLE_CACHING"] = "no"
    assert not check(fake, *fake.usual())
    assert fake.runs[-1][0] == "passed"


def test_explain_names_the_header_the_option_and_the_file(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = fake.usual()
    check(fake, *usual)
    layout = layout_of(fake)
    monkeypatch.setenv("PATH", fake.environment["PATH"])

    def explained(*words: str) -> Any:
        return explain_launch(layout, [fake.compiler, *words])

    assert explained(*usual).result == "hit"
    assert explained(*fake.usual("-O1")).reasons == ("option --optimize=1: now alone",)
    assert explained(*fake.usual("-keep")).result == "passes through"
    fake.write("one/lib/b.h", "x\n")
    assert explained(*usual).reasons == (f"the header changed: {fake.root}/one/lib/b.h",)
    fake.write("one/lib/b.h", "1\n")
    fake.write("place/lib/c.h", "x\n")
    assert explained(*usual).reasons == (f"another header of the same name came or went: {fake.root}/place/lib/c.h",)
    (fake.root / "place/lib/c.h").unlink()
    fake.write("cuda/bin/ptxas", "\x7fELF 2")
    assert all("file of the compiler" in one and "ptxas" in one for one in explained(*usual).reasons)


# ---- Bundles and packs ----


def test_a_result_is_a_bundle_with_its_facts(fake: Fake) -> None:
    check(fake, *fake.usual())
    (key,) = group_keys(layout_of(fake))
    group = read_group(layout_of(fake), key)
    assert group is not None
    known = describe(group)
    assert (known.arch, known.config["includes"]) == ("sm_90", 4)
    assert str(known.config["command"]).startswith("nvcc --cubin --gpu-architecture=sm_90a --include-path=0")
    factors = inputs_of(group)
    assert {"one/lib/b.h", "0/lib/b.h"} & {one.name for one in factors.factors}  # type: ignore[union-attr]
    assert str(fake.root) not in group.files["nvcc.json"].decode()


@pytest.mark.parametrize(
    ("ending", "setting", "is_signed", "is_checked", "arrives"),
    [
        ("cubin", False, False, False, True), ("o", True, True, True, True), ("o", False, True, True, False),
        ("o", True, False, False, False), ("o", True, True, False, False),
    ],
)  # fmt: skip
def test_a_cubin_travels_and_host_code_only_signed_where_the_setting_allows_it(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, builder: Builder,
    ending: str, setting: bool, is_signed: bool, is_checked: bool, arrives: bool,
) -> None:  # fmt: skip
    usual = [("-c" if word == "-cubin" and ending == "o" else word) for word in fake.usual(out=f"k.{ending}")]
    check(fake, *usual)
    one, path = layout_of(fake), tmp_path / "a.gemmpack"
    sign = builder.key.sign if is_signed else None
    exported = export_pack(DiskStore(one), path, sign=sign, host_code=setting)
    assert exported.entries == (arrives or (setting and is_signed))
    if not exported.entries:
        assert "host code" in exported.refused[0].cause
        export_pack(DiskStore(one), path, sign=builder.key.sign, host_code=True, replace=True)
    prove = TrustedSigners(signers_file(tmp_path, f"builder {builder.line}")).require if is_checked else None
    other = use(monkeypatch, moved(fake, tmp_path / "b", tmp_path / "other"))
    assert _imported(other, Pack(path, prove=prove), setting).taken == arrives
    assert check(other, *[word.replace(str(fake.root), str(other.root)) for word in usual]) == arrives


def _imported(fake: Fake, pack: Pack, host_code: bool) -> Imported:
    layout = layout_of(fake)
    return import_pack(DiskStore(layout), Journal(layout.journal), pack, host_code=host_code)


@pytest.mark.parametrize("what", ["options", "file", "output", "printed", "target"])
def test_a_forged_result_is_refused(fake: Fake, what: str) -> None:
    check(fake, *fake.usual())
    layout = layout_of(fake)
    (key,) = group_keys(layout)
    group = read_group(layout, key)
    assert group is not None
    files, document = dict(group.files), json.loads(group.files["nvcc.json"])
    if what in ("options", "target"):
        document["options"][1] = ["gpu-architecture", "sm_80"]
        files["nvcc.json"] = json.dumps(document).encode()
    files |= {"file": {"x.sh": b"x"}, "output": {"kernel.cubin": b"x"}, "printed": {"stderr": b"\x1b]0;"}}.get(what, {})
    name = f"{msgspec.convert(document, Document).name}-0" if what == "target" else group.name
    forged = Group("nvcc", name, "nvcc.json", files)
    put_group(layout, forged, durable=False)
    stored = read_stored(layout, forged.key)
    assert stored is not None
    with pytest.raises(CorruptEntry):
        packed_row(stored, host_code=True)


@pytest.mark.parametrize("asked", ["/a\0b", "lib/a\0b/x"])
def test_a_name_of_a_foreign_result_that_is_no_path_stops_no_compile(fake: Fake, asked: str) -> None:
    check(fake, *fake.usual())
    layout = layout_of(fake)
    (key,) = group_keys(layout)
    group = read_group(layout, key)
    assert group is not None
    document = json.loads(group.files["nvcc.json"]) | {"asked": [asked]}
    put_group(
        layout,
        Group("nvcc", group.name, "nvcc.json", {**group.files, "nvcc.json": json.dumps(document).encode()}),
        durable=False,
    )
    check(fake, *fake.usual())


def test_a_foreign_result_that_names_an_endless_file_is_a_miss(fake: Fake) -> None:
    """As ``/proc/kcore``, a regular file of 128 TB."""
    check(fake, *fake.usual())
    with (fake.root / "one/lib/huge.h").open("wb") as file:
        file.truncate(2**40)
    assert Digests(layout_of(fake)).of(str(fake.root / "one/lib/huge.h")) is None
