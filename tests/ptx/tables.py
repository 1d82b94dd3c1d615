"""Names: PTX's types, instructions, comparisons and special registers, and NumPy's for the same."""

from __future__ import annotations

# NumPy's name of each type.
TYPES = {
    "b8": "u1", "u8": "u1", "s8": "i1", "b16": "u2", "u16": "u2", "s16": "i2", "f16": "f2", "bf16": "u2", "b32": "u4",
    "u32": "u4", "s32": "i4", "f32": "f4", "tf32": "u4", "b64": "u8", "u64": "u8", "s64": "i8", "f64": "f8",
    "pred": "?",
}  # fmt: skip
UFUNCS = {
    "add": "add", "sub": "subtract", "mul.lo": "multiply", "mul": "multiply", "and": "bitwise_and", "or": "bitwise_or",
    "xor": "bitwise_xor", "min": "minimum", "max": "maximum", "shl": "left_shift", "shr": "right_shift",
    "neg": "negative", "abs": "absolute", "not": "invert", "add.rn": "add", "mul.rn": "multiply",
    "div": "floor_divide", "rem": "remainder", "ex2.approx.ftz": "exp2",
}  # fmt: skip
OF_INTEGERS = ("mul.lo", "and", "or", "xor", "shl", "shr", "not", "div", "rem", "min", "max")
COMPARED = {
    "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal",
    # True also where one is NaN: the opposite of an ordered comparison.
    "ltu": "greater_equal", "leu": "greater", "gtu": "less_equal", "geu": "less", "equ": "not_equal",
    # NumPy's inequality is this one; PTX's of floating-point numbers without "u" is false for NaN.
    "neu": "not_equal",
}  # fmt: skip
SPECIAL = {
    f"%{name}.{axis}": f"{name}_{axis}" for name in ("tid", "ctaid", "ntid", "nctaid") for axis in ("x", "y", "z")
} | {"%cluster_ctarank": "cluster_ctarank", "%cluster_nctarank": "cluster_nctarank"}
