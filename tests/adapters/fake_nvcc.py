"""A toolkit without a compiler: what it would make is a digest of all that nvcc would read, found out by reading it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import pytest

from cache_engine.adapters import nvcc
from cache_engine.adapters.shelf import shelf
from tests.helpers import make_cubin

_INCLUDE = re.compile(r'^#include ([<"])([^>"]+)[>"]', re.MULTILINE)
_HAS = re.compile(r"__has_include\(<([^>]+)>\)")
_IGNORED = ("--threads=4", "-MD")


@dataclass
class Fake:
    """A machine's toolkit, headers and folder of work, below ``root``; ``runs`` are the commands that nvcc ran."""

    root: Path
    environment: dict[str, str]
    runs: list[list[str]] = field(default_factory=list)
    code: int = 0
    before_end: Callable[[], object] = lambda: None

    @property
    def compiler(self) -> str:
        """The path of nvcc."""
        return str(self.root / "cuda" / "bin" / "nvcc")

    def launch(self, *words: str) -> int:
        """Runs the launcher in this process."""
        return nvcc.launch([self.compiler, *words], self.environment)

    def usual(self, *more: str, out: str = "k.cubin") -> list[str]:
        """A command of the usual form: two roots and a source that includes from both."""
        roots = [f"-I{self.root / 'one'}", "-isystem", str(self.root / "two")]
        return ["-cubin", "-arch=sm_90a", *roots, *more, str(self.root / "place" / "k.cu"), "-o", str(self.root / out)]

    def write(self, name: str, text: str) -> Path:
        """A file of this machine, which was there long ago."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def passed(self, words: list[str]) -> int:
        """In place of becoming nvcc."""
        self.runs.append(["passed", *words])
        return 0

    def run(self, words: list[str]) -> tuple[int, dict[str, bytes]]:
        """In place of nvcc."""
        self.runs.append(words)
        output, read = expected(words, self.environment)
        values = dict(pairwise(words))
        if self.code == 0:
            Path(values["-o"]).write_bytes(output)
            lines = " \\\n    ".join(one.replace(" ", "\\ ") for one in read)
            Path(values["-MF"]).write_text(f"{values['-o']} : {lines}\n")
        self.before_end()
        return self.code, {"stdout": b"", "stderr": b"a warning\n"}


def expected(words: Sequence[str], environment: Mapping[str, str]) -> tuple[bytes, list[str]]:
    """What this nvcc makes of its inputs as they are now, and the files that it reads."""
    compiler, *rest = words
    source = next(word for word in rest if word.endswith(".cu"))
    roots, options, at = [], [], 0
    while at < len(rest):
        word = rest[at]
        if word in ("-isystem", "-o", "-MF", "-MT"):
            at += 1
            roots += [rest[at]] if word == "-isystem" else []
        elif word.startswith("-I"):
            roots.append(word[2:])
        elif word != source and word not in _IGNORED:
            options.append(word)
        at += 1
    roots += [one for one in environment.get("CPATH", "").split(":") if one]
    read: list[str] = []
    parts = [*options, environment.get("NVCC_APPEND_FLAGS", ""), environment.get("NVCC_TEST", "")]
    _read(source, roots, read, parts)
    tools = [Path(compiler).parent.parent / tool for tool in ("bin/nvcc", "bin/ptxas", "nvvm/bin/cicc")]
    parts += [sha256(tool.read_bytes()).hexdigest() for tool in tools]
    return make_cubin("sm_90a", sha256("\n".join(parts).encode()).digest()), read


def _read(path: str, roots: list[str], read: list[str], parts: list[str]) -> None:
    text = Path(path).read_text()
    read.append(path)
    parts.append(text)
    parts += [f"{name} {any(os.path.exists(f'{root}/{name}') for root in roots)}" for name in _HAS.findall(text)]
    for mark, name in _INCLUDE.findall(text):
        folders = [*([os.path.dirname(path)] if mark == '"' else []), *roots]
        found = next((one for folder in folders if os.path.exists(one := os.path.join(folder, name))), None)
        if found is not None and found not in read:
            _read(found, roots, read, parts)


def make(root: Path, store: Path) -> Fake:
    """A machine with a toolkit, a host's compiler, headers and a source."""
    made = Fake(root, {"PATH": str(root.parent / "host"), "HOME": str(root / "home"), "GEMM_CACHE_DIR": str(store)})
    for tool in ("bin/nvcc", "bin/ptxas", "bin/fatbinary", "nvvm/bin/cicc"):
        made.write(f"cuda/{tool}", f"\x7fELF {tool} 1").chmod(0o755)
    made.write("../host/gcc", "\x7fELF gcc 1").chmod(0o755)
    made.write("one/lib/a.h", '#include "b.h"\n#include <lib/c.h>\n')
    made.write("one/lib/b.h", "1\n")
    made.write("two/lib/c.h", "#if __has_include(<lib/maybe.h>)\n")
    made.write("place/k.cu", '#include <lib/a.h>\n#include "near.h"\n')
    made.write("place/near.h", "2\n")
    return made


def use(monkeypatch: pytest.MonkeyPatch, fake: Fake) -> Fake:
    """Lets the launcher run this one, also where a command passes through; its clock is a second behind the files'."""
    monkeypatch.setattr(nvcc, "run", lambda words: fake.run(words))
    monkeypatch.setattr(nvcc, "_become", fake.passed)
    monkeypatch.setattr(nvcc, "_CLOCK_NS", -(10**12))
    shelf.cache_clear()
    return fake


def moved(fake: Fake, root: Path, store: Path) -> Fake:
    """The same files at another place, as on another machine."""
    shutil.copytree(fake.root, root)
    return (
        make(root, store)
        if not root.exists()
        else Fake(
            root,
            {**fake.environment, "HOME": str(root / "home"), "GEMM_CACHE_DIR": str(store)},
        )
    )
