"""Records the formats that others rely on: the schema of each ``--json`` document, public names, a store and a pack.

The recorded files are those of the version in ``FROM``. They are evidence of what that version wrote, so they are
not written again when the code changes. Fields that are added need no new recording. This is how they were made, in a
checkout of that version::

    cd OLD_CHECKOUT && PYTHONPATH=OLD_CHECKOUT python NEW_CHECKOUT/tests/formats/record.py NEW_CHECKOUT/tests/formats

It imports nothing from the tests, and runs the command line by its module name, so that it works with every version.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import json
import logging
import os
import runpy
import signal
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

FROM = "fc4e2bd"
"""The commit whose formats are recorded."""

# Objects whose names are data, such as tiers; they have one schema for all values.
MAPS = frozenset(
    {"block_limits", "classes", "components", "hit_rates", "hits", "opcodes", "stages_ms", "tier_failures", "model_us"}
)
SHAPE = ("64", "48", "80", "--dtype", "fp32")
OTHER = ("32", "48", "64", "--dtype", "fp32")
SMALL = (
    "64", "48", "80", "--dtype", "fp16",
    "--config", "block_m=16,block_n=16,block_k=16,warps_m=1,warps_n=1,stages=2",
)  # fmt: skip
"""The kernel whose code is shortest, for files that are committed."""

Schema = dict[str, Any]
"""A kind of JSON value (null, bool, int, float, str, object, array, map) to what is known of it."""


# ---- Schemas ----


def schema_of(value: Any, name: str = "") -> Schema:
    """The schema of one JSON value; ``name`` is that of the field it is in."""
    if isinstance(value, dict):
        if name in MAPS:
            return {"map": merged(schema_of(item) for item in value.values())}
        fields = {field: schema_of(item, field) for field, item in value.items()}
        return {"object": {"fields": fields, "always": sorted(fields)}}
    if isinstance(value, list):
        return {"array": merged(schema_of(item) for item in value)}
    return {"null" if value is None else type(value).__name__: None}


def merged(schemas: Any) -> Schema:
    """The schema of values of which each has one of these."""
    union: Schema = {}
    for schema in schemas:
        for kind, detail in schema.items():
            if kind not in union or detail is None:
                union.setdefault(kind, detail)
            elif kind == "object":
                union[kind] = _merged_objects(union[kind], detail)
            else:
                union[kind] = merged((union[kind], detail))
    return union


def _merged_objects(one: Schema, other: Schema) -> Schema:
    names = {**one["fields"], **other["fields"]}
    fields = {name: merged(s["fields"][name] for s in (one, other) if name in s["fields"]) for name in names}
    return {"fields": fields, "always": sorted(set(one["always"]) & set(other["always"]))}


def broken(old: Schema, new: Schema, where: str) -> Iterator[str]:
    """What a program that relies on the old schema would miss in documents of the new one, in words."""
    if old and new and not new.keys() <= old.keys():
        yield f"{where} was {' or '.join(old)}, and is {' or '.join(new)}"
    if "object" in old and "object" in new:
        fields = new["object"]["fields"]
        for name, schema in old["object"]["fields"].items():
            if name not in fields:
                yield f"{where}.{name} is gone"
                continue
            if name in old["object"]["always"] and name not in new["object"]["always"]:
                yield f"{where}.{name} was always there, and is left out at times"
            yield from broken(schema, fields[name], f"{where}.{name}")
    for kind in ("array", "map"):
        if kind in old and kind in new:
            yield from broken(old[kind], new[kind], f"{where}[]")


# ---- Documents ----


def run(store: Path, *arguments: object, module: str = "cache_engine") -> str:
    """Standard output of ``gemm-cache --store STORE …``, or of another module, run in this process."""
    argv = ["gemm-cache", "--store", str(store), *map(str, arguments)]
    handlers, on_ctrl_c = logging.getLogger("cache_engine").handlers[:], signal.getsignal(signal.SIGINT)
    out = io.StringIO()
    with (
        mock.patch.object(sys, "argv", argv),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.suppress(SystemExit),
    ):
        runpy.run_module(module, run_name="__main__")
    logging.getLogger("cache_engine").handlers[:] = handlers
    signal.signal(signal.SIGINT, on_ctrl_c)
    return out.getvalue()


class Recorder:
    """Runs verbs on one store and collects the documents that they print, by the name of a case."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.documents: dict[str, list[Any]] = {}

    def __call__(self, case: str, *arguments: object, store: Path | None = None) -> Any:
        """Runs a verb; its document belongs to the case."""
        text = run(store or self.store, *arguments, "--json")
        document = json.loads(text)
        self.documents.setdefault(case, []).append(document)
        return document


def documents(folder: Path) -> dict[str, list[Any]]:
    """The documents of every verb that needs no GPU and takes no minutes: full and empty, dry run and not."""
    ask = Recorder(folder / "store")
    _of_kernels(ask, folder)
    _of_timings(ask, folder)
    _of_a_gpu(ask)
    _of_evaluations(ask, folder)
    _of_upkeep(ask, folder)
    _of_errors(ask)
    return ask.documents


def _of_kernels(ask: Recorder, folder: Path) -> None:
    ask("compile", "compile", *SHAPE, "--arch", "sm_90")
    key = ask("compile", "compile", *SHAPE, "--arch", "sm_90")["key"]
    ask("explain", "explain", *SHAPE, "--arch", "sm_90")
    ask("explain", "explain", *OTHER, "--arch", "sm_80")
    job = ask.store / "jobs" / "1-1.json"
    job.parent.mkdir(exist_ok=True)
    job.write_text(json.dumps({"id": "1-1", "command": ["compile"]}))
    other = ask("compile", "compile", *OTHER, "--arch", "sm_80", "--report-to", job)["key"]
    ask.documents["compile, as a job"] = [json.loads(json.loads(job.read_text())["result"])]
    for filters in ((), ("--arch", "sm_120"), ("--limit", "1")):
        ask("ls", "ls", *filters)
    ask("search", "search", "fp32")
    ask("show", "show", key)
    ask("show --ptx", "show", key, "--ptx")
    ask("diff", "diff", key, other)
    ask("diff", "diff", key, other, "--sass")
    ask("stats", "stats")
    ask("stats --by-arch", "stats", "--by-arch")
    ask("sync", "sync")
    ask("sync", "sync", "--rebuild")
    ask("doctor", "doctor")
    (folder / "table.csv").write_text("n,k\n48,80\n")
    for _ in range(2):
        ask("warm", "warm", folder / "table.csv", "--m", "64", "--dtype", "fp32", "--arch", "sm_90")


def _of_timings(ask: Recorder, folder: Path) -> None:
    ask("timings ls", "timings", "ls")
    add_timings(ask.store)
    ask("timings ls", "timings", "ls")
    ask("show", "show", ask("ls", "ls")["rows"][0]["key"])
    ask("timings export", "timings", "export", folder / "timings.csv")
    run(ask.store, "timings", "export", folder / "timings.json")
    ask.documents["timings export, the file"] = [json.loads((folder / "timings.json").read_text())]
    ask("tune --dry-run", "tune", *SHAPE, "--arch", "sm_90", "--top", "2", "--dry-run")


def _of_evaluations(ask: Recorder, folder: Path) -> None:
    ask("evaluations ls", "evaluations", "ls")
    for _ in range(2):
        ask("evaluate", "evaluate", 64, 128, 256, "--chip", "SG2262")
    ask("evaluate, a GPU", "evaluate", 64, 128, 256, "--chip", "H100")
    ask("evaluations ls", "evaluations", "ls")
    ask("evaluations ls --chip", "evaluations", "ls", "--chip", "SG2262")
    ask("evaluations export", "evaluations", "export", folder / "results.json")
    for place in (ask.store, folder / "other"):
        ask("evaluations import", "evaluations", "import", folder / "results.json", store=place)
    (folder / "measured.csv").write_text("arch,M,N,K,latency_us\nH100,64,4096,4096,20.5\nH100,4096,4096,4096,250.0\n")
    ask("evaluations validate", "evaluations", "validate", folder / "measured.csv")
    for rule in (("--dry-run",), ("--max-entries", "0", "--dry-run"), ("--max-entries", "0")):
        ask("evaluations prune", "evaluations", "prune", *rule)


def _of_upkeep(ask: Recorder, folder: Path) -> None:
    pack = folder / "some.gemmpack"
    ask("export", "export", pack)
    for arguments in (("--dry-run",), (), ()):
        ask("import", "import", pack, *arguments, store=folder / "other")
    ask("verify", "verify")
    ask("clean", "clean", "--dry-run")
    ask("clean", "clean", "--max-entries", "0", "--yes", store=folder / "other")
    keys = sorted(row["key"] for row in ask("ls", "ls")["rows"])
    open_cache = importlib.import_module("cache_engine").open_cache
    with open_cache(ask.store) as cache:
        cache.store.quarantine(keys[0])
    blob = next((ask.store / "kernels").glob(f"*/{keys[1]}-*"))
    blob.write_bytes(blob.read_bytes()[:100])
    (ask.store / "temp" / "1-left").write_bytes(b"half")
    os.utime(ask.store / "temp" / "1-left", (1e9, 1e9))
    ask("export", "export", folder / "damaged.gemmpack")
    ask("verify", "verify")
    ask("verify", "verify", "--repair")
    ask("quarantine ls", "quarantine", "ls")
    ask("quarantine restore", "quarantine", "restore", keys[0])
    ask("quarantine delete", "quarantine", "delete", "--all", "--dry-run")
    ask("quarantine delete", "quarantine", "delete", "--all")
    ask("quarantine ls", "quarantine", "ls")


def _of_errors(ask: Recorder) -> None:
    ask("error", "compile", 0, 5, 5)
    ask("error", "show", "ffff")
    with mock.patch.dict(os.environ, {"GEMM_CACHE_COMPILER_FLAGS": "-DM_BOUND=nothing -DBLOCK_M=nothing"}):
        ask("error of a compiler", "compile", *SHAPE, "--arch", "sm_75")


def invented_gpu() -> Any:
    """A device that does not exist."""
    fingerprint = importlib.import_module("cache_engine.model.fingerprint")
    return fingerprint.DeviceFingerprint("Invented GPU", "sm_90", 132, 80 * 2**30, 50 * 2**20, 1_980_000, "13.0")


def add_timings(store: Path) -> None:
    """Adds two timings that nobody measured, of the first kernel of a store."""
    measurement = importlib.import_module("cache_engine.model.measurement")
    with importlib.import_module("cache_engine").open_cache(store) as cache:
        record = min(cache.records(), key=lambda record: str(record.key))
        about = {
            name: getattr(record, name)
            for name in ("key", "family", "compiler", "compiler_version", "arch", "problem", "config", "config_from")
        }
        for median_us in (4.0, 5.0):
            timing = {
                "median_us": median_us, "p10_us": median_us, "p90_us": median_us, "repeats": 50, "tflops": 1.5,
                "max_rel_error": 1e-3, "verified": True, "seed": 7, "reference": None, "no_reference": "invented",
                "reference_median_us": None, "speed_ratio": None, "sm_clock_mhz": None, "sm_clock_before_mhz": None,
            }  # fmt: skip
            cache.timings.add(
                [
                    measurement.Measurement(
                        **about,
                        device=invented_gpu(),
                        timing=timing,
                        measured_at=1.79e9 + median_us,
                        measured_by="invented",
                    )
                ]
            )


def slow_documents(folder: Path) -> dict[str, list[Any]]:
    """The documents of verbs that take many seconds; one of each is recorded whole."""
    ask = Recorder(folder / "slow")
    ask("sample", "sample")
    options = ("--entries", "10", "--rows", "10", "--json")
    ask.documents["bench"] = [json.loads(run(ask.store, "store", *options, module="benchmarks"))]
    return ask.documents


def _of_a_gpu(ask: Recorder) -> None:
    """The documents of verbs that time kernels, on a GPU that does not exist: their form is recorded, not a time."""
    timer, memory = (importlib.import_module(f"cache_engine.gpu.{name}") for name in ("timer", "memory_pool"))
    pool = mock.Mock()
    pool.statistics.return_value = memory.PoolStatistics(1, 1, 1, 1, 1, 1, 1)
    numbers = {"repeats": 50, "tflops": 1.5, "max_rel_error": 1e-3}
    plain = timer.Timing(invented_gpu(), 4.0, 3.5, 5.0, **numbers, verified=True, no_reference="invented")
    compared = {"reference": "cuBLAS", "reference_median_us": 4.0, "speed_ratio": 1.0}
    full = timer.Timing(
        invented_gpu(), 4.0, 3.5, 5.0, **numbers, verified=True, sm_clock_mhz=1980, sm_clock_before_mhz=1980, **compared
    )
    for timing in (plain, full):
        with (
            mock.patch("cache_engine.gpu.probe.require_gpu"),
            mock.patch("cache_engine.gpu.memory_pool.shared_pool", return_value=pool),
            mock.patch("cache_engine.gpu.timer.time_kernel", return_value=timing),
        ):
            ask("time", "time", *SHAPE, "--arch", "sm_90")
            ask("tune", "tune", *SHAPE, "--arch", "sm_90", "--top", "1")


# ---- Names ----


def public_names() -> dict[str, Any]:
    """What programs call: names of the package with the parameters of what they lead to, settings, verbs, options."""
    package = importlib.import_module("cache_engine")
    names: dict[str, Any] = {}
    moved = {name: importlib.import_module(f"cache_engine.{home}") for name, home in package._NEW_HOME_OF.items()}
    for name in (*package.__all__, *moved):
        found = getattr(moved.get(name, package), package._RENAMED.get(name, name))
        names[name] = parameters_of(found)
        if inspect.isclass(found):
            for member in sorted(set(dir(found))):
                if not member.startswith("_") and not hasattr(Exception, member):
                    names[f"{name}.{member}"] = parameters_of(getattr(found, member))
    settings = [setting.name for setting in importlib.import_module("cache_engine.settings").SETTINGS]
    try:
        commands = importlib.import_module("cache_engine.cli.main").commands
    except ModuleNotFoundError:
        commands = importlib.import_module("cache_engine.cli").commands
    return {"names": names, "settings": settings, "verbs": dict(verbs(commands))}


def parameters_of(found: Any) -> list[str] | None:
    """The names of what a function or class takes; ``None`` for what takes nothing."""
    try:
        return list(inspect.signature(found).parameters)
    except (TypeError, ValueError):
        return None


def verbs(group: Any, prefix: str = "") -> Iterator[tuple[str, list[str]]]:
    """Each verb with its options."""
    for name, verb in group.commands.items():
        yield f"{prefix}{name}", sorted(option for parameter in verb.params for option in parameter.opts)
        if hasattr(verb, "commands"):
            yield from verbs(verb, f"{prefix}{name} ")


# ---- A store and a pack ----


def make_store(folder: Path) -> None:
    """A store with two kernels, timings, results of the evaluator, usage and quarantine, as a tar file, and a pack."""
    with tempfile.TemporaryDirectory() as made:
        store = Path(made) / "store"
        for arch in ("sm_90", "sm_80", "sm_89", "sm_90", "sm_90"):
            run(store, "compile", *SMALL, "--arch", arch, "--json")
        add_timings(store)
        for m in (64, 128):
            run(store, "evaluate", m, 128, 256, "--chip", "SG2262", "--json")
        pack = folder / f"{FROM}.gemmpack"
        pack.unlink(missing_ok=True)
        run(store, "export", pack, "--arch", "sm_90", "--arch", "sm_80", "--json")
        with importlib.import_module("cache_engine").open_cache(store) as cache:
            cache.store.quarantine(next(record.key for record in cache.records() if record.arch == "sm_89"))
        for path in store.glob("mirror*"):
            path.unlink()
        with tarfile.open(folder / f"{FROM}.store.tar.gz", "w:gz") as tar:
            tar.add(store, "store", filter=_of_nobody)


def _of_nobody(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _write(path: Path, value: dict[str, Any]) -> None:
    lines = (f"{json.dumps(name)}: {json.dumps(value[name], ensure_ascii=False)}" for name in value)
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main(folder: Path) -> None:
    """Records everything into a folder."""
    with tempfile.TemporaryDirectory() as made:
        found = documents(Path(made))
        _write(folder / "schemas.json", {case: merged(map(schema_of, found[case])) for case in found})
        _write(folder / "slow_documents.json", slow_documents(Path(made)))
    _write(folder / "public_names.json", public_names())
    make_store(folder)


if __name__ == "__main__":
    print(importlib.import_module("cache_engine").__file__)
    main(Path(sys.argv[1]))
