"""For each page, the command that prints the same on the command line. This module does not import Streamlit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.addresses import BY_TARGET, KIND, OF_A_MODEL, SQL, STORAGE, STORED
from app.presenters.admin import asked_keys
from app.presenters.forms import OWN_TABLE, command_of, shape_form, table_form, tune_form
from cache_engine.index.queries import FACETS

Values = Mapping[str, Any]

_TABS = {
    "Integrity": ("verify",),
    "Quarantine": ("verify", "--quarantined"),
    "Results": ("evaluations", "clean"),
    "Packs": ("pack", "export", "kernels.gemmpack"),
    "Index": ("store", "sync"),
    "Settings": ("doctor", "--settings"),
    "Audit log": ("log", "--audit"),
    "Decisions": ("log",),
    "Findings": ("caches", "doctor"),
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
        kinds = [f"--kind={kind}" for kind in _several(values.get(KIND) or values.get("kind"))]
        return ("caches", "ls", *([str(values["words"])] if values.get("words") else []), *kinds)
    text = str(values.get("q") or values.get("text") or "").split()
    options = [f"--{facet}={value}" for facet in FACETS[:4] for value in _several(values.get(facet))]
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
    targets = [f"--arch={arch}" for arch in _several(values.get("archs"))]
    return ("warm", str(values["model"]), "--dry-run", "--by=shape", *targets, *dtype)


def _demand(values: Values, _: str) -> tuple[str, ...]:
    by = str(values.get("by") or "").lower()
    return ("demand", "--by", by) if by in ("kernel", "model", "target") else ("demand",)


def _workload(values: Values, arch: str) -> tuple[str, ...] | None:
    return (_coverage if values.get("part") == OF_A_MODEL else _demand)(values, arch)


def _compile(values: Values, arch: str) -> tuple[str, ...]:
    verb, form, prefix = {
        "Whole model": ("warm", table_form(arch), "t_"),
        "Tune": ("tune", tune_form(arch), "u_"),
    }.get(str(values.get("what")), ("compile", shape_form(arch), "s_"))
    asked = {one.name: values.get(prefix + one.name, one.default) for one in form}
    if asked.get("model") == OWN_TABLE:
        asked["model"] = "shapes.csv"
    return tuple(command_of(verb, form, asked))


def _evaluations(values: Values, _: str) -> tuple[str, ...]:
    kind = values.get("e_kind")
    if kind == "More":
        kind = values.get("e_more") or "Validation"
    if kind == "Validation":
        return ("evaluations", "validate", "measured.csv")
    if kind == "Saved results":
        return ("evaluations", "ls")
    chip = ("--chip", str(values.get("e_chip") or "H100"))
    if kind == "Whole model":
        return ("evaluate", str(values.get("e_model") or ""), *chip, *_options(values, _OF_MODEL))
    sizes = [str(values.get(f"e_{size}") or default) for size, default in (("m", 4096), ("n", 7168), ("k", 2048))]
    return ("evaluate", *sizes, *chip, *_options(values, _OF_SHAPE))


_OF_SHAPE = {"batch": "e_batch", "dtype": "e_dtype", "out-dtype": "e_out_dtype"}
_OF_MODEL = {
    "m": "e_tokens", "phase": "e_phase", "dtype": "e_model_dtype", "tp": "e_tp", "ep": "e_ep", "dp": "e_dp",
    "skew": "e_skew",
}  # fmt: skip


def _options(values: Values, named: Mapping[str, str]) -> list[str]:
    return [f"--{option}={values[key]}" for option, key in named.items() if values.get(key)]


def _storage(values: Values, _: str) -> tuple[str, ...] | None:
    part = str(values.get("part") or "Clean")
    tab = str(values.get("tab") or values.get(part.lower()) or STORAGE.get(part, STORAGE["Clean"])[0])
    if tab == "This store":
        rule = _clean_options(values)
        return None if rule is None else ("clean", *rule)
    kinds = [f"--kind={kind}" for kind in _several(values.get("kind"))] if tab == "Decisions" else []
    return (*_TABS[tab], *kinds) if tab in _TABS else None


def _clean_options(values: Values) -> list[str] | None:
    """The options for the rule that is chosen in Cleanup; ``None`` if the rule has no value yet."""
    rule = str(values.get("rule") or ("keys" if values.get("keys") else "settings"))
    if rule in ("archs", "keys"):
        named = _several(values.get("archs")) if rule == "archs" else sorted(asked_keys(str(values.get("keys")))[0])
        return [f"--{rule[:-1]}={one}" for one in named] or None
    days, share = values.get("days"), values.get("share")
    options = {
        "expired": "--expired" if days is None else f"--days={float(days):g}",
        "stale": "--stale=toolchain",
        "entries": f"--max-entries={values.get('keep', 1000)}",
        "bytes": f"--max-bytes={values.get('size', '1GiB')}",
        "disk": f"--max-bytes={50 if share is None else int(share)}%",
        "foreign": "--stale=format",
        "all": "--all",
    }
    return [options[rule]] if rule in options else []


def _several(value: object) -> Sequence[str]:
    return [str(one) for one in value] if isinstance(value, list | tuple) else [str(value)] if value else []


_PAGES = {
    "Overview": _overview,
    "Kernels": _kernels,
    "Kernel": _kernel,
    "Compare": _compare,
    "Workload": _workload,
    "Compile": lambda values, arch: ("farm", "status") if values.get("what") == "Farm" else _compile(values, arch),
    "Predict": _evaluations,
    "Storage": _storage,
}
