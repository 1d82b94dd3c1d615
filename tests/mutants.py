"""Puts one small mistake at a time into a copy of the code, and says which ones the nearest tests let live.

``python -m tests.mutants 40`` takes 40 places by chance in ``ROOMS``; ``--seed`` takes others. The nearest tests of a
module are the files that import it, or start one of its verbs, the three that say most of it; where there are none,
those of its room.
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
_FILES = 3
_LIMIT_S = 100
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
    module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    package, _, name = module.rpartition(".")
    verbs = "|".join(re.findall(r'click\.(?:command|group)\(\s*"([\w-]+)"', (ROOT / path).read_text())) or "(?!)"
    uses = re.compile(
        rf"{re.escape(module)}\b|from {re.escape(package)} import [^\n]*\b{name}\b|(?:run|document)\(\s*\"(?:{verbs})\""
    )
    room = Path("tests", path.parts[1])
    tests = [one.relative_to(ROOT) for one in sorted((ROOT / "tests").rglob("test_*.py"))]
    found = [
        one for one in tests if uses.search((ROOT / one).read_text()) and one.parts[1] not in ("browser", "faults")
    ]
    if not found:
        names = [*path.parts[2:-1], path.stem]
        found = [one for one in tests if one.parts[:2] == room.parts and any(name in one.stem for name in names)]

    def said_of_it(one: Path) -> float:
        text = (ROOT / one).read_text()
        return len(uses.findall(text)) / len(text)

    return sorted(found, key=lambda one: (one.parts[:2] != room.parts, -said_of_it(one)))[:_FILES] or [room]


@cache
def _is_red(at: Path, tests: tuple[str, ...]) -> bool:
    """Whether these tests fail or do not end without any mistake: then they can see none."""
    return _failed(at, tests) != ""


def _failed(at: Path, tests: tuple[str, ...]) -> str | None:
    """The first test that fails; empty where none does, ``None`` where they do not end."""
    command = (sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", "-m", "not soak and not gpu", *tests)
    environment = {**os.environ, "PYTHONPATH": str(at), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=at, env=environment, capture_output=True, timeout=_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode == 0:
        return ""
    first = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout.decode(errors="replace"), re.MULTILINE)
    return first[1] if first else tests[0]


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
        at = Path(folder, "copy")
        shutil.copytree(ROOT, at, ignore=shutil.ignore_patterns(".venv", ".git", "mutants", "site"))
        for path, number in taken:
            tests = tuple(map(str, _nearest(path)))
            put = _Put(number)
            wrong = ast.unparse(ast.fix_missing_locations(put.visit(ast.parse((ROOT / path).read_text()))))
            (at / path).write_text(wrong)
            failed = _failed(at, tests)
            shutil.copyfile(ROOT / path, at / path)
            without = failed and _is_red(at, (failed,)) if failed is not None else _is_red(at, tests)
            is_seen = None if without else failed != ""
            seen, alive = seen + (is_seen is True), alive + (is_seen is False)
            word = {True: "seen", False: "ALIVE", None: "without an answer"}[is_seen]
            print(f"{word} {path}:{put.said}; {seen} of {seen + alive} seen", flush=True)


if __name__ == "__main__":
    main()
