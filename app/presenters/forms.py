"""The forms of the Compile page, for a single shape, many and tuning, and the commands they make."""

from __future__ import annotations

from collections.abc import Iterable
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
from cache_engine.model.gemm import (
    INPUT_DTYPES,
    MAX_BATCH,
    MAX_DIMENSION,
    OPT_LEVELS,
    OUTPUT_DTYPES,
    DType,
    Epilogue,
    GemmProblem,
    Layout,
    Mode,
    Scales,
    Specialisation,
)  # fmt: skip
from cache_engine.model.job import Asked
from cache_engine.model.kernel import KernelConfig

AS_INPUTS, AUTO, WITHOUT = "same as A and B", "auto", "none"
OWN_TABLE = "CSV file"
"""In place of a model: shapes that the reader uploads."""
STDIN = "/dev/stdin"
LONGEST_TEXT = 200


class Kind(Enum):
    """The kind of a field's value."""

    NUMBER = "a whole number of at least 1"
    CHOICE = "one of several"
    SEVERAL = "any of several"
    TEXT = "text"
    SWITCH = "on or off"


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a form.

    Attributes:
        name: also in the address, behind the form's prefix.
        option: of the command; empty for its arguments.
        default: left out of the command, unless ``always``.
        choices: the values to choose from.
        most: the largest number.
        joined: what joins several values; empty where the option is repeated for each.
        rare: whether the field is under "More".
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
        """The arguments of the command for a value."""
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

    def takes(self, value: object) -> bool:
        """Whether the form can show a value; a job's file may hold anything."""
        if self.kind is Kind.NUMBER:
            return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= self.most
        if self.kind is Kind.SWITCH:
            return isinstance(value, bool)
        if self.kind is Kind.TEXT:
            return isinstance(value, str) and len(value) <= LONGEST_TEXT
        if self.kind is Kind.SEVERAL:
            return isinstance(value, list) and all(each in self.choices for each in value)
        return value in self.choices


_LAYOUT = Field(
    "layout", "Layout", Kind.CHOICE, Layout.NT.value, "--layout", (Layout.NT, Layout.NN, Layout.TN, Layout.TT),
    help="Row-major storage order of A and B: n = not transposed (A is m×k, B is k×n), t = transposed (A is k×m, "
    "B is n×k). A linear layer is nt.",
)  # fmt: skip
_DTYPE = Field("dtype", "Dtype of A and B", Kind.CHOICE, "bf16", "--dtype", tuple(INPUT_DTYPES))
_SPECIALISATION = Field(
    "specialisation", "Specialisation", Kind.CHOICE, Specialisation.NK.value, "--specialise",
    tuple(each.value for each in Specialisation), rare=True,
    help="Which of m, n, k are compile-time constants. nk: n and k. exact: all three. bucketed: n and k, and a power "
    "of two bounds m. dynamic: none, so one kernel serves many shapes.",
)  # fmt: skip
_OPT_LEVEL = Field(
    "opt_level", "Optimisation level", Kind.CHOICE, str(OPT_LEVELS[-1]), "--opt-level",
    tuple(map(str, reversed(OPT_LEVELS))), rare=True, help="ptxas -O level.",
)  # fmt: skip
_TARGETS = tuple(ARCHITECTURES)
_TARGETS_HELP = "Any target can be compiled for, with or without that GPU. " + "; ".join(
    f"{name}: {target.example.partition(' (')[0]}" for name, target in ARCHITECTURES.items() if name[-1].isdigit()
)
_OUT_DTYPE = Field(
    "out_dtype", "Dtype of C", Kind.CHOICE, AS_INPUTS, "--out-dtype", (AS_INPUTS, *OUTPUT_DTYPES), rare=True
)
_EPILOGUE = Field(
    "epilogue", "Epilogue", Kind.SEVERAL, [], "--epilogue", ("alpha", "beta", "bias", "relu", "gelu"), joined="+",
    rare=True, help="Applied to A · B before it is stored: activation(alpha · A · B + beta · C + bias).",
)  # fmt: skip
_SCALES = Field(
    "scales", "Scales", Kind.CHOICE, WITHOUT, "--scales", (WITHOUT, *filter(None, Scales)), rare=True,
    help="Blocks of A and of B that have a scale each, for fp8 with layout nt and k a multiple of 128. Scales are fp32 "
    "or E8M0.",
)  # fmt: skip
_MODE = Field(
    "mode", "Mode", Kind.CHOICE, WITHOUT, "--mode", (WITHOUT, *filter(None, Mode)), rare=True,
    help="For mixtures of experts: as many groups of rows as the batch says, counted on the device. grouped: one "
    "after the other, m in all. masked: with room for m rows each.",
)  # fmt: skip
_COMPILER = Field("compiler", "Compiler", Kind.CHOICE, AUTO, "--compiler", (AUTO, *COMPILERS), rare=True)
_FAMILY = Field("family", "Family", Kind.CHOICE, AUTO, "--family", (AUTO, *FAMILIES), rare=True)
_MOST_CONFIGS = 1000


def shape_form(default_arch: str) -> tuple[Field, ...]:
    """The form of a single shape: all options of ``gemm-cache compile``, in its order. A new option is a line here."""
    return (
        Field("m", "m", Kind.NUMBER, 4096),
        Field("n", "n", Kind.NUMBER, 7168),
        Field("k", "k", Kind.NUMBER, 2048),
        Field("batch", "Batch", Kind.NUMBER, 1, "--batch", most=MAX_BATCH),
        _DTYPE,
        replace(_OUT_DTYPE, rare=False),
        _LAYOUT,
        Field("arch", "Target", Kind.CHOICE, default_arch, "--arch", _TARGETS, help=_TARGETS_HELP, always=True),
        _EPILOGUE,
        _SCALES,
        _MODE,
        _SPECIALISATION,
        _OPT_LEVEL,
        _COMPILER,
        _FAMILY,
        Field(
            "config", "Config", Kind.TEXT, "", "--config", rare=True,
            help="Leave empty for automatic. Otherwise as listings show it, such as 128x128x32_w2x2_s4, or by field: "
            "block_m=128,block_n=128,block_k=32,warps_m=2,warps_n=2,stages=4; split_k and cluster are optional.",
        ),
        Field(
            "force", "Force recompile", Kind.SWITCH, False, "--force", rare=True,
            help="Recompile even if cached (skips timing).",
        ),
    )  # fmt: skip


def table_form(default_arch: str) -> tuple[Field, ...]:
    """The form of a whole model: the options of ``gemm-cache warm``."""
    models = tuple(dict.fromkeys(shape.model for shape in model_shapes()))
    return (
        Field("model", "Model", Kind.CHOICE, models[0], choices=(*models, OWN_TABLE)),
        _DTYPE,
        _LAYOUT,
        Field("arch", "Targets", Kind.SEVERAL, [default_arch], "--arch", _TARGETS, help=_TARGETS_HELP, always=True),
        Field(
            "tokens", "m", Kind.TEXT, TOKENS, "--m",
            help="Token counts and ranges, such as 1,16,64-512. Sizes that share a kernel are compiled once.",
        ),
        _OUT_DTYPE,
        replace(
            _EPILOGUE, help="Applied to all layers. Leave empty for that of each layer, such as the bias of gpt-oss."
        ),
        _SCALES,
        replace(_MODE, help="For experts: all of them in one kernel. grouped: rows sorted by expert. masked: room for "
                "every token at each."),
        _SPECIALISATION,
        _OPT_LEVEL,
        _COMPILER,
        _FAMILY,
    )  # fmt: skip


def tune_form(default_arch: str) -> tuple[Field, ...]:
    """The form of tuning: the options of ``gemm-cache tune``."""
    left_out = ("compiler", "family", "config", "force")
    return (
        *(one for one in shape_form(default_arch) if one.name not in left_out),
        Field(
            "top", "Configs", Kind.NUMBER, TOP, "--top", most=_MOST_CONFIGS,
            help="How many of each family are compiled and timed, best prediction first.",
        ),
        Field(
            "families", "Families", Kind.SEVERAL, [], "--family", tuple(FAMILIES), rare=True,
            help="Leave empty for the family in use.",
        ),
        _COMPILER,
    )  # fmt: skip


def command_of(verb: str, form: Iterable[Field], values: Row) -> list[str]:
    """The arguments of ``gemm-cache`` for the values of a form; it reads an uploaded table from its standard input."""
    given = values | {"model": STDIN} if values.get("model") == OWN_TABLE else values
    return [verb, *(part for one in form for part in one.arguments(given[one.name]))]


def shown_of(asked: Asked, form: Iterable[Field]) -> Row:
    """The values of a job's request, as far as its form can show them."""
    return {one.name: asked[one.name] for one in form if one.name in asked and one.takes(asked[one.name])}


def model_values(form: Iterable[Field], **given: Any) -> Row:
    """The values of the form of a whole model: those given, and the defaults of all others."""
    return {one.name: one.default for one in form} | given


def problem_of(values: Row) -> GemmProblem:
    """The problem that the form of a single shape, or of tuning, describes; raises ``InvalidProblem``."""
    names = ("m", "n", "k", "batch", "dtype", "layout", "arch", "specialisation")
    given = {name: values[name] for name in names} | {"opt_level": int(values["opt_level"])}
    epilogue = Epilogue.parse("+".join(values["epilogue"]))
    return GemmProblem(
        **given, out_dtype=_out_dtype(values), epilogue=epilogue, scales=_scales(values), mode=_mode(values)
    )


def choice_of(values: Row) -> dict[str, Any]:
    """That form's family, compiler and config, as ``Cache.select`` takes them; raises ``UsageError``."""
    return {**made_by(values), "config": KernelConfig.parse(values["config"]) if values["config"].strip() else None}


def made_by(values: Row) -> dict[str, str | None]:
    """The family and compiler that a form names; ``None`` where they are automatic."""
    return {name: None if values[name] == AUTO else str(values[name]) for name in ("family", "compiler")}


def made_of(values: Row) -> dict[str, Any]:
    """The values that the form of a whole model sets for all its problems, by the names of ``wanted``."""
    return {
        "out_dtype": _out_dtype(values),
        "epilogue": Epilogue.parse("+".join(values["epilogue"])) if values["epilogue"] else None,
        "layout": Layout(values["layout"]),
        "specialisation": Specialisation(values["specialisation"]),
        "opt_level": int(values["opt_level"]),
        "scales": _scales(values),
        "mode": _mode(values),
    }


def _mode(values: Row) -> Mode:
    return Mode.BATCHED if values["mode"] == WITHOUT else Mode(values["mode"])


def _scales(values: Row) -> Scales:
    return Scales.NONE if values["scales"] == WITHOUT else Scales(values["scales"])


def _out_dtype(values: Row) -> DType | None:
    return None if values["out_dtype"] == AS_INPUTS else DType(values["out_dtype"])


def missing_compilers() -> dict[str, str]:
    """Compilers that are not installed, and how to install them."""
    missing = {}
    for name, compiler in COMPILERS.items():
        try:
            compiler.fingerprint()
        except GemmCacheError as error:
            missing[name] = str(error)
    return missing
