"""Settings: one table of names, defaults and help; the environment is read in one place, once per `load`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from cache_engine.errors import UsageError

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _UNITS |= {f"{_letter}B": 1000**_power, f"{_letter}IB": 1024**_power, _letter: 1024**_power}

GIB = 1024**3
POLICIES: dict[str, dict[str, Any]] = {
    "standard": {},
    "development": {"expire_days": 1.0},
    "production": {"expire_days": 30.0},
}
_NUMBERS = (
    "max_bytes",
    "max_entries",
    "max_disk_share",
    "expire_days",
    "eviction_threshold",
    "cleanup_interval_h",
    "memory_bytes",
    "lock_timeout_s",
    "journal_flush_s",
)
MIN_FLUSH_S = 0.01  # below, writing would keep a processor busy


def _setting(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that can be set. Each field can be given as ``GEMM_CACHE_<NAME>`` in the environment."""

    dir: Path | None = _setting(None, "The store's directory. Default: the user cache directory.")
    max_bytes: int = _setting(5 * GIB, "Size above which cleaning evicts, such as 5GiB.")
    max_entries: int = _setting(5000, "Number of entries above which cleaning evicts.")
    max_disk_share: float = _setting(0.5, "Share of the free disk, store included, above which cleaning evicts.")
    policy: str = _setting("standard", "Sets expire_days, where that is not given: development 1, production 30.")
    expire_days: float = _setting(7.0, "Days without use after which cleaning evicts an entry.")
    eviction_threshold: float = _setting(0.8, "Share of a limit that cleaning evicts down to.")
    cleanup_interval_h: float = _setting(24.0, "Hours between automatic cleanings; 0 switches them off.")
    enable_jit: bool = _setting(True, "Whether a kernel that is not cached may be compiled.")
    enable_caching: bool = _setting(True, "Whether kernels are looked up in packs and on disk, and kept there.")
    packs: tuple[Path, ...] = _setting(
        (), "Packs to look in before the disk: files, or folders of them, between colons."
    )
    memory_bytes: int = _setting(GIB // 4, "Size of the in-process memory tier.")
    compression: bool = _setting(True, "Whether compiled code is compressed on disk.")
    compress_results: bool = _setting(False, "Whether the evaluator's results are compressed on disk.")
    durability: str = _setting("durable", "durable: synced to disk before it counts; fast: left to the kernel.")
    lock_timeout_s: float = _setting(60.0, "Seconds to wait for another process that compiles the same kernel.")
    journal_flush_s: float = _setting(5.0, "Seconds between writes of usage counts to the journal.")
    compiler_flags: tuple[str, ...] = _setting((), "More flags for the compiler, between spaces; they enter the key.")
    fast_math: bool = _setting(False, "Whether the compiler may trade exactness for speed (--use_fast_math).")
    default_arch: str = _setting("sm_90", "Target when none is given and no GPU is here.")
    trust_store: bool = _setting(False, "Use a store owned by someone else or writable by everyone.")

    @classmethod
    def load(
        cls,
        environment: Mapping[str, str] | None = None,
        *,
        defaults: Mapping[str, Any] | None = None,
        **overrides: Any,
    ) -> Settings:
        """Defaults, overridden by the environment, overridden by arguments.

        Args:
            environment: in place of the process's own.
            defaults: in place of the table's.

        Raises:
            UsageError: naming the setting whose value cannot be read.
        """
        environment = os.environ if environment is None else environment
        values: dict[str, Any] = {}
        for setting in fields(cls):
            variable = f"GEMM_CACHE_{setting.name.upper()}"
            if environment.get(variable):
                values[setting.name] = _parse(setting.name, setting.default, environment[variable], variable)
        return cls().with_overrides({**(defaults or {}), **values, **overrides})

    def with_overrides(self, overrides: Mapping[str, Any]) -> Settings:
        """The same with some settings changed.

        Raises:
            UsageError: when there is no such setting, or it cannot have that value.
        """
        names = [setting.name for setting in fields(self)]
        for name in overrides:
            if name not in names:
                raise UsageError(f"there is no setting {name!r}; there are: {', '.join(names)}")
        policy = overrides.get("policy", "standard")
        if policy not in POLICIES:
            raise UsageError(f"setting policy is {policy!r}; use one of: {', '.join(POLICIES)}")
        return replace(self, **{**POLICIES[policy], **overrides}).checked()

    def checked(self) -> Settings:
        """The same, once its values are known to make sense.

        Raises:
            UsageError: naming the setting that does not.
        """
        for name in _NUMBERS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e18:
                raise UsageError(f"setting {name} is {value!r}; it must be a number that is not negative")
        if self.journal_flush_s < MIN_FLUSH_S:
            raise UsageError(f"setting journal_flush_s is {self.journal_flush_s}; it must be at least {MIN_FLUSH_S}")
        for name in ("eviction_threshold", "max_disk_share"):
            if not 0 < getattr(self, name) <= 1:
                raise UsageError(f"setting {name} is {getattr(self, name)}; it must be above 0, at most 1")
        if self.durability not in ("durable", "fast"):
            raise UsageError(f"setting durability is {self.durability!r}; use durable or fast")
        if not isinstance(self.compiler_flags, tuple) or not all(isinstance(flag, str) for flag in self.compiler_flags):
            raise UsageError(f"setting compiler_flags is {self.compiler_flags!r}; it must be a tuple of texts")
        return self

    def directory(self) -> Path:
        """Where the store is, absolute."""
        if self.dir is not None:
            return Path(self.dir).expanduser().absolute()
        from platformdirs import user_cache_path  # 20 ms, and rarely needed

        return user_cache_path("gemm-cache")


def parse_bytes(text: str) -> int:
    """Bytes from text such as ``2GB`` (powers of 1000), ``2GiB`` or ``2G`` (powers of 1024), or a plain number.

    Raises:
        UsageError: when it is not of that form.
    """
    match = re.fullmatch(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([KMGT]?I?B?)", text.strip().upper())
    if match is None or match[2] not in _UNITS:
        raise UsageError(f"{text!r} is not a size; write it like 2GB, 512MiB or 1000000")
    return int(float(match[1]) * _UNITS[match[2]])


def _parse(name: str, default: object, text: str, variable: str) -> object:
    try:
        if isinstance(default, bool):
            return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[text.lower()]
        if name.endswith("_bytes"):
            return parse_bytes(text)
        if isinstance(default, int):
            return int(text)
        if isinstance(default, float):
            return float(text)
    except (KeyError, ValueError, UsageError) as error:
        kinds = {bool: "yes or no", int: "a whole number", float: "a number"}
        kind = "a size, such as 5GiB" if name.endswith("_bytes") else kinds[type(default)]
        raise UsageError(f"{variable} is {text!r}; it must be {kind}") from error
    if name == "packs":
        return tuple(Path(place).expanduser() for place in text.split(os.pathsep) if place)
    if name == "compiler_flags":
        return tuple(text.split())
    return Path(text) if name == "dir" else text
