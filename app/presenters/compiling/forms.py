"""What the Compile page asks: a form of one shape and one of a model's table, and the commands they make."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from app.presenters.shared import Row
from cache_engine.catalogue import model_shapes
from cache_engine.compilers import COMPILERS
from cache_engine.errors import GemmCacheError, UsageError
from cache_engine.kernels.select import FAMILIES
from cache_engine.model.architecture import ARCHITECTURES
from cache_engine.model.gemm import (
    INPUT_DTYPES,
    MAX_BATCH,
    MAX_DIMENSION,
    OPT_LEVELS,
    OUTPUT_DTYPES,
    Epilogue,
    GemmProblem,
    Layout,
    Specialisation,
)  # fmt: skip
from cache_engine.model.kernel import KernelConfig

AS_INPUTS, CHOSEN = "default", "chosen"
TOKENS = "1,16,64,256,1024,4096"
LONGEST_TEXT = 200


class Kind(Enum):
    """How a field is filled in."""

    NUMBER = "a whole number from 1 on"
    CHOICE = "one of some"
    SEVERAL = "any of some"
    TEXT = "written"
    SWITCH = "on or off"


@dataclass(frozen=True, slots=True)
class Field:
    """One thing that a form asks.

    Attributes:
        name: also in the address, behind the form's prefix.
        option: of the command; empty for its arguments.
        default: which the command is not told, unless ``always``.
        choices: what a reader can choose from.
        most: the largest number.
        joined: by what several are joined; empty where the option is repeated for each.
        rare: whether it is asked under "More".
    """

    name: str
    label: str
    kind: Kind
    default: Any
    option: str = ""
    choices: tuple[str, ...] = ()
    most: int = MAX_DIMENSION
    joined: str = ""
    help: str | None = None
    rare: bool = False
    always: bool = False

    def arguments(self, value: Any) -> list[str]:
        """What the command is told."""
        if not self.option:
            return [str(value)]
        if value == self.default and not self.always:
            return []
        if self.kind is Kind.SWITCH:
            return [self.option]
        texts = [str(value)] if self.kind is not Kind.SEVERAL else [str(each) for each in value]
        if self.joined:
            texts = [self.joined.join(texts)]
        return [part for text in texts for part in (self.option, text)]

    def read(self, given: Sequence[str]) -> Any:
        """The value of a command's arguments of this field; raises ``ValueError`` for what the form cannot show."""
        if not given:
            return self.default
        if self.kind is Kind.SWITCH:
            return True
        if self.kind is Kind.NUMBER:
            number = int(given[-1])
            if not 1 <= number <= self.most:
                raise ValueError(given[-1])
            return number
        if self.kind is Kind.TEXT:
            return given[-1][:LONGEST_TEXT]
        texts = [part for text in given for part in (text.split(self.joined) if self.joined else [text])]
        if any(text not in self.choices for text in texts):
            raise ValueError(texts)
        return texts if self.kind is Kind.SEVERAL else texts[-1]


_LAYOUT = Field(
    "layout", "Layout", Kind.CHOICE, Layout.NT.value, "--layout", (Layout.NT, Layout.NN, Layout.TN, Layout.TT),
    help="How A and B lie in row-major storage, a letter for each: n is A m×k and B k×n, t is A k×m and B n×k. "
    "A linear layer is nt.",
)  # fmt: skip
_DTYPE = Field("dtype", "Dtype of A and B", Kind.CHOICE, "bf16", "--dtype", tuple(INPUT_DTYPES))
_SPECIALISATION = Field(
    "specialisation", "Constants of the kernel", Kind.CHOICE, Specialisation.NK.value, "--specialise",
    tuple(each.value for each in Specialisation), rare=True,
    help="Sizes that are compiled in. nk: n and k. exact: m too. bucketed: n and k, with m bounded by a power of two. "
    "dynamic: none, so that one kernel serves many shapes.",
)  # fmt: skip
_OPT_LEVEL = Field(
    "opt_level", "Optimisation level", Kind.CHOICE, str(OPT_LEVELS[-1]), "--opt-level",
    tuple(map(str, reversed(OPT_LEVELS))), rare=True, help="How hard the compiler optimises.",
)  # fmt: skip
_TARGETS = tuple(ARCHITECTURES)
_TARGETS_HELP = "Also those that are not here. " + "; ".join(
    f"{name}: {target.example.partition(' (')[0]}" for name, target in ARCHITECTURES.items() if name[-1].isdigit()
)
_EPILOGUE = ("alpha", "beta", "bias", "relu", "gelu")


def shape_form(default_arch: str) -> tuple[Field, ...]:
    """The form of one shape: all that ``gemm-cache compile`` takes, in its order. A new option is a line here."""
    return (
        Field("m", "m", Kind.NUMBER, 4096),
        Field("n", "n", Kind.NUMBER, 7168),
        Field("k", "k", Kind.NUMBER, 2048),
        Field("batch", "Batch", Kind.NUMBER, 1, "--batch", most=MAX_BATCH),
        _DTYPE,
        Field("out_dtype", "Dtype of C", Kind.CHOICE, AS_INPUTS, "--out-dtype", (AS_INPUTS, *OUTPUT_DTYPES)),
        _LAYOUT,
        Field("arch", "Target", Kind.CHOICE, default_arch, "--arch", _TARGETS, help=_TARGETS_HELP, always=True),
        Field(
            "epilogue", "Epilogue", Kind.SEVERAL, [], "--epilogue", _EPILOGUE, joined="+", rare=True,
            help="What is done to A · B before it is stored: activation(alpha · A · B + beta · C + bias).",
        ),
        _SPECIALISATION,
        _OPT_LEVEL,
        Field("compiler", "Compiler", Kind.CHOICE, CHOSEN, "--compiler", (CHOSEN, *COMPILERS), rare=True),
        Field("family", "Family", Kind.CHOICE, CHOSEN, "--family", (CHOSEN, *FAMILIES), rare=True),
        Field(
            "config", "Config", Kind.TEXT, "", "--config", rare=True,
            help="Left empty it is chosen. Else every field: block_m=128,block_n=128,block_k=32,warps_m=2,warps_n=2,"
            "stages=4 and, if wanted, split_k.",
        ),
        Field(
            "force", "Compile again and replace", Kind.SWITCH, False, "--force", rare=True,
            help="Compile even if it is in the store. It is then not timed.",
        ),
    )  # fmt: skip


def table_form(default_arch: str) -> tuple[Field, ...]:
    """The form of a model's table: what ``gemm-cache warm`` takes."""
    models = tuple(dict.fromkeys(shape.model for shape in model_shapes()))
    return (
        Field("model", "Model", Kind.CHOICE, models[0], choices=models),
        _DTYPE,
        _LAYOUT,
        Field("compiler", "Compiler", Kind.CHOICE, "nvrtc", "--compiler", tuple(COMPILERS)),
        Field("arch", "Targets", Kind.SEVERAL, [default_arch], "--arch", _TARGETS, help=_TARGETS_HELP, always=True),
        Field(
            "tokens", "m", Kind.TEXT, TOKENS, "--m",
            help="Numbers of tokens, between commas. Sizes that one kernel serves compile it once.",
        ),
        _SPECIALISATION,
        _OPT_LEVEL,
    )  # fmt: skip


def command_of(verb: str, form: Iterable[Field], values: Row) -> list[str]:
    """The command that asks for what a form says."""
    return [verb, *(part for one in form for part in one.arguments(values[one.name]))]


def asked_of(command: Sequence[str], form: Sequence[Field]) -> Row:
    """What a command asks, as its form names it; nothing of a command that the form would not give."""
    options = {one.option: one for one in form if one.option}
    given: dict[str, list[str]] = {one.name: [] for one in form}
    arguments = iter(one for one in form if not one.option)
    parts = iter(command[1:])
    try:
        for part in parts:
            one = options.get(part) or next(arguments)
            takes_text = one.option and one.kind is not Kind.SWITCH
            given[one.name].append(next(parts) if takes_text else part)
        if any(not given[one.name] for one in form if not one.option):
            return {}
        return {one.name: one.read(given[one.name]) for one in form}
    except (StopIteration, ValueError):
        return {}


def problem_of(values: Row) -> GemmProblem:
    """The problem that the form of a shape asks for; raises ``InvalidProblem``."""
    names = ("m", "n", "k", "batch", "dtype", "layout", "arch", "specialisation")
    given = {name: values[name] for name in names} | {"opt_level": int(values["opt_level"])}
    out = None if values["out_dtype"] == AS_INPUTS else values["out_dtype"]
    return GemmProblem(**given, out_dtype=out, epilogue=Epilogue.parse("+".join(values["epilogue"])))


def choice_of(values: Row) -> dict[str, Any]:
    """What that form leaves to the engine or not, by the names of its parameters; raises ``UsageError``."""
    named = {name: None if values[name] == CHOSEN else values[name] for name in ("family", "compiler")}
    return {**named, "config": KernelConfig.parse(values["config"]) if values["config"].strip() else None}


def made_of(values: Row) -> dict[str, Any]:
    """What the form of a table asks of all its problems, by the names of ``GemmProblem``."""
    return {
        "layout": Layout(values["layout"]),
        "specialisation": Specialisation(values["specialisation"]),
        "opt_level": int(values["opt_level"]),
    }


def tokens_of(text: str) -> tuple[int, ...]:
    """The numbers of tokens in a text; raises ``UsageError``."""
    parts = [part.strip() for part in text.split(",")]
    wrong = next((part for part in parts if not part.isascii() or not part.isdigit() or len(part) > 40), None)
    if wrong is not None:
        raise UsageError(f"{wrong!r} is not a whole number; write m as {TOKENS}")
    return tuple(int(part) for part in parts)


def missing_compilers() -> dict[str, str]:
    """Compilers that are not installed, with how to get them."""
    missing = {}
    for name, compiler in COMPILERS.items():
        try:
            compiler.fingerprint()
        except GemmCacheError as error:
            missing[name] = str(error)
    return missing
