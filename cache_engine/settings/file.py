"""The settings file: where it is, and what it says.

A file is read from the user's own folder, or because the user names it; never from the current directory, which may be
a project that another person controls.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path

from cache_engine.errors import UsageError
from cache_engine.inputs import open_input, others_may_change
from cache_engine.settings.kinds import expanded

NAME = "gemm-cache.toml"
VARIABLE = "GEMM_CACHE_CONFIG"
"""The environment variable that names the file; ``/dev/null`` means no file."""
_MOST_BYTES = 64 * 1024
_NOT_THERE = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EACCES}
)  # the last in a home that this process may not enter


def default_place(environment: Mapping[str, str]) -> Path | None:
    """The user's own settings file, there or not; ``None`` where the user has no home.

    As platformdirs has it on Linux, whose import takes as long as everything else before the first key.
    """
    folder = environment.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(folder):
        folder = os.path.join(environment.get("HOME", ""), ".config")
    return Path(folder, "gemm-cache", NAME) if os.path.isabs(folder) else None


def user_cache_folder(name: str) -> Path | None:
    """A folder of ours among the user's caches, made or not; ``None`` where the user has none.

    As platformdirs has it on Linux, whose import takes as long as everything else before the first key.
    """
    home = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(home):
        home = os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home, name) if os.path.isabs(home) else None


def find(environment: Mapping[str, str], named: str | Path | None) -> tuple[Path | None, bool]:
    """The settings file to read, if any, and whether it was named: then it must be there.

    Args:
        named: the file that an argument names; before the environment, and that before the user's own.

    Raises:
        UsageError: when the name is empty.
    """
    if named is not None and not str(named):
        raise UsageError("the name of the settings file is empty; give a file")
    chosen = named or environment.get(VARIABLE)
    if chosen is None or not str(chosen):
        return default_place(environment), False
    path = expanded(Path(chosen)).absolute()
    return (None, True) if str(path) == os.devnull else (path, True)


def read(path: Path, *, named: bool) -> dict[str, object] | None:
    """The content of a settings file, by key; ``None`` when there is no file and none was named.

    Args:
        named: whether the user names the file. Another that users other than you and root can change is refused.

    Raises:
        UsageError: when it cannot be read, is too large, or is not TOML; with the file's name.
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
        raise UsageError(f"settings file {path} {why}; change that, or name the file with {VARIABLE} to use it")
    if len(content) > _MOST_BYTES:
        raise UsageError(f"settings file {path} has more than {_MOST_BYTES // 1024} KiB; it is not a settings file")
    import tomllib  # 5 ms, where there is a file

    try:
        return tomllib.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UsageError(f"settings file {path} is not TOML: it is not UTF-8 text") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"settings file {path} is not TOML: {error}") from error
