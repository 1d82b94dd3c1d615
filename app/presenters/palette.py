"""The places that the header's search finds: pages, settings, models and targets. This module has no Streamlit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from app.addresses import BY_TARGET, MORE, OF_A_MODEL, OTHERS, RUNS, SAVED, VALIDATION
from cache_engine.evaluator.catalogue import model_shapes
from cache_engine.model.architecture import ARCHITECTURES
from cache_engine.settings import SETTINGS

MOST = 6
"""The most places of one kind that a search shows."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place that a search finds, and where a click on it leads.

    Attributes:
        kind: ``Page``, ``Setting``, ``Model``, ``Target``, ``Kernel``, or ``Entry`` of another framework's cache.
        name, about: the name and a short description, both plain text.
        page: the file of the page that a click opens, without its suffix.
        address: the parameters in the address of that page.
        words: further words by which a search finds the place.
    """

    kind: str
    name: str
    about: str
    page: str
    address: Mapping[str, str] = field(default_factory=dict)
    words: str = ""


def _more(part: str) -> dict[str, str]:
    return {"e_kind": MORE, "e_more": part}


_FRAMEWORKS = "triton inductor vllm tilelang cupy"
_OF_LOG = "audit history acts decisions miss promotion demotion eviction repaired imported"
PAGES = tuple(
    Place("Page", *one)
    for one in (
        ("Overview", "Health, hit rate, compile time", "overview", {}, "home dashboard history toolchains"),
        ("Kernels", "Search and select kernels", "kernels", {}, "list entries"),
        ("Compare", "Kernels side by side", "compare", {}, "diff difference"),
        ("By target", "Targets and toolchains", "kernels", {"view": BY_TARGET}, "architectures gpu sm"),
        ("Other frameworks", "Entries of their caches", "kernels", {"view": OTHERS}, f"caches cutile {_FRAMEWORKS}"),
        ("Workload", "What programs ask for", "workload", {}, "demand requests shapes usage"),
        ("Of a model", "Which kernels of a model are cached", "workload", {"part": OF_A_MODEL}, "coverage missing"),
        ("Runs", "What servers compiled, before and after ready", "workload", {"part": RUNS}, "run watch"),
        ("Compile", "A single shape", "compile", {}, "make build kernel jit"),
        ("Compile a model", "Every GEMM of a model", "compile", {"what": "Whole model"}, "warm up missing"),
        ("Jobs", "What runs, and what ran", "compile", {}, "running progress cancel queue"),
        ("Farm", "Workers, runs and failures of a compile farm", "compile", {}, "team queue redis celery cluster"),
        ("Predict", "Predicted times", "predict", {}, "roofline chip latency evaluations"),
        ("Validation", "Predictions against measurements", "predict", _more(VALIDATION), "csv error"),
        ("Saved results", "Of the evaluator", "predict", _more(SAVED), "stored"),
        ("Docs", "The documents of the project", "docs", {}, "help manual documentation guide"),
        ("Clean", "Delete kernels, after a preview", "storage", {"tab": "This store"}, "cleanup evict disk space rule"),
        ("Clean other caches", "Delete entries of other frameworks", "storage", {"tab": OTHERS}, "evict caches"),
        ("Integrity", "Verify every file", "storage", {"tab": "Integrity"}, "check repair corrupt damage"),
        ("Quarantine", "Files that were found damaged", "storage", {"tab": "Quarantine"}, "restore corrupt"),
        ("Findings", "What is wrong in other frameworks' caches", "storage", {"tab": "Findings"}, "doctor caches"),
        ("Index", "Update or rebuild it", "storage", {"tab": "Index"}, "mirror duckdb sync search"),
        ("Caches", "Directories of other frameworks", "storage", {"tab": "Directories"}, _FRAMEWORKS),
        ("Packs", "Export and import kernels", "storage", {"tab": "Packs"}, "share copy move"),
        ("Results", "Prune and import results of the evaluator", "storage", {"tab": "Results"}, "evaluations"),
        ("Settings", "Every value and its origin", "storage", {"tab": "Settings"}, "configuration environment"),
        ("Log", "What was decided about which kernel; who deleted what", "storage", {"tab": "Log"}, _OF_LOG),
    )
)
"""Every page, and the parts of pages that have an address."""


def places(text: str) -> list[Place]:
    """The places that have every word of a text, at most ``MOST`` of each kind; without a word, every page."""
    wanted = text.casefold().split()
    if not wanted:
        return list(PAGES)
    found: list[Place] = []
    for kind in (PAGES, _settings(), _models(), _targets()):
        fitting = [place for place in kind if _fits(place, wanted)]
        # One that is named so comes before one that is only about it.
        found += sorted(fitting, key=lambda place: not _named(place, wanted))[:MOST]
    return found


def _settings() -> Iterable[Place]:
    for setting in SETTINGS:
        yield Place("Setting", setting.name, str(setting.metadata["help"]), "storage", {"tab": "Settings"})


def _models() -> Iterable[Place]:
    for name in dict.fromkeys(shape.model for shape in model_shapes()):
        yield Place("Model", name, "Which of its kernels are cached", "workload", {"part": OF_A_MODEL, "model": name})
        yield Place(
            "Model", name, "Compile its kernels", "compile", {"what": "Whole model", "s_model": name}, "compile"
        )


def _targets() -> Iterable[Place]:
    for name, target in ARCHITECTURES.items():
        yield Place("Target", name, f"Kernels for {target.example}", "kernels", {"arch": name})


def _fits(place: Place, wanted: Iterable[str]) -> bool:
    text = f"{place.kind} {place.name} {place.about} {place.words}".casefold()
    return all(word in text for word in wanted)


def _named(place: Place, wanted: Iterable[str]) -> bool:
    return all(word in place.name.casefold() for word in wanted)


def plain(text: str) -> str:
    """A text with its Markdown escaped, for labels that Streamlit reads as Markdown."""
    return "".join(
        f"\\{char}" if char.isascii() and not char.isalnum() and not char.isspace() else char for char in text
    )
