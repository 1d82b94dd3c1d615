"""The regular expressions of the program, found in its code, and texts on which one that backtracks is slow."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
_FOLDERS = ("cache_engine", "app", "pages")
_METHODS = ("match", "fullmatch", "search", "findall", "finditer", "split", "sub", "subn")
_OTHERS = ("\0", " ", "\n", "a", "A", "1", "-", "_", "/", '"', "(", ".", "é")
_CATEGORIES = {"DIGIT": "1", "SPACE": " ", "WORD": "a", "NOT_DIGIT": "a", "NOT_SPACE": "a", "NOT_WORD": "-"}
_parser: Any = importlib.import_module("re._parser")  # of the standard library, which has no public one


@dataclass(frozen=True)
class Used:
    """A pattern, and the methods of it that its module calls."""

    where: str
    pattern: re.Pattern[Any]
    methods: tuple[str, ...]

    def run(self, text: str) -> None:
        """Calls each method with a text."""
        given = text.encode("latin-1") if isinstance(self.pattern.pattern, bytes) else text
        for method in self.methods:
            found = getattr(self.pattern, method)(*([given[:0]] if method.startswith("sub") else []), given)
            if method == "finditer":
                for _ in found:
                    pass


def used() -> Iterator[Used]:
    """The patterns that modules compile, or pass to a function of ``re``."""
    for folder in _FOLDERS:
        for path in sorted((_ROOT / folder).rglob("*.py")):
            text = path.read_text()
            if re.search(r"^\s*(?:import re$|from re )", text, re.MULTILINE):
                yield from _used_in(".".join(path.relative_to(_ROOT).with_suffix("").parts), ast.parse(text))


def _used_in(name: str, tree: ast.Module) -> Iterator[Used]:
    module = importlib.import_module(name.removesuffix(".__init__"))
    called: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in _METHODS:
            called.setdefault(ast.unparse(node.value), set()).add(node.attr)
        if isinstance(node, ast.Call) and ast.unparse(node.func).removeprefix("re.") in _METHODS:
            # A pattern that is an argument of its function is a constant elsewhere.
            values = [ast.unparse(each) for each in (node.args[0], *(word.value for word in node.keywords))]
            try:
                pattern = re.compile(*(eval(each, vars(module).copy()) for each in values))
            except NameError:
                assert values[0].isidentifier(), f"{name}, line {node.lineno}"
                continue
            yield Used(f"{name}, line {node.lineno}", pattern, (ast.unparse(node.func).removeprefix("re."),))
    every = {method for of, methods in called.items() if of != "re" for method in methods}
    for variable, value in vars(module).items():
        for pattern in _compiled(value):
            yield Used(f"{name}.{variable}", pattern, tuple(sorted(called.get(variable, every))))
        if isinstance(value, type) and value.__module__ == module.__name__:
            # Another class may be what uses it: that of ``foreign.frameworks.reader`` matches whole paths.
            for attribute, inner in vars(value).items():
                for pattern in _compiled(inner):
                    methods = called.get(f"self.{attribute}", {"fullmatch"})
                    yield Used(f"{name}.{variable}.{attribute}", pattern, tuple(sorted(methods)))


def _compiled(value: object) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _compiled(each)


@dataclass(frozen=True)
class Recipe:
    """A text of any length: its start, each of some parts repeated, and its end."""

    start: str
    parts: tuple[str, ...]
    end: str

    def text(self, size: int) -> str:
        """About so many letters."""
        each = size // len(self.parts)
        return self.start + "".join(part * (each // len(part) + 1) for part in self.parts) + self.end


def recipes(pattern: re.Pattern[Any], signs: Sequence[str] = ()) -> Iterator[Recipe]:
    """Texts that begin as a match does, then repeat a part of one, or of its beginning, and do not end as a match.

    Args:
        signs: what is repeated too, and may stand between the beginnings.
    """
    source = pattern.pattern
    tree = _parser.parse(source, pattern.flags & ~re.UNICODE if isinstance(source, bytes) else pattern.flags)
    cuts = [*dict.fromkeys(_cuts(tree))]
    pumps = dict.fromkeys(
        (start, (part,))
        for before, after in cuts
        for start, part in (
            *((before, each) for each in (after, *signs)),
            *(("", before + after + sign) for sign in ("", ":", *signs)),
        )
        if part
    )
    wholes = tuple(before + after for before, after in cuts if before + after)
    return (Recipe(*each, end) for each in (*pumps, ("", wholes)) for end in ("\0", ""))


def _cuts(tree: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """For each element of a parsed pattern, also within others: what matches before it, and what matches it."""
    items = [(str(op), value) for op, value in tree]
    for choice in (0, 1, -1):
        before = ""
        for op, value in items:
            part = _example(op, value, choice)
            yield before, part
            for inner in _within(op, value):
                for more, piece in _cuts(inner):
                    yield before + more, piece
            before += part


def _within(op: str, value: Any) -> Sequence[Any]:
    match op:
        case "BRANCH":
            return value[1]  # type: ignore[no-any-return]
        case "SUBPATTERN":
            return [value[-1]]
        case "ATOMIC_GROUP":
            return [value]
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            return [value[2]]
    return []


def _example(op: str, value: Any, choice: int) -> str:
    """A text that an element matches; nothing for what only looks around."""
    match op:
        case "LITERAL":
            return chr(value)
        case "NOT_LITERAL":
            return "b" if value == ord("a") else "a"
        case "ANY":
            return "a"
        case "IN":
            return next(each for each in (*_first(value), *_OTHERS) if _is_in(value, each))
        case "BRANCH":
            return _examples(value[1][choice if choice < len(value[1]) else 0], choice)
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            return _examples(value[2], choice) * max(int(value[0]), 0 if choice < 0 else 1)
    return "".join(_examples(inner, choice) for inner in _within(op, value))


def _examples(tree: Iterable[Any], choice: int) -> str:
    return "".join(_example(str(op), value, choice) for op, value in tree)


def _first(members: Sequence[Any]) -> Iterator[str]:
    for op, value in members:
        match str(op):
            case "LITERAL":
                yield chr(value)
            case "RANGE":
                yield chr(value[0])
            case "CATEGORY":
                yield _CATEGORIES[str(value).removeprefix("CATEGORY_")]


def _is_in(members: Sequence[Any], sign: str) -> bool:
    is_negated = str(members[0][0]) == "NEGATE"
    for op, value in members:
        match str(op):
            case "LITERAL" if value == ord(sign):
                return not is_negated
            case "RANGE" if value[0] <= ord(sign) <= value[1]:
                return not is_negated
            case "CATEGORY" if sign in _CATEGORIES.values() or sign.isspace():
                kind = str(value).removeprefix("CATEGORY_")
                is_kind = {"DIGIT": sign.isdigit(), "SPACE": sign.isspace(), "WORD": sign.isalnum() or sign == "_"}
                if is_kind[kind.removeprefix("NOT_")] != kind.startswith("NOT_"):
                    return not is_negated
    return is_negated
