"""For each page, the command that prints the same on the command line. This module does not import Streamlit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.addresses import BY_TARGET, KIND, MORE, OF_A_MODEL, OTHERS, SAVED, SQL, STORAGE, STORED
from app.presenters import forms
from app.presenters.cleaning import other_cleaning, own_cleaning, several
from cache_engine.errors import UsageError
from cache_engine.index.queries import FACETS
from cache_engine.model.decision import KINDS
from cache_engine.model.gemm.kinds import OUT_DTYPES, DType

Values = Mapping[str, Any]

_TABS = {
    "Integrity": ("verify",),
    "Quarantine": ("verify", "--quarantined"),
    "Results": ("evaluations", "--delete"),
    "Packs": ("pack", "export", "kernels.gemmpack"),
    "Index": ("store", "sync"),
    "Settings": ("doctor", "--settings"),
    "Findings": ("caches", "--check"),
    "Directories": ("caches",),
}
"""For each tab of Storage, the arguments of the command; a command that deletes is shown as a dry run."""

_SPANS = {"24 hours": "24h", "7 days": "7d", "90 days": "90d"}


def equal(page: str, values: Values, arch: str) -> tuple[str, ...] | None:
    """The arguments of the command that prints what a page shows now; ``None`` if no command does.

    Args:
        page: the page's title.
        values: the values of the page's widgets, by key, and of its address.
        arch: the target that the forms choose by default.
    """
    found = _PAGES.get(page)
    return None if found is None else found(values, arch)


def _overview(values: Values, _: str) -> tuple[str, ...]:
    span = _SPANS.get(str(values.get("span")))
    return ("stats", "--by", "time", "--since", span) if span else ("stats",)


def _kernels(values: Values, _: str) -> tuple[str, ...]:
    if values.get("view") == BY_TARGET:
        return ("stats", "--by", "arch")
    if values.get("view") not in (None, STORED, SQL):  # entries of one framework or of all
        kinds = [f"--kind={kind}" for kind in several(values.get(KIND) or values.get("kind"))]
        return ("caches", "ls", *([str(values["words"])] if values.get("words") else []), *kinds)
    text = str(values.get("q") or values.get("text") or "").split()
    options = [f"--{facet}={value}" for facet in FACETS[:4] for value in several(values.get(facet))]
    if values.get("sort"):
        options.append(f"--sort={str(values['sort']).replace(' ', '-')}")
    if values.get("asc") in (True, "true", "1"):
        options.append("--ascending")
    return ("ls", *text, *options)


def _kernel(values: Values, _: str) -> tuple[str, ...] | None:
    if values.get("entry"):  # of another framework; its cache is KIND=DIR
        return ("caches", "show", str(values["entry"]), "--in", str(values.get("cache")).partition("=")[2])
    return ("show", str(values["key"])) if values.get("key") else None


def _compare(values: Values, _: str) -> tuple[str, ...] | None:
    both = [str(values[side]) for side in ("a", "b") if values.get(side)]
    return ("show", *both, "--part", "sass") if len(both) == 2 else None


def _coverage(values: Values, _: str) -> tuple[str, ...] | None:
    if not values.get("model"):
        return None
    dtype = [f"--dtype={values['dtype']}"] if values.get("dtype") else []
    targets = [f"--arch={arch}" for arch in several(values.get("archs"))]
    return ("warm", str(values["model"]), "--dry-run", "--by=shape", *targets, *dtype)


def _demand(values: Values, _: str) -> tuple[str, ...]:
    span = {**_SPANS, "28 days": "28d"}.get(str(values.get("span")))
    return ("demand", "--since", span) if span else ("demand",)


def _workload(values: Values, arch: str) -> tuple[str, ...] | None:
    return (_coverage if values.get("part") == OF_A_MODEL else _demand)(values, arch)


def _compile(values: Values, arch: str) -> tuple[str, ...]:
    verb, form = {
        "Whole model": ("warm", forms.table_form(arch)),
        "Tune": ("tune", forms.tune_form(arch)),
    }.get(str(values.get("what")), ("compile", forms.shape_form(arch)))
    asked = {one.name: values.get(one.key, one.default) for one in form}
    if asked.get("model") == forms.OWN_TABLE:
        asked["model"] = "shapes.csv"
    return tuple(forms.command_of(verb, form, asked))


def _evaluations(values: Values, arch: str) -> tuple[str, ...] | None:
    kind = values.get("e_kind")
    if kind == MORE:
        check = "kept-out" if values.get("e_kept_out") in (True, "true") else "all"
        saved = values.get("e_more") == SAVED
        return ("evaluations",) if saved else ("calibrate", "measured.csv", f"--check={check}")
    chip = ("--chip", str(values.get("e_chip") or "H100"))
    if kind == "Whole model":
        model, dtype = (one.arguments(values.get(one.key, one.default)) for one in forms.pass_form())
        of_model = [f"--{option}={values[f'e_{key}']}" for option, key in _OF_MODEL.items() if values.get(f"e_{key}")]
        sizes = ",".join(f"{name}={values[f'e_{name}']}" for name in ("tp", "ep", "dp") if values.get(f"e_{name}"))
        of_model += [f"--parallel={sizes}"] if sizes else []
        return ("evaluate", *model, *chip, *(_evaluated(word) for word in dtype), *of_model)
    shape = {one: values.get(one.key, one.default) for one in forms.shape_form(arch) if one.name in _EVALUATED}
    if values.get("s_mode", forms.WITHOUT) != forms.WITHOUT:
        return None  # the command line has no groups of rows
    given = [part for one, value in shape.items() for part in one.arguments(value)]
    dtype = values.get("s_dtype", DType.BF16)
    output = OUT_DTYPES.get(dtype, (dtype,))[0]
    if values.get("s_out_dtype", forms.AS_INPUTS) == forms.AS_INPUTS and output not in (DType.BF16, dtype):
        given += ["--out-dtype", output]  # a kernel's default, which is not the evaluator's
    return ("evaluate", *map(_evaluated, given), *chip)


_EVALUATED = ("m", "n", "k", "batch", "dtype", "out_dtype", "scales")
_OF_MODEL = {"m": "tokens", "mode": "phase", "experts": "skew"}


def _evaluated(word: object) -> str:
    """A word of a command. An element type gets its name in the evaluator, which is ``fp8`` for both types of fp8."""
    return str(word).partition("_")[0] if str(word).startswith("fp8_") else str(word)


def _storage(values: Values, _: str) -> tuple[str, ...] | None:
    part = str(values.get("part") or "Clean")
    tab = str(values.get("tab") or values.get(part.lower()) or STORAGE.get(part, STORAGE["Clean"])[0])
    if tab in STORAGE["Clean"]:
        verb, cleaning = (("caches", "clean"), other_cleaning) if tab == OTHERS else (("clean",), own_cleaning)
        try:
            arguments = cleaning(values)[1]
        except UsageError:  # no size
            return None
        return None if arguments is None else (*verb, *arguments)
    if tab == "Log":
        kinds = several(values.get("kind"))
        decided = [f"--kind={kind}" for kind in kinds if kind in KINDS]
        return ("log", "--audit") if kinds and not decided else ("log", *decided)
    return _TABS.get(tab)


_PAGES = {
    "Overview": _overview,
    "Kernels": _kernels,
    "Kernel": _kernel,
    "Compare": _compare,
    "Workload": _workload,
    "Compile": _compile,
    "Predict": _evaluations,
    "Storage": _storage,
}
