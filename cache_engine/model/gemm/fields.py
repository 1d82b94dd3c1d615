"""The fields of a problem, declared once in ``FIELDS``.

Records, the index, options, forms, searches and texts use this declaration.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, TypeAlias

import msgspec

from cache_engine.model.gemm.kinds import (
    INPUT_DTYPES,
    MAX_BATCH,
    MAX_DIMENSION,
    OPT_LEVELS,
    OUTPUT_DTYPES,
    Activation,
    DType,
    Layout,
    Mode,
    Scales,
    Specialisation,
)

Plain: TypeAlias = str | int | bool | None
"""A field's value in files, on the command line and in the index."""

JOINED = "PART+…"
"""The metavar of an option whose value is some of its choices, joined with +."""

Name = Annotated[str, msgspec.Meta(max_length=40)]


class ProblemField(msgspec.Struct, frozen=True):
    """The declaration of one field of a problem: its name, its command-line option, and its texts for people.

    Attributes:
        name: the name in ``GemmProblem``, in files and in the index.
        label: the label in forms.
        help: the help text of its option.
        kind: the type of its plain values.
        default: the plain value that commands and texts leave out; ``None`` if it depends on other fields.
        choices: the possible values; for an epilogue, its possible parts; empty for an integer from 1 to ``most``.
        most: the largest integer.
        option: the option on the command line, and other names for it; empty for a positional argument.
        metavar: the metavar of the option.
        search: the name in searches, if it is not ``name``.
        brief: the text that short texts have before the field's value.
    """

    name: str
    label: str
    help: str = ""
    kind: type[str] | type[int] | type[bool] = str
    default: Plain = None
    choices: tuple[str, ...] = ()
    most: int = MAX_DIMENSION
    option: tuple[str, ...] = ()
    metavar: str | None = None
    search: str = ""
    brief: str = ""

    @property
    def searched_as(self) -> str:
        """The name of the field in searches."""
        return self.search or self.name

    def arguments(self, value: Plain) -> list[str]:
        """The command line arguments that set the field to a value."""
        if self.kind is bool:
            return [self.option[0] if value else f"--no-{self.option[0].removeprefix('--')}"]
        return [f"{self.option[0]}={value}" if self.option else str(value)]

    def in_brief(self, value: Plain) -> str:
        """A value of the field, as a short text has it."""
        if self.kind is bool:
            return self.brief if value else f"no {self.brief}"
        return f"{self.brief}{value}"

    def in_words(self, value: Plain) -> str:
        """A value of the field, after the field's name."""
        return self.in_brief(value) if self.kind is bool else f"{self.label.lower()} {value}"


FIELDS: tuple[ProblemField, ...] = (
    ProblemField("m", "m", kind=int),
    ProblemField("n", "n", kind=int),
    ProblemField("k", "k", kind=int),
    ProblemField(
        "batch", "Batch", "Number of products; with --mode, number of groups.", int, 1, most=MAX_BATCH,
        option=("--batch",),
    ),
    ProblemField(
        "dtype", "Dtype of A and B", f"Element type of A and B: {', '.join(INPUT_DTYPES)}.", default=DType.BF16.value,
        choices=tuple(each.value for each in INPUT_DTYPES), option=("--dtype",),
    ),
    ProblemField(
        "out_dtype", "Dtype of C", "Element type of C. Default: that of A and B.",
        choices=tuple(each.value for each in OUTPUT_DTYPES), option=("--out-dtype",), search="out", brief="→",
    ),
    ProblemField(
        "layout", "Layout",
        f"Storage of A and B, n row-major and t transposed: {', '.join(Layout)}. A linear layer is nt.",
        default=Layout.NT.value, choices=tuple(each.value for each in Layout), option=("--layout",),
    ),
    ProblemField(
        "epilogue", "Epilogue",
        "Operations on the product before it is stored: alpha, beta, bias, and relu or gelu, joined with +.",
        default="", choices=("alpha", "beta", "bias", *(each.value for each in Activation if each != "none")),
        option=("--epilogue",), metavar=JOINED,
    ),
    ProblemField(
        "scales", "Scales",
        "fp8 only. Block sizes of A and B that share a scale: 1x128,128x128 or 1x128,1x128; scales are fp32, or e8m0 "
        "with ,e8m0.",
        default="", choices=tuple(each.value for each in Scales if each), option=("--scales",), metavar="A,B[,e8m0]",
    ),
    ProblemField(
        "mode", "Mode",
        "For experts; the GPU reads how many rows each group has. grouped: all groups in one matrix of M rows. masked: "
        "a matrix of M rows for each group.",
        default="", choices=tuple(each.value for each in Mode if each), option=("--mode",),
        metavar="|".join(filter(None, Mode)),
    ),
    ProblemField(
        "specialisation", "Specialisation",
        "Which sizes are constants of the kernel. nk: n and k. exact: m, n and k. bucketed: n and k, and m is at most "
        "the next power of two. dynamic: none.",
        default=Specialisation.NK.value, choices=tuple(each.value for each in Specialisation),
        option=("--specialise",), metavar="|".join(Specialisation), search="specialise",
    ),
    ProblemField(
        "opt_level", "Optimisation level",
        f"Optimisation level of the compiler, {OPT_LEVELS[0]} to {OPT_LEVELS[-1]}.", int, OPT_LEVELS[-1],
        choices=tuple(map(str, reversed(OPT_LEVELS))), option=("--opt-level",), search="level", brief="O",
    ),
    ProblemField(
        "fast_math", "Fast math",
        "Compile with --use_fast_math, or without. Default: as the setting compiler_flags says.", bool,
        option=("--fast-math",), brief="fast math",
    ),
)  # fmt: skip
"""All fields except the target, in the order of the command line."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a problem that files may leave out, as plain values with defaults.

    Values that only a newer version of this program knows can be read too.
    """

    epilogue: Name = ""
    specialisation: Name = Specialisation.NK.value
    opt_level: Annotated[int, msgspec.Meta(ge=0, le=99)] = OPT_LEVELS[-1]
    scales: Name = ""
    mode: Name = ""
    fast_math: bool | None = None


def chosen(values: object, names: tuple[str, ...] = Options.__struct_fields__) -> Iterator[tuple[ProblemField, Any]]:
    """The fields among ``names`` whose value in ``values`` is not the default, each with this value."""
    for field in FIELDS:
        if field.name in names and (value := getattr(values, field.name)) != field.default:
            yield field, value
