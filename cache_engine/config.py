"""Settings: one table of names, defaults and help; the environment is read in one place, once per `load`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from cache_engine.errors import StoreUnusable, UsageError

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
    "page_limit_s",
)
_TEXTS = ("compiler_flags", "admin_users")
PACKS = "packs"
"""A value of ``enable_caching``: packs alone."""
AUTO, LOCAL, PACK = "auto", "local", "pack"
"""Values of ``toolchain``."""
MIN_FLUSH_S = 0.01  # below, writing would keep a processor busy
MIN_TOKEN_LENGTH = 16  # letters and digits: beyond guessing, at any rate of attempts
MIN_TOKEN_CHARACTERS = 8  # different ones: of random letters and digits, one in five million has fewer


class Origin(StrEnum):
    """The source of a setting's value; the value is the text shown."""

    DEFAULT = "default"
    ENVIRONMENT = "environment"
    GIVEN = "given at opening"


def _setting(default: Any, text: str, *, secret: bool = False) -> Any:
    return field(default=default, metadata={"help": text, "secret": secret}, repr=not secret)


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that can be set. Each of ``SETTINGS`` can be given as ``GEMM_CACHE_<NAME>`` in the environment.

    ``origins`` says where each value that is not the default comes from: an ``Origin``, or the policy that sets it.
    """

    dir: Path | None = _setting(None, "The store's directory. Default: the user cache directory.")
    max_bytes: int = _setting(5 * GIB, "Maximum store size, e.g. 5GiB.")
    max_entries: int = _setting(5000, "Maximum number of kernels.")
    max_disk_share: float = _setting(0.5, "Maximum store size as a fraction of free disk space (store included).")
    policy: str = _setting("standard", "Preset for expire_days: development = 1, standard = 7, production = 30.")
    expire_days: float = _setting(7.0, "Evict kernels unused for this many days.")
    eviction_threshold: float = _setting(0.8, "When a limit is exceeded, evict down to this fraction of it.")
    cleanup_interval_h: float = _setting(24.0, "Automatic cleanup interval in hours (0 = off).")
    enable_jit: bool = _setting(True, "Compile kernels that are not cached.")
    enable_caching: bool | str = _setting(
        True, "Look kernels up in packs and on disk, and store them there. packs: packs alone, no directory is used."
    )
    packs: tuple[Path, ...] = _setting((), "Packs to search before the disk: colon-separated files or directories.")
    toolchain: str = _setting(
        "auto",
        "Kernels of which compilers to serve: local, the installed one; pack, also those that made the packs and the "
        "store; auto: local, or pack where enable_jit is off or no compiler is installed.",
    )
    memory_bytes: int = _setting(GIB // 4, "In-process cache size.")
    compression: bool = _setting(True, "Compress compiled code on disk.")
    compress_results: bool = _setting(False, "Compress the evaluator's results on disk.")
    durability: str = _setting("durable", "durable: fsync before publish; fast: no fsync.")
    lock_timeout_s: float = _setting(60.0, "Seconds to wait for another process that compiles the same kernel.")
    journal_flush_s: float = _setting(5.0, "Least number of seconds between writes of usage counts to the journal.")
    compiler_flags: tuple[str, ...] = _setting((), "Extra compiler flags, space-separated (part of the key).")
    fast_math: bool = _setting(False, "Compile with --use_fast_math.")
    default_arch: str = _setting("sm_90", "Default target when there is no local GPU.")
    use_timings: bool = _setting(True, "Prefer measured-fastest configs over the cost model.")
    timings_of: str | None = _setting(
        None, "Which device's timings to use: GPU name or fingerprint prefix. Default: the local GPU."
    )
    page_limit_s: float = _setting(10.0, "Time limit of searches and mirror queries of a dashboard page, in seconds.")
    trust_store: bool = _setting(False, "Use a store or pack that another user owns or that others can write.")
    admin_token: str | None = _setting(
        None,
        f"Token required for deleting and importing in the dashboard; {MIN_TOKEN_LENGTH} characters or more.",
        secret=True,
    )
    admin_users: tuple[str, ...] = _setting(
        (), "Logged-in users allowed to: e-mail addresses, space-separated; * allows every login."
    )
    origins: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

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
            environment: used instead of the process's environment.
            defaults: used instead of the table's.

        Raises:
            UsageError: naming the setting whose value cannot be read.
        """
        environment = os.environ if environment is None else environment
        values: dict[str, Any] = {}
        for setting in SETTINGS:
            name = variable(setting.name)
            if environment.get(name):
                values[setting.name] = _parse(setting.name, setting.default, environment[name], name)
        given = {**(defaults or {}), **values, **overrides}
        origins = {name: Origin.ENVIRONMENT for name in values if name not in overrides}
        return cls().with_overrides(given, origins)

    def with_overrides(self, overrides: Mapping[str, Any], origins: Mapping[str, str] | None = None) -> Settings:
        """The same settings with some values changed.

        Args:
            origins: the source of the new values, if not the program.

        Raises:
            UsageError: when there is no such setting, or it cannot have that value.
        """
        names = [setting.name for setting in SETTINGS]
        for name in overrides:
            if name not in names:
                raise UsageError(f"there is no setting {name!r}; there are: {', '.join(names)}")
        policy = overrides.get("policy", "standard")
        if policy not in POLICIES:
            raise UsageError(f"setting policy is {policy!r}; use one of: {', '.join(POLICIES)}")
        origins = {
            **self.origins,
            **dict.fromkeys(POLICIES[policy], f"policy {policy}"),
            **dict.fromkeys(overrides, Origin.GIVEN),
            **(origins or {}),
        }
        return replace(self, **{**POLICIES[policy], **overrides}, origins=origins).checked()

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
        if self.enable_caching not in (True, False, PACKS):
            raise UsageError(f"setting enable_caching is {self.enable_caching!r}; use yes, no or {PACKS}")
        if self.toolchain not in (AUTO, LOCAL, PACK):
            raise UsageError(f"setting toolchain is {self.toolchain!r}; use {AUTO}, {LOCAL} or {PACK}")
        for name in _TEXTS:
            value = getattr(self, name)
            if not isinstance(value, tuple) or not all(isinstance(text, str) for text in value):
                raise UsageError(f"setting {name} is {value!r}; it must be a tuple of texts")
        if self.admin_token is not None and len(self.admin_token.strip()) < MIN_TOKEN_LENGTH:
            # Without the value: what is nearly right is nearly a secret.
            raise UsageError(f"setting admin_token is too short; it must have {MIN_TOKEN_LENGTH} characters or more")
        if self.admin_token is not None and len(set(self.admin_token.strip())) < MIN_TOKEN_CHARACTERS:
            raise UsageError(
                f"setting admin_token is too easy to guess; it must have {MIN_TOKEN_CHARACTERS} different characters "
                'or more, such as python -c "import secrets; print(secrets.token_urlsafe(24))" prints'
            )
        return self

    @property
    def serves_any_toolchain(self) -> bool:
        """Whether a kernel of packs and the store serves whichever build of its compiler made it."""
        return self.toolchain == PACK or (self.toolchain == AUTO and not self.enable_jit)

    @property
    def uses_directory(self) -> bool:
        """Whether kernels are looked up and stored in a directory."""
        return bool(self.enable_caching) and self.enable_caching != PACKS

    def directory(self) -> Path:
        """Where the store is, absolute.

        Raises:
            StoreUnusable: when it is below a home directory that does not exist, as of a container's user without a
                name.
        """
        if self.dir is not None:
            return _expanded(Path(self.dir)).absolute()
        from platformdirs import user_cache_path  # 20 ms, and rarely needed

        try:
            return user_cache_path("gemm-cache")
        except RuntimeError as error:
            raise StoreUnusable(
                "there is no default directory for the store, because this user has no home directory; name one with "
                "--store or GEMM_CACHE_DIR"
            ) from error

    @property
    def directory_exists(self) -> bool:
        """Whether there is something at the store's path, as far as this user can see."""
        with suppress(StoreUnusable):
            return os.path.exists(self.directory())
        return False

    def shown(self, name: str) -> str:
        """The value of a setting as people read it; of a secret, only whether it is set."""
        if name == "dir":
            with suppress(StoreUnusable):
                return str(self.directory())
        value = getattr(self, name)
        if next(setting for setting in SETTINGS if setting.name == name).metadata["secret"]:
            return "not set" if value is None else "set"
        return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)

    def origin(self, name: str) -> str:
        """Where the value of a setting is from."""
        return self.origins.get(name, Origin.DEFAULT)


SETTINGS = tuple(setting for setting in fields(Settings) if "help" in setting.metadata)
"""Everything that can be set, in the order of the docs: name, default, and in ``metadata`` its help."""


def user_cache_folder(name: str) -> Path | None:
    """A folder of ours among the user's caches, made or not; ``None`` where the user has none.

    As platformdirs has it on Linux, whose import takes as long as everything else before the first key.
    """
    home = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(home):
        home = os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home, name) if os.path.isabs(home) else None


def variable(name: str) -> str:
    """The environment variable that sets a setting."""
    return f"GEMM_CACHE_{name.upper()}"


def parse_bytes(text: str) -> int:
    """Bytes from text such as ``2GB`` (powers of 1000), ``2GiB`` or ``2G`` (powers of 1024), or a plain number.

    Raises:
        UsageError: when it is not of that form.
    """
    match = re.fullmatch(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([KMGT]?I?B?)", text.strip().upper())
    if match is None or match[2] not in _UNITS:
        raise UsageError(f"{text!r} is not a size; write it like 2GB, 512MiB or 1000000")
    return int(float(match[1]) * _UNITS[match[2]])


def _expanded(path: Path) -> Path:
    """A path whose first part may be ``~`` or ``~USER``, for a home directory."""
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise StoreUnusable(f"{path}: the home directory {path.parts[0]} is unknown; give the whole path") from error


def _parse(name: str, default: object, text: str, variable: str) -> object:
    if name == "enable_caching" and text.lower() == PACKS:
        return PACKS
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
        return tuple(_expanded(Path(place)) for place in text.split(os.pathsep) if place)
    if name in _TEXTS:
        return tuple(text.split())
    return Path(text) if name == "dir" else text
