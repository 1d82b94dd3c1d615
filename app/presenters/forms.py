"""The form of a problem on Compile and Predict: its fields, the problems that it describes, and its commands.

Every field is defined once, and has one name in addresses and the session, so both pages share its value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from app.presenters.shared import Row
from cache_engine.batch.tuning import TOP
from cache_engine.compilers import COMPILERS
from cache_engine.errors import GemmCacheError
from cache_engine.evaluator.catalogue import TOKENS, model_shapes
from cache_engine.kernels.select import FAMILIES
from cache_engine.model.architecture import ARCHITECTURES
from cache_engine.model.gemm import MAX_DIMENSION, GemmProblem
from cache_engine.model.gemm.fields import FIELDS, JOINED, ProblemField
from cache_engine.model.job import JobArguments
from cache_engine.model.kernel import KernelConfig

AS_INPUTS, AUTO, WITHOUT = "same as A and B", "auto", "none"
AS_SET, ON, OFF = "as set", "on", "off"
OWN_TABLE = "CSV file"
"""The choice, among the models, of a table of shapes that the reader uploads."""
STDIN = "/dev/stdin"
PREFIX = "s_"
"""The beginning of every field's name in addresses and the session."""
LONGEST_TEXT = 200
_MOST_DIGITS = 20


class FieldKind(Enum):
    """The kind of a field's value."""

    NUMBER = "a whole number of at least 1"
    CHOICE = "one of several"
    SEVERAL = "any of several"
    TEXT = "text"
    SWITCH = "on or off"
    EITHER = "on, off, or as the settings say"


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a form.

    Attributes:
        name: the field's name in a job's request; in the address and the session it is the field's ``key``.
        option: the option of the command that the value is for; empty for an argument.
        default: the value that the command leaves out, unless ``always``.
        choices: the values to choose from.
        most: the largest number that the field takes.
        joined: the text between several values; empty if the option is repeated for each value.
        rare: whether the field is under "More".
    """

    name: str
    label: str
    kind: FieldKind
    default: Any
    option: str = ""
    choices: tuple[str, ...] = ()
    most: int = MAX_DIMENSION
    joined: str = ""
    help: str | None = None
    rare: bool = False
    always: bool = False

    @property
    def key(self) -> str:
        """The field's name in addresses and the session, where no field of another page has it."""
        several_targets = self.name == "arch" and self.kind is FieldKind.SEVERAL
        return f"{PREFIX}{'targets' if several_targets else self.name}"

    def arguments(self, value: Any) -> list[str]:
        """The arguments of the command for a value."""
        if not self.option:
            return [str(value)]
        if value == self.default and not self.always:
            return []
        if self.kind is FieldKind.SWITCH:
            return [self.option]
        if self.kind is FieldKind.EITHER:
            return [self.option if value == ON else f"--no-{self.option.removeprefix('--')}"]
        texts = [str(value)] if self.kind is not FieldKind.SEVERAL else [str(each) for each in value]
        if self.joined:
            texts = [self.joined.join(texts)]
        return [part for text in texts for part in (self.option, text)]

    def from_address(self, texts: Sequence[str]) -> Any:
        """The value that an address states; ``takes`` says whether the form can show it."""
        if self.kind is FieldKind.SEVERAL:
            return [text for text in texts if text in self.choices]
        text = texts[-1] if texts else ""
        if self.kind is FieldKind.NUMBER:
            return int(text) if text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS else text
        return {"true": True, "false": False}.get(text.lower()) if self.kind is FieldKind.SWITCH else text

    def in_address(self, value: Any) -> list[str]:
        """A value as an address states it."""
        if self.kind is FieldKind.SEVERAL:
            return [str(each) for each in value] or [""]
        return [str(value).lower() if self.kind is FieldKind.SWITCH else str(value)]

    def takes(self, value: object) -> bool:
        """Whether the form can show a value; a job's file may hold anything."""
        if self.kind is FieldKind.NUMBER:
            return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= self.most
        if self.kind is FieldKind.SWITCH:
            return isinstance(value, bool)
        if self.kind is FieldKind.TEXT:
            return isinstance(value, str) and len(value) <= LONGEST_TEXT
        if self.kind is FieldKind.SEVERAL:
            return isinstance(value, list) and all(each in self.choices for each in value)
        return value in self.choices


_TARGETS = tuple(ARCHITECTURES)
_TARGETS_HELP = "Any target can be compiled for, with or without that GPU. " + "; ".join(
    f"{name}: {target.example.partition(' (')[0]}" for name, target in ARCHITECTURES.items() if name[-1].isdigit()
)


def _form_field(field: ProblemField) -> Field:
    """The form's field for a problem's field; an empty default, such as ``None``, is a choice with a name."""
    default: Any
    choices: tuple[str, ...]
    if field.kind is bool:
        kind, default, choices = FieldKind.EITHER, AS_SET, (AS_SET, ON, OFF)
    elif not field.choices:
        kind, default, choices = FieldKind.NUMBER, _FIRST.get(field.name, field.default), ()
    elif field.metavar == JOINED:
        kind, default, choices = FieldKind.SEVERAL, [], field.choices
    else:
        empty = AS_INPUTS if field.default is None else WITHOUT
        kind, default = FieldKind.CHOICE, str(field.default or empty)
        choices = field.choices if field.default else (empty, *field.choices)
    return Field(
        field.name, field.label, kind, default, field.option[0] if field.option else "", choices, field.most,
        joined="+" if kind is FieldKind.SEVERAL else "", help=field.help, rare=field.name not in _ALWAYS_SHOWN,
    )  # fmt: skip


def _value_of(field: ProblemField, value: Any) -> Any:
    """The value of a problem's field for the value that its form has."""
    if field.metavar == JOINED:
        return "+".join(value)
    if value in (AS_INPUTS, WITHOUT, AS_SET):
        return field.default
    if field.kind is bool:
        return value == ON
    return field.kind(value)


_ALWAYS_SHOWN = ("m", "n", "k", "batch", "dtype", "out_dtype", "layout")
_FIRST = {"m": 4096, "n": 7168, "k": 2048}
_OF_PROBLEM = {field.name: _form_field(field) for field in FIELDS}
_COMPILER = Field("compiler", "Compiler", FieldKind.CHOICE, AUTO, "--compiler", (AUTO, *COMPILERS), rare=True)
_FAMILY = Field("family", "Family", FieldKind.CHOICE, AUTO, "--family", (AUTO, *FAMILIES), rare=True)
_MOST_CONFIGS = 1000
_OF_TABLES = {
    "epilogue": "Applied to all layers. Leave empty for that of each layer, such as the bias of gpt-oss.",
    "mode": "For experts: all of them in one kernel. grouped: rows sorted by expert. masked: room for every token at "
    "each.",
}


_OLD_NAME = re.compile(f"[tue]_({'|'.join(_OF_PROBLEM)}|arch|compiler|family|families|config|force|model|tokens|top)")


def shape_form(default_arch: str) -> tuple[Field, ...]:
    """The form of a single shape: the options that choose its kernel, the most often changed at the top."""
    return (
        *(one for name, one in _OF_PROBLEM.items() if name in _ALWAYS_SHOWN),
        Field("arch", "Target", FieldKind.CHOICE, default_arch, "--arch", _TARGETS, help=_TARGETS_HELP, always=True),
        *(one for name, one in _OF_PROBLEM.items() if name not in _ALWAYS_SHOWN),
        _COMPILER,
        _FAMILY,
        Field(
            "config", "Config", FieldKind.TEXT, "", "--config", rare=True,
            help="Leave empty for automatic. Otherwise as listings show it, such as 128x128x32_w2x2_s4, or by field: "
            "block_m=128,block_n=128,block_k=32,warps_m=2,warps_n=2,stages=4; split_k and cluster are optional.",
        ),
        Field(
            "force", "Force recompile", FieldKind.SWITCH, False, "--force", rare=True,
            help="Recompile even if cached (skips timing).",
        ),
    )  # fmt: skip


def prediction_form(default_arch: str) -> tuple[Field, ...]:
    """The form of a single shape on Predict: the form of Compile without the forced recompile."""
    return tuple(one for one in shape_form(default_arch) if one.name != "force")


def pass_form() -> tuple[Field, Field]:
    """The form of a whole model on Predict, which has further fields of its own."""
    models = tuple(dict.fromkeys(shape.model for shape in model_shapes()))
    return Field("model", "Model", FieldKind.CHOICE, models[0], choices=models), _OF_PROBLEM["dtype"]


def table_form(default_arch: str) -> tuple[Field, ...]:
    """The form of a whole model: the options of ``gemm-cache warm``."""
    model, dtype = pass_form()
    return (
        replace(model, choices=(*model.choices, OWN_TABLE)),
        dtype,
        _OF_PROBLEM["layout"],
        Field(
            "arch", "Targets", FieldKind.SEVERAL, [default_arch], "--arch", _TARGETS, help=_TARGETS_HELP, always=True
        ),
        Field(
            "tokens", "m", FieldKind.TEXT, TOKENS, "--m",
            help="Token counts and ranges, such as 1,16,64-512. Sizes that share a kernel are compiled once.",
        ),
        *(
            replace(one, help=_OF_TABLES.get(name, one.help), rare=True)
            for name, one in _OF_PROBLEM.items()
            if one.option and name not in ("batch", "dtype", "layout")
        ),
        _COMPILER,
        _FAMILY,
    )  # fmt: skip


def tune_form(default_arch: str) -> tuple[Field, ...]:
    """The form of tuning: the options of ``gemm-cache tune``."""
    left_out = ("compiler", "family", "config", "force")
    return (
        *(one for one in shape_form(default_arch) if one.name not in left_out),
        Field(
            "top", "Configs", FieldKind.NUMBER, TOP, "--top", most=_MOST_CONFIGS,
            help="How many of each family are compiled and timed, best prediction first.",
        ),
        Field(
            "families", "Families", FieldKind.SEVERAL, [], "--family", tuple(FAMILIES), rare=True,
            help="Leave empty for the family in use.",
        ),
        _COMPILER,
    )  # fmt: skip


def values_of(problem: GemmProblem) -> Row:
    """The values by which the form of a single shape describes a problem: the reverse of ``problem_of``."""
    plain = problem.plain(tuple(_OF_PROBLEM))
    return {name: _form_value(one, plain[name]) for name, one in _OF_PROBLEM.items()} | {"arch": str(problem.arch)}


def _form_value(field: Field, value: Any) -> Any:
    """The value of a form's field for the plain value of the problem's field: the reverse of ``_value_of``."""
    if field.kind is FieldKind.SEVERAL:
        return value.split("+") if value else []
    if field.kind is FieldKind.EITHER:
        return AS_SET if value is None else ON if value else OFF
    if field.kind is FieldKind.NUMBER:
        return value
    return str(value) if value not in (None, "") else field.default


def address_of(form: Iterable[Field], values: Row) -> dict[str, list[str]]:
    """The parameters of an address that opens Compile or Predict with these values, also where they are defaults.

    A field without a parameter would show the value that the reader chose last.
    """
    return {one.key: one.in_address(values[one.name]) for one in form if one.name in values}


def request_address(problem: GemmProblem, **choice: str) -> dict[str, list[str]]:
    """The parameters of an address of Compile or Predict for a problem; its compiler, family and config are automatic.

    Args:
        choice: a ``compiler``, a ``family`` or a ``config`` that is not automatic.
    """
    form = shape_form(str(problem.arch))
    return address_of(form, {one.name: one.default for one in form} | values_of(problem) | choice)


def present_names(asked: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The parameters of an address, in which names and values of an earlier version are replaced by the present ones.

    In earlier versions the fields of each page and form had a prefix of their own.
    """
    found: dict[str, list[str]] = {}
    for name, values in asked.items():
        old = _OLD_NAME.fullmatch(name)
        new = {"t_arch": f"{PREFIX}targets", "e_model_dtype": f"{PREFIX}dtype"}.get(name)
        new = new or (f"{PREFIX}{old[1]}" if old and name != "e_tokens" else name)
        found[new] = ["fp8_e4m3" if (new, each) == (f"{PREFIX}dtype", "fp8") else each for each in values]
    return found


def command_of(verb: str, form: Iterable[Field], values: Row) -> list[str]:
    """The arguments of ``gemm-cache`` for a form's values; the command reads an uploaded table from stdin."""
    given = values | {"model": STDIN} if values.get("model") == OWN_TABLE else values
    return [verb, *(part for one in form for part in one.arguments(given[one.name]))]


def shown_of(asked: JobArguments, form: Iterable[Field]) -> Row:
    """The values of a job's request, as far as its form can show them."""
    return {one.name: asked[one.name] for one in form if one.name in asked and one.takes(asked[one.name])}


def model_values(form: Iterable[Field], **given: Any) -> Row:
    """The values of the form of a whole model: those given, and the defaults of all others."""
    return {one.name: one.default for one in form} | given


def problem_of(values: Row) -> GemmProblem:
    """The problem that the form of a single shape, or of tuning, describes; raises ``InvalidProblem``."""
    given = {field.name: _value_of(field, values[field.name]) for field in FIELDS}
    return GemmProblem(**given, arch=values["arch"])


def choice_of(values: Row) -> dict[str, Any]:
    """The family, compiler and config in a form of a single shape, for ``Cache.select``; raises ``UsageError``."""
    return {**made_by(values), "config": KernelConfig.parse(values["config"]) if values["config"].strip() else None}


def made_by(values: Row) -> dict[str, str | None]:
    """The family and compiler that a form names; ``None`` where they are automatic."""
    return {name: None if values[name] == AUTO else str(values[name]) for name in ("family", "compiler")}


def made_of(values: Row) -> dict[str, Any]:
    """The values in the form of a whole model that hold for all of the model's problems, as ``wanted`` takes them."""
    made = {field.name: _value_of(field, values[field.name]) for field in FIELDS if field.name in values}
    return {**made, "epilogue": made["epilogue"] or None}


def missing_compilers() -> dict[str, str]:
    """Compilers that are not installed, and how to install them."""
    missing = {}
    for name, compiler in COMPILERS.items():
        try:
            compiler.fingerprint()
        except GemmCacheError as error:
            missing[name] = str(error)
    return missing
