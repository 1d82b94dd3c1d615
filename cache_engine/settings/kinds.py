"""Kinds of settings: how a value is read from text, from a settings file and from a program, and its allowed values."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from cache_engine.errors import StoreUnusable, UsageError

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _UNITS |= {f"{_letter}B": 1000**_power, f"{_letter}IB": 1024**_power, _letter: 1024**_power}

_WORDS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_MOST = 10**18
_MOST_SHOWN = 60  # characters of a refused value
POLICIES = {"standard": 7.0, "development": 1.0, "production": 30.0}
"""The days after which kernels expire, by the name of a use."""
LOG_LEVELS = ("debug", "info", "warning", "error")
MIN_TOKEN_LENGTH = 16  # letters and digits: too many to guess
MIN_TOKEN_CHARACTERS = 8  # different characters: random letters and digits have fewer once in five million times


class SettingKind(msgspec.Struct, frozen=True):
    """The kind of a setting's values.

    Attributes:
        allowed: the allowed values, as text.
        is_allowed: whether a value, in the form that the program uses, is allowed.
        of_text: converts a text, as the environment gives it; raises ``ValueError`` or ``KeyError``.
        of_file: converts a value in a settings file, given the file's folder; raises as ``of_text``.
        of_program: converts a value that a program gives.
        is_secret: whether an error must not show the value.
        why_not: a function that returns a value's fault as text, or an empty text if ``allowed`` explains the fault.
    """

    allowed: str
    is_allowed: Callable[[object], bool]
    of_text: Callable[[str], object] = lambda text: text
    of_file: Callable[[object, Path], object] = lambda value, _: value
    of_program: Callable[[object], object] = lambda value: value
    is_secret: bool = False
    why_not: Callable[[object], str] = lambda _: ""

    def text(self, text: str, where: str) -> object:
        """The value of the setting in the text ``text``; raises ``UsageError`` unless it is allowed.

        Args:
            where: the origin of the text, for the error.
        """
        return self._read(lambda: self.of_text(text), text, where)

    def file(self, value: object, folder: Path, where: str) -> object:
        """The value of the setting from a value in a settings file in ``folder``; raises as ``text``."""
        return self._read(lambda: self.of_file(value, folder), value, where)

    def program(self, value: object, where: str) -> object:
        """The value of the setting from a value that a program gives; raises as ``text``."""
        return self._read(lambda: self.of_program(value), value, where)

    def _read(self, read: Callable[[], object], given: object, where: str) -> object:
        try:
            value = read()
        except (KeyError, TypeError, ValueError, UsageError) as error:
            raise self._refused(given, where) from error
        if not self.is_allowed(value):
            raise self._refused(given, where)
        if reason := self.why_not(value):
            raise UsageError(f"{where} {reason}")
        return value

    def _refused(self, given: object, where: str) -> UsageError:
        if self.is_secret:
            return UsageError(f"{where} must be {self.allowed}")
        shown = repr(given)
        shown = shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}…"
        return UsageError(f"{where} is {shown}; it must be {self.allowed}")


def yes_or_no() -> SettingKind:
    """Settings that are true or false."""
    return SettingKind(
        "yes or no (in a file: true or false)", lambda value: isinstance(value, bool), lambda text: _WORDS[text.lower()]
    )


def yes_no_or(*names: str) -> SettingKind:
    """Settings that are true, false or one of the names."""

    def of_text(text: str) -> object:
        return text.lower() if text.lower() in names else _WORDS[text.lower()]

    def is_allowed(value: object) -> bool:
        return isinstance(value, bool) or value in names

    return SettingKind(f"yes, no (in a file: true, false) or {' or '.join(names)}", is_allowed, of_text)


def whole(most: int = _MOST) -> SettingKind:
    """Settings that are an integer from 0 to ``most``."""
    allowed = "a whole number that is not negative" if most == _MOST else f"a whole number from 0 to {most:,}"
    return SettingKind(allowed, lambda value: _is_number(value, int) and value <= most, int)  # type: ignore[operator]


def number(least: float = 0.0, *, most: float = _MOST, above: bool = False) -> SettingKind:
    """Settings that are a number from ``least`` (or with ``above``, greater than ``least``) to ``most``."""
    allowed = "a number that is not negative" if not least else f"a number of at least {least:g}"
    if above:
        allowed = f"a number above {least:g}"
    if most < _MOST:
        allowed += f", at most {most:g}"

    def is_allowed(value: object) -> bool:
        return _is_number(value, int, float) and least <= value <= most and (value > least or not above)  # type: ignore[operator]

    return SettingKind(allowed, is_allowed, float)


def days() -> SettingKind:
    """Settings that are a number of days, or the name of a policy, which stands for such a number."""
    usual = number()

    def named(value: object) -> object:
        return POLICIES.get(value, value) if isinstance(value, str) else value

    return SettingKind(
        f"{usual.allowed}, or one of: {', '.join(POLICIES)}", usual.is_allowed,
        lambda text: float(POLICIES.get(text, text)), lambda value, _: named(value), named,
    )  # fmt: skip


def size(least: int = 0, *, optional: bool = False) -> SettingKind:
    """Settings that are a number of bytes, as a number or a text such as ``5GiB``; if ``optional``, also no value."""

    def parsed(value: object) -> object:
        return parse_bytes(value) if isinstance(value, str) else value

    def is_allowed(value: object) -> bool:
        return (optional and value is None) or (_is_number(value, int, float) and value >= least)  # type: ignore[operator]

    bound = "that is not negative" if not least else f"of at least {least:,}"
    allowed = f"a size, such as 5GiB or 2GB, or a number of bytes {bound}"
    return SettingKind(allowed, is_allowed, parse_bytes, lambda value, _: parsed(value), parsed)


def choice(*names: str) -> SettingKind:
    """Settings that are one of the names."""
    return SettingKind(f"one of: {', '.join(names)}", lambda value: value in names)


def cuda_version() -> SettingKind:
    """Settings that are a major version of CUDA, as a number or a text, or ``auto``."""
    names = ("auto", "12", "13")
    return SettingKind(
        f"one of: {', '.join(names)}", lambda value: value in names, of_file=lambda value, _: str(value), of_program=str
    )


def log_level() -> SettingKind:
    """Settings with the lowest level of the log messages that are printed, and their form; or no value."""

    def is_allowed(value: object) -> bool:
        return value is None or (isinstance(value, str) and value.removesuffix(":json") in LOG_LEVELS)

    return SettingKind(f"one of: {', '.join(LOG_LEVELS)}; each also with :json", is_allowed, str.lower)


def text(*, optional: bool = False) -> SettingKind:
    """Settings that are any text; if ``optional``, also no value."""
    return SettingKind("a text", lambda value: isinstance(value, str) or (optional and value is None))


def broker() -> SettingKind:
    """Settings that are the URL of a broker, which may contain a password; or no value."""

    def is_allowed(value: object) -> bool:
        return value is None or (isinstance(value, str) and value.startswith("redis://"))

    return SettingKind("a URL such as redis://host:6379/0", is_allowed, is_secret=True)


def texts() -> SettingKind:
    """Settings that are a list of texts: separated by spaces in the environment, an array in a file."""

    def is_allowed(value: object) -> bool:
        return isinstance(value, tuple) and all(isinstance(part, str) for part in value)

    def of_file(value: object, folder: Path) -> object:  # noqa: ARG001
        return tuple(value) if isinstance(value, list) else None

    return SettingKind(
        "a list of texts (in a program: a tuple)", is_allowed, lambda given: tuple(given.split()), of_file
    )


def path() -> SettingKind:
    """Settings that are the path of a file or folder, or no value. In a file, it is relative to the file's folder."""

    def is_allowed(value: object) -> bool:
        return value is None or _is_path(value)

    return SettingKind("a path that is not empty", is_allowed, Path, _path_in_file, lambda value: _path(value))


def paths() -> SettingKind:
    """Settings that are a list of paths: separated by colons in the environment, an array in a file.

    A single path is a list of one.
    """

    def is_allowed(value: object) -> bool:
        return isinstance(value, tuple) and all(_is_path(part) for part in value)

    def of_text(text: str) -> object:
        return tuple(expanded(Path(place)) for place in text.split(os.pathsep) if place)

    def of_file(value: object, folder: Path) -> object:
        parts = value if isinstance(value, list) else [value]
        return tuple(_path_in_file(part, folder) for part in parts)

    def of_program(value: object) -> object:
        return (_path(value),) if isinstance(value, str | Path) else tuple(map(_path, value))  # type: ignore[call-overload]

    return SettingKind("a list of paths that are not empty", is_allowed, of_text, of_file, of_program)


def places() -> SettingKind:
    """Settings that are a list of directories, each with its kind of cache: ``KIND=DIR``; separated as ``paths``."""

    def is_allowed(value: object) -> bool:
        return isinstance(value, tuple) and all(isinstance(part, str) and _is_place(part) for part in value)

    def of_text(text: str) -> object:
        return tuple(_place(part, Path()) for part in text.split(os.pathsep) if part)

    def of_file(value: object, folder: Path) -> object:
        parts = value if isinstance(value, list) else [value]
        return tuple(_place(part, folder) for part in parts)

    def of_program(value: object) -> object:
        parts = [value] if isinstance(value, str) else value
        return tuple(_place(part, Path()) for part in parts)  # type: ignore[attr-defined]

    return SettingKind("a list of KIND=DIR, such as triton=/scratch/triton", is_allowed, of_text, of_file, of_program)


def parse_place(text: str) -> tuple[str, Path]:
    """The kind and the directory of ``KIND=DIR``; raises ``UsageError``."""
    kind, path = _parted(text)
    return kind, path.absolute()


def _is_place(text: str) -> bool:
    kind, _, path = text.partition("=")
    return bool(kind and path) and "\0" not in text


def _place(value: object, folder: Path) -> str:
    """The text ``KIND=DIR`` from a value in a settings file, with an absolute path."""
    if not isinstance(value, str):
        raise TypeError(value)
    kind, path = _parted(value)
    return f"{kind}={(folder / path).absolute()}"


def _parted(text: str) -> tuple[str, Path]:
    kind, _, path = text.partition("=")
    if not _is_place(text):
        raise UsageError(f"{text[:_MOST_SHOWN]!r} is not of the form KIND=DIR, such as triton=/scratch/triton")
    return kind, expanded(Path(path))


def token() -> SettingKind:
    """Settings that are a secret long enough that nobody can guess it; or empty for no secret."""

    def why_not(value: object) -> str:
        # The text does not show the value: a nearly valid value is nearly the secret.
        if isinstance(value, str) and len(value.strip()) < MIN_TOKEN_LENGTH:
            return f"is too short; it must have {MIN_TOKEN_LENGTH} characters or more"
        if isinstance(value, str) and len(set(value.strip())) < MIN_TOKEN_CHARACTERS:
            return (
                f"is too easy to guess; it must have {MIN_TOKEN_CHARACTERS} different characters or more, such as "
                'python -c "import secrets; print(secrets.token_urlsafe(24))" prints'
            )
        return ""

    def is_allowed(value: object) -> bool:
        return value is None or isinstance(value, str)

    return SettingKind("a text", is_allowed, is_secret=True, why_not=why_not)


def parse_bytes(text: str) -> int:
    """Bytes from text such as ``2GB`` (powers of 1000), ``2GiB`` or ``2G`` (powers of 1024), or a plain number.

    Raises:
        UsageError: when the text is not a number of bytes.
    """
    match = re.fullmatch(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([KMGT]?I?B?)", text.strip().upper())
    if match is None or match[2] not in _UNITS:
        raise UsageError(f"{text!r} is not a size; write it like 2GB, 512MiB or 1000000")
    return int(float(match[1]) * _UNITS[match[2]])


def expanded(path: Path) -> Path:
    """A path in which a leading ``~`` or ``~USER`` is replaced by the home directory; raises ``StoreUnusable``."""
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise StoreUnusable(f"{path}: the home directory {path.parts[0]} is unknown; give the whole path") from error


def _is_number(value: object, *types: type) -> bool:
    return not isinstance(value, bool) and isinstance(value, types) and 0 <= value <= _MOST  # type: ignore[operator]


def _is_path(value: object) -> bool:
    return isinstance(value, Path) and "\0" not in str(value)


def _path(value: object) -> object:
    return Path(value) if isinstance(value, str) and value else value


def _path_in_file(value: object, folder: Path) -> object:
    return folder / expanded(Path(value)) if isinstance(value, str) and value else value
