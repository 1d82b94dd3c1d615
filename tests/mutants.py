"""Puts one small mistake at a time into a copy of the code, and says which ones the nearest tests let live.

``python -m tests.mutants 40`` takes 40 places by chance in ``ROOMS``; ``--seed`` takes others. The nearest tests of a
module are the files that import it, or start one of its verbs, those that say most of it first; then those of the
modules that import it; then its room's. A mistake that the three nearest do not see is given to ``_MORE`` others, so
that one that lives is a missing assertion and not a test that did not run.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("team", "usage", "insight", "cli", "upkeep", "cache")
_FILES, _MORE = 3, 15
_LIMIT_S = 400
_MOST_RED = 5
_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
}  # fmt: skip


def _changed(node: ast.AST) -> ast.AST | None:
    """The mistake at a place of the code; ``None`` where none is made."""
    wrong = copy.deepcopy(node)
    match wrong:
        case ast.Compare(ops=[op]) if type(op) in _COMPARED:
            wrong.ops = [_COMPARED[type(op)]()]
        case ast.BinOp(op=op) if type(op) in _COMPUTED:
            wrong.op = _COMPUTED[type(op)]()
        case ast.BoolOp(op=op):
            wrong.op = ast.Or() if isinstance(op, ast.And) else ast.And()
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return operand
        case ast.Constant(value=bool(value)):
            wrong.value = not value
        case ast.Constant(value=int(value)):
            wrong.value = value + 1
        case ast.Expr(value=ast.Call()):
            return ast.Pass()
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            wrong.value = ast.Constant(None)
        case _:
            return None
    return wrong


class _Put(ast.NodeTransformer):
    """Puts the mistake of the place with this number into a tree, or counts the places."""

    def __init__(self, number: int = -1) -> None:
        self.places, self.said, self._number = 0, "", number

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.AnnAssign) and node.value is None:
            return node
        if isinstance(node, ast.keyword) and node.arg in (
            "strict",
            "frozen",
            "kw_only",
        ):  # changes nothing that is right
            return node
        wrong = _changed(node)
        if wrong is not None:
            self.places += 1
            if self.places - 1 == self._number:
                line = getattr(node, "lineno", 0)
                self.said = (
                    f"{line}: {ast.unparse(node)[:60]!r} → {ast.unparse(ast.fix_missing_locations(wrong))[:60]!r}"
                )
                return ast.copy_location(wrong, node)
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list"):
                continue
            if isinstance(value, list):
                value[:] = [self.visit(one) if isinstance(one, ast.AST) else one for one in value]
            elif isinstance(value, ast.AST):
                setattr(node, field, self.visit(value))
        return node


def _places(rooms: tuple[str, ...]) -> Iterator[tuple[Path, int]]:
    for room in rooms:
        for path in sorted((ROOT / "cache_engine" / room).rglob("*.py")):
            counting = _Put()
            counting.visit(ast.parse(path.read_text()))
            yield from ((path.relative_to(ROOT), number) for number in range(counting.places))


def _nearest(path: Path) -> list[Path]:
    """The test files of a module, the nearest first."""
    room = Path("tests", path.parts[1])
    found = _tests_of(path, room)
    for one in _users(path):
        found += [test for test in _tests_of(one) if test not in found]
    inside = [one for one in _test_files() if one.parts[:2] == room.parts]
    return found + [one for one in inside if one not in found]


def _tests_of(path: Path, room: Path | None = None) -> list[Path]:
    """The test files that use a module or start one of its verbs: of ``room`` first, then those that say most of it."""
    verbs = "|".join(
        re.findall(r'click\.group\(\s*"([\w-]+)"', _text(path))
        or re.findall(r'click\.command\(\s*"([\w-]+)"', _text(path))
    )
    uses = re.compile(rf"{_imported(path)}|(?:run|document)\(\s*(?:\"[\w-]+\",\s*)?\"(?:{verbs or '(?!)'})\"")
    said = {one: len(uses.findall(text)) / (len(text) + 1) for one in _test_files() for text in (_text(one),)}
    found = [one for one in said if said[one]]
    return sorted(found, key=lambda one: (room is not None and one.parts[:2] != room.parts, -said[one]))


def _users(path: Path) -> list[Path]:
    """The modules that name a module."""
    uses = re.compile(_imported(path))
    modules = [one.relative_to(ROOT) for one in sorted((ROOT / "cache_engine").rglob("*.py"))]
    return [one for one in modules if one != path and uses.search(_text(one))]


def _imported(path: Path) -> str:
    """The pattern of an import of a module."""
    module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    package, _, name = module.rpartition(".")
    return rf"{re.escape(module)}\b|from {re.escape(package)} import [^\n]*\b{name}\b"


@cache
def _test_files() -> list[Path]:
    found = [one.relative_to(ROOT) for one in sorted((ROOT / "tests").rglob("test_*.py"))]
    return [one for one in found if one.parts[1] not in ("browser", "faults")]


@cache
def _text(path: Path) -> str:
    return (ROOT / path).read_text()


@cache
def _is_red(at: Path, tests: tuple[str, ...]) -> bool:
    """Whether these tests fail or do not end without any mistake: then they can see none."""
    return _failed(at, tests) != ""


def _failed(at: Path, tests: tuple[str, ...], without: tuple[str, ...] = ()) -> str | None:
    """The first test that fails; empty where none does, ``None`` where they do not end."""
    command = (sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", "-m", "not soak and not gpu", *tests)
    command += tuple(f"--deselect={one}" for one in without)
    environment = {**os.environ, "PYTHONPATH": str(at), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=at, env=environment, capture_output=True, timeout=_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode in (0, 5):  # 5: all tests are deselected
        return ""
    first = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", done.stdout.decode(errors="replace"), re.MULTILINE)
    return first[1] if first else tests[0]


def _seen_by(at: Path, path: Path, wrong: str, tests: tuple[str, ...]) -> str | None:
    """The first of these tests that sees the mistake; empty where none does, ``None`` where they give no answer."""
    red: tuple[str, ...] = ()
    while tests:
        (at / path).write_text(wrong)
        failed = _failed(at, tests, red)
        shutil.copyfile(ROOT / path, at / path)
        if failed is None:
            return None if _is_red(at, tests) else f"{tests[0]}, which does not end"
        if not failed or not _is_red(at, (failed,)):
            return failed
        if failed in red or len(red) == _MOST_RED:
            return None
        red += (failed,)
    return ""


def main() -> None:
    """Prints a line for each mistake, and how many were seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rooms", nargs="+", default=ROOMS)
    asked = parser.parse_args()
    taken = random.Random(asked.seed).sample(list(_places(tuple(asked.rooms))), asked.count)
    seen = alive = 0
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # some tests run as a user that owns nothing
        at = Path(folder, "copy")
        shutil.copytree(ROOT, at, ignore=shutil.ignore_patterns(".venv", ".git", "mutants", "site"))
        for path, number in taken:
            nearest = tuple(map(str, _nearest(path)[: _FILES + _MORE]))
            put = _Put(number)
            wrong = ast.unparse(ast.fix_missing_locations(put.visit(ast.parse((ROOT / path).read_text()))))
            failed = _seen_by(at, path, wrong, nearest[:_FILES])
            if failed == "":
                failed = _seen_by(at, path, wrong, nearest[_FILES:])
            is_seen = None if failed is None else failed != ""
            seen, alive = seen + (is_seen is True), alive + (is_seen is False)
            word = {True: "seen", False: "ALIVE", None: "without an answer"}[is_seen]
            by = f" by {failed}" if failed else ""
            print(f"{word}{by} {path}:{put.said}; {seen} of {seen + alive} seen", flush=True)


if __name__ == "__main__":
    main()
