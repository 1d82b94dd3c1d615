"""The compilers, by name. A hit imports only the compiler of its kernel."""

from collections.abc import Iterator, Mapping
from importlib import import_module

from cache_engine.compilers.base import Compiler

# The default for a family is the first compiler here that takes its template.
_CLASSES = {"nvrtc": "Nvrtc", "nvcc": "Nvcc", "triton": "Triton"}


class _Compilers(Mapping[str, Compiler]):
    """A mapping from a name to a compiler, which is created at its first use."""

    def __init__(self) -> None:
        self._made: dict[str, Compiler] = {}

    def __getitem__(self, name: str) -> Compiler:
        if name not in self._made:
            kind = _CLASSES[name]
            made: Compiler = getattr(import_module(f"{__name__}.{name}"), kind)()
            # If several threads create it, all use the first, which has what it found out about its installation.
            self._made.setdefault(name, made)
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in _CLASSES

    def __iter__(self) -> Iterator[str]:
        return iter(_CLASSES)

    def __len__(self) -> int:
        return len(_CLASSES)


COMPILERS = _Compilers()
