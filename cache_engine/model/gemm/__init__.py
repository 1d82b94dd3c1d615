"""The problem: one matrix multiplication."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, TypedDict

from cache_engine.errors import InvalidProblem
from cache_engine.model.architecture import Architecture, architecture
from cache_engine.model.gemm.kinds import (
    FP8,
    INPUT_DTYPES,
    MAX_BATCH,
    MAX_DIMENSION,
    MAX_ELEMENTS,
    NO_EPILOGUE,
    OPT_LEVELS,
    OUT_DTYPES,
    OUTPUT_DTYPES,
    SCALE_BLOCK,
    Activation,
    ActivationLike,
    DType,
    DTypeLike,
    Epilogue,
    EpilogueLike,
    Layout,
    LayoutLike,
    Mode,
    ModeLike,
    Scales,
    ScalesLike,
    Specialisation,
    SpecialisationLike,
    accumulator,
    bucket_of,
    checked_epilogue,
    checked_mode,
    checked_scales,
    member_of,
)

__all__ = [
    "FP8",
    "INPUT_DTYPES",
    "MAX_BATCH",
    "MAX_DIMENSION",
    "MAX_ELEMENTS",
    "NO_EPILOGUE",
    "OPT_LEVELS",
    "OUTPUT_DTYPES",
    "SCALE_BLOCK",
    "Activation",
    "ActivationLike",
    "DType",
    "DTypeLike",
    "Epilogue",
    "EpilogueLike",
    "GemmProblem",
    "Layout",
    "LayoutLike",
    "Mode",
    "ModeLike",
    "ProblemOptions",
    "Scales",
    "ScalesLike",
    "Specialisation",
    "SpecialisationLike",
    "accumulator",
    "bucket_of",
]  # fmt: skip

# The sizes for which the config of a dynamic kernel is chosen: m, n, k and batch, between decode and prefill.
_ANY_SIZES = (1024, 1024, 1024, 1)


class ProblemOptions(TypedDict, total=False):
    """The arguments of ``GemmProblem`` except its sizes and its target."""

    dtype: DTypeLike
    out_dtype: DTypeLike | None
    layout: LayoutLike
    epilogue: EpilogueLike | None
    specialisation: SpecialisationLike
    opt_level: int
    scales: ScalesLike
    mode: ModeLike
    fast_math: bool | None


@dataclass(frozen=True, slots=True, init=False, repr=False)
class GemmProblem:
    """C = A · B, ``batch`` times, C row-major and contiguous. A value: comparable, hashable, and checked on creation.

    Example:
        ```python
        GemmProblem(4096, 7168, 2048, dtype="bf16", out_dtype="fp32", arch="sm_90a", epilogue="bias")
        ```

    Attributes:
        m: rows of A and C, from 1 to 16 777 216; with the mode ``grouped``, of all groups together.
        n: columns of B and C, from 1 to 16 777 216.
        k: columns of A and rows of B, from 1 to 16 777 216.
        batch: the number of independent products, stored one after the other, from 1 to 65 535. With a mode they are
            called groups.
        dtype: element type of A and B.
        out_dtype: element type of C; by default that of the inputs, or bf16 for fp8, or int32 for int8. With fp8, a
            launch needs the scale of the result, and the epilogue has no beta.
        layout: how A and B are stored.
        arch: the target, such as ``"sm_90"``; ``None`` lets the cache choose (that of the local GPU, else sm_90).
        epilogue: the steps applied to the product before it is stored; by default, and with ``None``, no steps. int8
            problems allow no steps.
        specialisation: the sizes that are constants in the kernel; by default n and k.
        opt_level: the optimisation level of the compiler, 0 to 3.
        scales: the blocks of A and B that have a scale each; only for fp8, with k a multiple of 128 and the layout nt;
            by default none.
        mode: whether the products are groups, with their numbers of rows in device memory; by default, no groups. With
            groups, A is stored by rows, and m is never a constant.
        fast_math: whether the compiler may use less exact arithmetic (``--use_fast_math``); by default, and with None,
            as the setting ``compiler_flags`` says.
    """

    m: int
    n: int
    k: int
    batch: int
    dtype: DType
    out_dtype: DType | None
    layout: Layout
    arch: str | None
    epilogue: Epilogue
    specialisation: Specialisation
    opt_level: int
    scales: Scales
    mode: Mode
    fast_math: bool | None

    def __init__(
        self,
        m: int,
        n: int,
        k: int,
        batch: int = 1,
        dtype: DTypeLike = DType.BF16,
        out_dtype: DTypeLike | None = None,
        layout: LayoutLike = Layout.NT,
        arch: str | None = None,
        epilogue: EpilogueLike | None = NO_EPILOGUE,
        specialisation: SpecialisationLike = Specialisation.NK,
        opt_level: int = OPT_LEVELS[-1],
        scales: ScalesLike = Scales.NONE,
        mode: ModeLike = Mode.BATCHED,
        fast_math: bool | None = None,
    ) -> None:
        """Checks the arguments. Accepts names in place of members of enumerations, and NumPy integers.

        Raises:
            InvalidProblem: when a value is not supported; the text names the field and the allowed values.
        """
        m, n, k = checked_size("m", m), checked_size("n", n), checked_size("k", k)
        batch = checked_size("the number of groups (batch)" if mode else "batch", batch, MAX_BATCH)
        dtype = member_of(DType, "dtype", dtype, INPUT_DTYPES)
        allowed = OUT_DTYPES[dtype]
        out_dtype = allowed[0] if out_dtype is None else member_of(DType, "out dtype", out_dtype)
        if out_dtype not in allowed:
            names = ", ".join(allowed)
            raise InvalidProblem(f"out dtype {out_dtype} cannot be made from {dtype} inputs; use one of: {names}")
        layout = member_of(Layout, "layout", layout)
        if arch is not None:
            architecture(arch)
        if epilogue is not NO_EPILOGUE:
            epilogue = checked_epilogue(epilogue, dtype, out_dtype)
        specialisation = member_of(Specialisation, "specialisation", specialisation)
        _check_compiling(opt_level, fast_math)
        if mode is not Mode.BATCHED:
            mode = checked_mode(mode, layout, specialisation)
        matrices = 1 if mode is Mode.GROUPED else batch
        elements = max(matrices * m * k, batch * n * k, matrices * m * n)
        if elements > MAX_ELEMENTS:
            raise InvalidProblem(
                f"an operand of {elements:,} elements is larger than any GPU holds; the limit is {MAX_ELEMENTS:,}"
            )
        if scales is not Scales.NONE:
            scales = checked_scales(scales, dtype, layout, k)
        values = (
            m, n, k, batch, dtype, out_dtype, layout, arch, epilogue, specialisation, opt_level, scales, mode,
            fast_math,
        )  # fmt: skip
        for set_field, value in zip(_SETTERS, values):  # noqa: B905 (strict takes a tenth longer)
            set_field(self, value)

    def __repr__(self) -> str:
        """The problem as Python text that makes it again: the sizes, the types, and values other than the default."""
        default = GemmProblem(1, 1, 1, dtype=self.dtype)
        given = [str(self.m), str(self.n), str(self.k)]
        for name in self.__slots__[3:]:
            value = getattr(self, name)
            if name == "dtype" or value != getattr(default, name):
                given.append(f"{name}={value if isinstance(value, int) else str(value)!r}")
        return f"GemmProblem({', '.join(given)})"

    def plain(self, names: tuple[str, ...]) -> dict[str, Any]:
        """The values of the named fields as files store them: numbers and texts; a target that is not set is empty."""
        values = {name: getattr(self, name) for name in names}
        if self.arch is None and "arch" in values:
            values["arch"] = ""
        return {name: value if isinstance(value, int | None) else str(value) for name, value in values.items()}

    @property
    def target(self) -> Architecture:
        """The target; raises ``InvalidProblem`` if it is not set."""
        return architecture(self.arch or "")

    @property
    def output(self) -> DType:
        """The element type of C."""
        return self.out_dtype or OUT_DTYPES[self.dtype][0]

    @property
    def has_result_scale(self) -> bool:
        """Whether a launch needs ``scale_result``, by which C is multiplied before rounding; true if C is fp8."""
        return self.out_dtype in FP8

    @property
    def accumulate(self) -> DType:
        """The element type of the accumulator: int32 for int8, fp64 for fp64, else fp32."""
        return accumulator(self.dtype)

    @property
    def flops(self) -> int:
        """The number of operations; a multiply-add counts as two. For ``masked``, as if all rows were used."""
        return 2 * self.row_matrices * self.m * self.n * self.k

    @property
    def row_matrices(self) -> int:
        """The number of matrices that A, and also C, consists of: one for each product, or one for all groups."""
        return 1 if self.mode is Mode.GROUPED else self.batch

    @property
    def moved_bytes(self) -> int:
        """The bytes of A, B, their scales and C, each counted once."""
        scales_of_a, scales_of_b = self.scales.sizes(self.m, self.n, self.k)
        of_a = self.m * self.k * self.dtype.itemsize + scales_of_a
        of_b = self.n * self.k * self.dtype.itemsize + scales_of_b
        return self.row_matrices * (of_a + self.m * self.n * self.output.itemsize) + self.batch * of_b

    @property
    def fusion_saves_bytes(self) -> int:
        """The bytes of memory traffic that a launch saves, because its kernel applies the epilogue.

        A separate step would read and write C once more, and with beta also a copy of the earlier C; see
        ``gpu.products``.
        """
        times = bool(str(self.epilogue)) + self.epilogue.beta
        return 2 * times * self.row_matrices * self.m * self.n * self.output.itemsize

    @property
    def planned_sizes(self) -> tuple[int, int, int, int]:
        """The m, n, k and batch for which the config is chosen; one m per bucket, fixed sizes for dynamic kernels."""
        specialisation = self.specialisation
        if specialisation is Specialisation.DYNAMIC:
            return _ANY_SIZES
        m = bucket_of(self.m) if specialisation is Specialisation.BUCKETED else self.m
        return (m, self.n, self.k, self.batch)

    @property
    def planned_products(self) -> tuple[int, int, int, int]:
        """As ``planned_sizes``, with the m of one product: for ``grouped``, the rows divided by the groups."""
        sizes = self.planned_sizes
        if self.mode is not Mode.GROUPED:
            return sizes
        m, n, k, batch = sizes
        return (-(-m // batch), n, k, batch)

    def on(self, arch: str) -> GemmProblem:
        """The same problem for the target ``arch``."""
        if self.arch == arch:
            return self
        values = list(_VALUES(self))
        values[_ARCH] = arch
        return GemmProblem(*values)


# ``on`` copies with these, in two thirds of the time of dataclasses.replace: each lookup without a target makes a copy.
_VALUES, _ARCH = operator.attrgetter(*GemmProblem.__slots__), GemmProblem.__slots__.index("arch")
# These write the fields of a new problem, which is frozen, in half the time of object.__setattr__.
_SETTERS = tuple(getattr(GemmProblem, name).__set__ for name in GemmProblem.__slots__)


def _check_compiling(opt_level: object, fast_math: object) -> None:
    """Checks ``opt_level`` and ``fast_math``; raises ``InvalidProblem`` if one has no allowed value."""
    if isinstance(opt_level, bool) or opt_level not in OPT_LEVELS:
        levels = ", ".join(map(str, OPT_LEVELS))
        raise InvalidProblem(f"opt level is {opt_level!r}; it must be one of: {levels}")
    if fast_math is not None and not isinstance(fast_math, bool):
        raise InvalidProblem(f"fast math is {fast_math!r}; it must be True, False or None")


def checked_size(name: str, value: Any, limit: int = MAX_DIMENSION) -> int:
    """The size as a Python integer; raises ``InvalidProblem`` unless it is an integer from 1 to ``limit``."""
    if type(value) is int and 1 <= value <= limit:
        return value
    try:
        size = operator.index(value)
    except TypeError:
        size = 0
    if isinstance(value, bool) or not 1 <= size <= limit:
        shown = f"{size:,}" if size and not isinstance(value, bool) else repr(value)
        raise InvalidProblem(f"{name} is {shown}; it must be a whole number from 1 to {limit:,}")
    return size
