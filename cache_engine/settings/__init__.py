"""Settings: a table with the name, default, kind and help text of each.

``load`` reads the settings file and the environment; no other code reads them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from cache_engine.errors import StoreUnusable, UsageError
from cache_engine.inputs import open_input, others_may_change
from cache_engine.settings import kinds
from cache_engine.settings.kinds import MIN_TOKEN_LENGTH, POLICIES, SettingKind, expanded, parse_bytes, parse_place

__all__ = [
    "AUTO", "BY_NAME", "CONFIG_VARIABLE", "GIB", "LOCAL", "PACK", "PACKS", "POLICIES", "SETTINGS",
    "Origin", "Settings", "parse_bytes", "parse_place", "unknown_in_words", "unknown_variables",
    "user_cache_folder", "variable",
]  # fmt: skip

GIB = 1024**3
PACKS = "packs"
"""The value of the setting ``enable_caching`` with which only packs are used."""
AUTO, LOCAL, PACK = "auto", "local", "pack"
"""The values of the setting ``toolchain``."""
NO_DEVICE = "none"
"""The value of the setting ``timings_of`` with which no timings choose configs."""
BEHIND, BEFORE, NEVER = "behind", "before", "never"
"""The values of the setting ``prove``."""
FAST_MATH = "--use_fast_math"
"""A flag of the compiler that the setting ``compiler_flags`` may contain."""
_PREFIX = "GEMM_CACHE_"
_FILE_NAME = "gemm-cache.toml"
CONFIG_VARIABLE = "GEMM_CACHE_CONFIG"
"""The environment variable with the path of the settings file; ``/dev/null`` means no file."""
_MOST_BYTES = 64 * 1024
_NOT_THERE = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EACCES}
)  # the last error: a home directory that this process may not enter
MOST_SLOTS = 1024  # each has a lock file


class Origin(StrEnum):
    """The origin of a setting's value; the enumeration's value is the text shown."""

    DEFAULT = "default"
    FILE = "settings file"
    ENVIRONMENT = "environment"
    GIVEN = "argument"


def _setting(kind: SettingKind, default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text, "kind": kind}, repr=not kind.is_secret)


@dataclass(frozen=True, slots=True, repr=False)
class Settings:
    """All settings, given as arguments, as ``GEMM_CACHE_<NAME>`` in the environment, or in a settings file.

    ``origins`` has the origin of each value that is not the default, as an ``Origin``.
    ``file`` is the settings file that was read, if any.
    """

    dir: Path | None = _setting(kinds.path(), None, "The store's directory. Default: the user cache directory.")
    max_bytes: int = _setting(kinds.size(), 5 * GIB, "Maximum store size, e.g. 5GiB.")
    max_entries: int = _setting(kinds.whole(), 5000, "Maximum number of kernels.")
    max_disk_share: float = _setting(
        kinds.number(most=1, above=True), 0.5, "Maximum store size as a fraction of free disk space (store included)."
    )
    expire_days: float = _setting(
        kinds.days(),
        POLICIES["standard"],
        "Evict kernels unused for this many days. development = 1, standard = 7, production = 30.",
    )
    eviction: str = _setting(
        kinds.choice("lru", "lru2", "value"),
        "lru",
        "What to evict first when a limit is exceeded. lru: the least recently used. lru2: by the last use but one. "
        "value: the least compile time saved per byte.",
    )
    cleanup_interval_h: float = _setting(kinds.number(), 24.0, "Automatic cleanup interval in hours (0 = off).")
    enable_jit: bool = _setting(kinds.yes_or_no(), True, "Compile kernels that are not cached.")
    enable_caching: bool | str = _setting(
        kinds.yes_no_or(PACKS),
        True,
        "Look kernels up in packs and on disk, and store them there. packs: packs alone, no directory is used.",
    )
    packs: tuple[Path, ...] = _setting(
        kinds.paths(), (), "Packs to search before the disk: files or directories; in the environment, colon-separated."
    )
    toolchain: str = _setting(
        kinds.choice(AUTO, LOCAL, PACK),
        "auto",
        "Kernels of which compilers to serve: local, the installed one; pack, first those that made the packs, last "
        "those that made the store; auto: the installed one, then those that made the packs; as pack where enable_jit "
        "is off or no compiler is installed.",
    )
    cuda: str = _setting(
        kinds.cuda_version(), "auto", "The CUDA that compiles. auto: the newest installed that driver and target allow."
    )
    memory_bytes: int = _setting(kinds.size(), GIB // 4, "In-process cache size.")
    device_memory_bytes: int | None = _setting(
        kinds.size(1, optional=True),
        None,
        "Maximum memory of each GPU for workspaces, copies and operands. Default: all there is.",
    )
    durability: str = _setting(
        kinds.choice("durable", "fast"), "durable", "durable: fsync before publish; fast: no fsync."
    )
    lock_timeout_s: float = _setting(
        kinds.number(), 60.0, "Seconds to wait for another process that compiles the same kernel, or for a slot."
    )
    compile_slots: int = _setting(
        kinds.whole(most=MOST_SLOTS),
        0,
        "How many kernels all processes of a store compile at a time. 0: one fewer than the processors, at least 1; "
        "warm, sample, tune and migrate use all processors, or --jobs.",
    )
    compiler_flags: tuple[str, ...] = _setting(
        kinds.texts(),
        (),
        "Extra compiler flags, such as --use_fast_math (part of the key); in the environment, space-separated.",
    )
    default_arch: str = _setting(kinds.text(), "sm_90", "Default target when there is no local GPU.")
    timings_of: str | None = _setting(
        kinds.text(optional=True),
        None,
        "Whose timings choose configs before the cost model: a GPU's name or fingerprint prefix; none: no GPU's. "
        "Default: the local GPU.",
    )
    prove: str = _setting(
        kinds.choice(BEHIND, BEFORE, NEVER),
        BEHIND,
        "When a GPU proves a faster family, which then serves: behind the first call, before it, or never.",
    )
    log: str | None = _setting(
        kinds.log_level(),
        None,
        "Print log messages of this level and above on standard error; with :json, as one JSON object a line.",
    )
    page_limit_s: float = _setting(
        kinds.number(), 10.0, "Time limit of searches and index queries of a dashboard page, in seconds."
    )
    caches: tuple[str, ...] = _setting(
        kinds.places(),
        (),
        "Further directories with caches of other frameworks, as KIND=DIR; in the environment, colon-separated.",
    )
    trust_store: bool = _setting(
        kinds.yes_or_no(), False, "Use a store or pack that another user owns or that others can write."
    )
    trusted_signers: Path | None = _setting(
        kinds.path(),
        None,
        "A file of public keys, as OpenSSH's allowed_signers; kernels of packs must be signed with one of them.",
    )
    host_code: bool = _setting(
        kinds.yes_or_no(),
        False,
        "Let code for the processor (objects of nvcc's launcher, parts of snapshots) into signed packs and remotes, "
        "and import and restore it where its signer is trusted.",
    )
    remote: str | None = _setting(
        kinds.text(optional=True),
        None,
        "What a team shares kernels through: s3://bucket/folder, gs://…, az://…, file:///folder or redis://host/0.",
    )
    remote_mode: str = _setting(
        kinds.choice("read", "write", "both", "off"),
        "read",
        "read: look kernels up in the remote that are not cached here. write: send it those that are compiled here.",
    )
    signing_key: Path | None = _setting(kinds.path(), None, "An OpenSSH private key (Ed25519) that signs what is sent.")
    broker: str | None = _setting(kinds.broker(), None, "The queue of a compile farm, in Redis: redis://host:6379/0.")
    stores: tuple[Path, ...] = _setting(kinds.paths(), (), "Further stores for the dashboard to show.")
    dashboard_read_only: bool = _setting(kinds.yes_or_no(), False, "Let no one change anything in the dashboard.")
    admin_token: str | None = _setting(
        kinds.token(),
        None,
        f"Token required for deleting and importing in the dashboard; {MIN_TOKEN_LENGTH} characters or more.",
    )
    admin_users: tuple[str, ...] = _setting(
        kinds.texts(),
        (),
        "Logged-in users allowed to: e-mail addresses, or * for every login; in the environment, space-separated.",
    )
    origins: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    file: Path | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Parses values given as text (sizes, lists, directories); raises ``UsageError`` for an invalid value."""
        for setting in SETTINGS:
            value = getattr(self, setting.name)
            if value is not setting.default:
                read = setting.metadata["kind"].program(value, f"setting {setting.name}")
                object.__setattr__(self, setting.name, read)

    @classmethod
    def load(
        cls, environment: Mapping[str, str] | None = None, *, file: str | Path | None = None, **overrides: Any
    ) -> Settings:
        """The defaults, overridden by the settings file, then by the environment, then by arguments.

        Args:
            environment: the environment variables; by default those of the process.
            file: the settings file; by default the one that ``GEMM_CACHE_CONFIG`` names, else the user's own.
            overrides: values of single settings, by name.

        Raises:
            UsageError: when a value cannot be used; the text names the setting, and the file or variable of the value.
        """
        if environment is None:
            environment = os.environ
            _warn_of_unknown(tuple(unknown_variables(environment)))
        settings = cls()
        path, is_named = _find(environment, file)
        said = None if path is None else _read(path, named=is_named)
        if path is not None and said is not None:
            settings = replace(_overridden(settings, _of_file(said, path, settings), Origin.FILE), file=path)
        texts = {name: text for name in (*BY_NAME, *REPLACED) if (text := environment.get(variable(name)))}
        given = {
            name: BY_NAME[name].metadata["kind"].text(text, variable(name))
            for name, text in texts.items()
            if name in BY_NAME
        }
        given |= _replaced(texts, given, settings, "the environment: ")
        return _overridden(settings, given, Origin.ENVIRONMENT).with_overrides(overrides)

    def __repr__(self) -> str:
        """The settings that differ from the default, without secrets."""
        changed = (one for one in fields(self) if one.repr and getattr(self, one.name) != one.default)
        return f"Settings({', '.join(f'{one.name}={getattr(self, one.name)!r}' for one in changed)})"

    def with_overrides(self, overrides: Mapping[str, Any]) -> Settings:
        """The same settings, with some values replaced by those of the program.

        Raises:
            UsageError: when a setting does not exist, or cannot have the value.
        """
        given = _without_retired(overrides)
        for name in given:
            if name not in BY_NAME:
                raise UsageError(f"{_no_setting(name)}; there are: {', '.join(BY_NAME)}")
        values = {
            name: BY_NAME[name].metadata["kind"].program(value, f"setting {name}") for name, value in given.items()
        }
        values |= _replaced(overrides, values, self)
        return _overridden(self, values, Origin.GIVEN)

    @property
    def serves_any_toolchain(self) -> bool:
        """Whether kernels of packs and of the store may serve, whichever build of the compiler has made them."""
        return self.toolchain == PACK or (self.toolchain == AUTO and not self.enable_jit)

    @property
    def serves_packs_of_any_toolchain(self) -> bool:
        """Whether kernels of packs may serve, whichever build of the compiler has made them."""
        return self.toolchain != LOCAL

    def made_here(self) -> Settings:
        """The same settings, but keys name only the installed compiler, even if a pack has kernels of another build."""
        return self if self.serves_any_toolchain else self.with_overrides({"toolchain": LOCAL})

    @property
    def reads_remote(self) -> bool:
        """Whether lookups ask the remote."""
        return bool(self.remote and self.enable_caching and self.remote_mode in ("read", "both"))

    @property
    def writes_remote(self) -> bool:
        """Whether kernels that are compiled here are sent to the remote."""
        return bool(self.remote and self.remote_mode in ("write", "both"))

    @property
    def is_durable(self) -> bool:
        """Whether published files are synced to disk."""
        return self.durability == "durable"

    @property
    def slots(self) -> int:
        """The number of kernels that may be compiled at the same time."""
        return self.compile_slots or max(1, len(os.sched_getaffinity(0)) - 1)

    def for_batch(self, jobs: int | None) -> Settings:
        """The settings for a command that compiles many kernels while no caller waits: it may use every processor core.

        Args:
            jobs: the number of compiles at the same time, if the user gave one; the setting ``compile_slots``
                has priority.
        """
        if self.compile_slots:
            return self
        return self.with_overrides({"compile_slots": min(MOST_SLOTS, jobs or len(os.sched_getaffinity(0)))})

    @property
    def uses_directory(self) -> bool:
        """Whether kernels are looked up and stored in a directory."""
        return bool(self.enable_caching) and self.enable_caching != PACKS

    def directory(self) -> Path:
        """The absolute path of the store's directory.

        Raises:
            StoreUnusable: when it would be in a home directory that does not exist, as for a container's user without a
                name.
        """
        if self.dir is not None:
            return expanded(Path(self.dir)).absolute()
        from platformdirs import user_cache_path  # takes 20 ms, and is rarely needed

        try:
            return user_cache_path("gemm-cache")
        except RuntimeError as error:
            raise StoreUnusable(
                "there is no default directory for the store, because this user has no home directory; name one with "
                "--store or GEMM_CACHE_DIR"
            ) from error

    @property
    def directory_exists(self) -> bool:
        """Whether this user can see a file or directory at the store's path."""
        with suppress(StoreUnusable):
            return os.path.exists(self.directory())
        return False

    def shown(self, name: str) -> str:
        """The value of a setting as text for people; for a secret, only whether it is set."""
        if name == "dir":
            with suppress(StoreUnusable):
                return str(self.directory())
        value = getattr(self, name)
        if BY_NAME[name].metadata["kind"].is_secret:
            return "not set" if value is None else "set"
        return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)

    def origin(self, name: str) -> str:
        """The origin of a setting's value."""
        return self.origins.get(name, Origin.DEFAULT)


SETTINGS = tuple(setting for setting in fields(Settings) if "help" in setting.metadata)
"""All settings in the order of the documentation: name, default, and in ``metadata`` the help text and the kind."""
BY_NAME = {setting.name: setting for setting in SETTINGS}
"""The settings by name."""
RETIRED = {
    "compress_results": "the evaluator's results are stored uncompressed; export them with a name that ends in .zst",
    "save_results_later": "results that are found in a row are written together",
    "preload_results": "the first lookup reads all results of its chip; a program can call evaluations.preload",
    "eviction_threshold": "a store above a limit is brought down to 0.8 of it; clean takes other limits",
    "compression": "compiled code on disk is compressed",
    "journal_flush_s": "usage counts are written every 5 s",
    "demand_half_life_h": "a request counts half as much after a week; demand --since counts those of a span alike",
    "promote_every_min": "run gemm-cache demand --promote --every MIN as a service",
    "fusion": "set switches.fusion in the program, or fusion=False of an operator or of matmul",
}
"""Settings of earlier versions that no longer exist, with a text about the behaviour now. Ignored with a warning."""
REPLACED = {
    "policy": "set expire_days to its name, or to a number of days",
    "fast_math": f"set compiler_flags to {FAST_MATH}",
    "use_timings": f"set timings_of to {NO_DEVICE} to use no timings",
}
"""Settings of earlier versions that are now a value of another setting. They work, with a warning, until 0.4."""


def variable(name: str) -> str:
    """The environment variable that sets a setting."""
    return f"{_PREFIX}{name.upper()}"


def _no_setting(name: str) -> str:
    """A sentence that says that a setting does not exist, and gives the most similar name."""
    meant = _closest(name.lower(), BY_NAME)
    return f"there is no setting {name[:60]!r}{f'; did you mean {meant}?' if meant else ''}"


def unknown_variables(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The variables ``GEMM_CACHE_…`` that set nothing, each with the variable that may be meant, or ``""``."""
    known = [*BY_NAME, *REPLACED, CONFIG_VARIABLE.removeprefix(_PREFIX).lower()]
    for name in sorted(environment):
        if name.startswith(_PREFIX) and name not in map(variable, known):
            meant = _closest(name.removeprefix(_PREFIX).lower(), known)
            yield name, variable(meant) if meant else ""


@cache
def _warn_of_unknown(variables: tuple[tuple[str, str], ...]) -> None:
    """Warns of environment variables that set nothing; once in a process."""
    if variables:
        import logging

        for name, meant in variables:
            logging.getLogger(__name__).warning("%s", unknown_in_words(name, meant))


def unknown_in_words(name: str, meant: str) -> str:
    """The message about an environment variable that sets nothing."""
    retired = name.removeprefix(_PREFIX).lower()
    if retired in RETIRED:
        return f"the environment variable {name} sets nothing any more: {RETIRED[retired]}"
    hint = f"did you mean {meant}?" if meant else "gemm-cache doctor --settings lists those that exist"
    return f"the environment variable {name} sets nothing; {hint}"


def _without_retired(values: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """The given values without values of retired and replaced settings; warns of retired ones."""
    _warn_of_retired(tuple(name for name in values if name in RETIRED), where)
    return {name: value for name, value in values.items() if name not in RETIRED and name not in REPLACED}


def _replaced(
    given: Mapping[str, object], values: Mapping[str, Any], settings: Settings, where: str = ""
) -> dict[str, Any]:
    """The values of present settings that replace the old settings (``REPLACED``) in ``given``; warns of each old one.

    Args:
        values: the values of present settings that are given together with the old ones.
        settings: the settings that apply if ``values`` does not have them.

    Raises:
        UsageError: when an old setting cannot have its value.
    """
    old = {
        name: (kinds.choice(*POLICIES) if name == "policy" else kinds.yes_or_no()).text(
            str(given[name]), f"{where}setting {name}"
        )
        for name in REPLACED
        if name in given
    }
    _warn_of_retired(tuple(old), where)
    found: dict[str, Any] = {}
    if "policy" in old and "expire_days" not in values:
        found["expire_days"] = POLICIES[str(old["policy"])]
    if "fast_math" in old:
        others = [flag for flag in values.get("compiler_flags", settings.compiler_flags) if flag != FAST_MATH]
        found["compiler_flags"] = (*([FAST_MATH] if old["fast_math"] else ()), *others)
    if old.get("use_timings") is False:
        found["timings_of"] = NO_DEVICE
    return found


@cache
def _warn_of_retired(names: tuple[str, ...], where: str) -> None:
    """Warns, once in a process, of settings that no longer exist."""
    if names:
        import logging

        log = logging.getLogger(__name__)
        for name in names:
            if name in RETIRED:
                log.warning("%sthe setting %s is ignored: %s", where, name, RETIRED[name])
            else:
                log.warning("%sthe setting %s goes with 0.4: %s", where, name, REPLACED[name])


def _closest(name: str, names: Iterable[str]) -> str:
    """The name in ``names`` most similar to ``name``; empty if none is similar."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, names, n=1, cutoff=0.75)), "")


def _overridden(settings: Settings, values: Mapping[str, Any], origin: Origin) -> Settings:
    """The settings with the checked ``values``."""
    return replace(settings, **values, origins={**settings.origins, **dict.fromkeys(values, origin)})


def _of_file(said: Mapping[str, object], path: Path, settings: Settings) -> dict[str, object]:
    """The checked values of a settings file; raises ``UsageError``, whose text has the file and the key."""
    where = f"settings file {path}: "
    given = _without_retired(said, where)
    for name in given:
        if name not in BY_NAME:
            what = "tables are not used" if isinstance(given[name], dict) else f"there are: {', '.join(BY_NAME)}"
            raise UsageError(f"{where}{_no_setting(name)}; {what}")
    values = {
        name: BY_NAME[name].metadata["kind"].file(value, path.parent, where + name) for name, value in given.items()
    }
    return values | _replaced(said, values, settings, where)


# ---- The settings file ----
# It is read from the user's own folder, or because the user names it; never from the current directory, which may be a
# project that another person controls.


def default_place(environment: Mapping[str, str]) -> Path | None:
    """The path of the user's own settings file, which may not exist; ``None`` if the user has no home directory.

    Computed as ``platformdirs`` does on Linux, because importing that package would double the time to the first key.
    """
    folder = environment.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(folder):
        folder = os.path.join(environment.get("HOME", ""), ".config")
    return Path(folder, "gemm-cache", _FILE_NAME) if os.path.isabs(folder) else None


def user_cache_folder(name: str) -> Path | None:
    """The path of a folder of ours in the user's cache directory; it may not exist. ``None`` without a home.

    Computed as ``platformdirs`` does on Linux, because importing that package would double the time to the first key.
    """
    home = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(home):
        home = os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home, name) if os.path.isabs(home) else None


def _find(environment: Mapping[str, str], named: str | Path | None) -> tuple[Path | None, bool]:
    """The settings file to read, if any; and whether the user named it, so that it must exist.

    Args:
        named: the file that an argument names. Without it, the one that the environment names is read, else the
            user's own.

    Raises:
        UsageError: when the name is empty.
    """
    if named is not None and not str(named):
        raise UsageError("the name of the settings file is empty; give a file")
    chosen = named or environment.get(CONFIG_VARIABLE)
    if chosen is None or not str(chosen):
        return default_place(environment), False
    path = expanded(Path(chosen)).absolute()
    return (None, True) if str(path) == os.devnull else (path, True)


def _read(path: Path, *, named: bool) -> dict[str, object] | None:
    """The content of a settings file, by key; ``None`` if it does not exist and was not named by the user.

    Args:
        named: whether the user named the file. A file that was not named is refused if users other than you and root
            can change it.

    Raises:
        UsageError: when the file cannot be read, is too large, or is not TOML; the text names the file.
    """
    try:
        with open_input(path) as file:
            why = "" if named else others_may_change(os.fstat(file.fileno()))
            content = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        if not named and isinstance(error, OSError) and error.errno in _NOT_THERE and not os.path.lexists(path):
            return None
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"settings file {path} cannot be read: {reason}") from error
    if why:
        raise UsageError(f"settings file {path} {why}; change that, or name the file with {CONFIG_VARIABLE} to use it")
    if len(content) > _MOST_BYTES:
        raise UsageError(f"settings file {path} has more than {_MOST_BYTES // 1024} KiB; it is not a settings file")
    import tomllib  # takes 5 ms, only if there is a file

    try:
        return tomllib.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UsageError(f"settings file {path} is not TOML: it is not UTF-8 text") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"settings file {path} is not TOML: {error}") from error
