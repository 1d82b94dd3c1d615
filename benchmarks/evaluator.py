"""The evaluator: searching, and keeping and loading its results."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

from benchmarks.results import Report, Result
from benchmarks.timing import compare, medians
from cache_engine.evaluator.catalogue import model_shapes
from cache_engine.evaluator.catalogue.layers import layers_named
from cache_engine.evaluator.chips import GPUS
from cache_engine.evaluator.cost import EVALUATOR, MODEL_VERSION, Evaluation, SearchMode
from cache_engine.evaluator.gpu import latencies_us, parameters_of, roofline_us
from cache_engine.evaluator.hardware import PRESETS, Hardware
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.evaluator.results import Evaluations
from cache_engine.evaluator.results.entry import encode_entry, judge, make_entry
from cache_engine.evaluator.search import evaluate
from cache_engine.insight.passes import Step, asking, model_pass, operations
from cache_engine.settings.extras import needing
from cache_engine.store.disk import open_store
from cache_engine.store.layout import StoreLayout
from cache_engine.store.results import NewResult, ResultFile, Snapshot, empty_snapshot

with needing("evaluate", "the benchmark"):
    import numpy as np

_CHIP = PRESETS["SG2262"]
_SIZES = tuple(2**power for power in range(15))  # m from 1 to 16384
_NOTHING = SearchMode(tile_search=False, partition_search=False)
_PUTS = 200
_TOKENS = tuple(2**power for power in range(12))  # of the passes of all models


def evaluating(report: Report, place: Path, entries: int) -> None:
    """Searches of the DeepSeek-V3 table, its results stored and found again, and large sets of results."""
    problems = _table(_SIZES)
    _searching(report, problems)
    _predicting(report, problems)
    _keeping(report, place, _table(_SIZES[1:]))
    _passing(report, place)
    for number in (entries, 5 * entries):
        _loading(report, place / f"results-{number}", number)
    for stored in (0, 5 * entries):
        for durable in (False, True):
            _putting(report, place / f"results-{stored}", f"{stored:,} stored", durable)


def _table(sizes: tuple[int, ...]) -> list[EvaluationProblem]:
    return [EvaluationProblem(m, shape.n, shape.k, shape.batch) for shape in model_shapes("DeepSeek-V3") for m in sizes]


def _searching(report: Report, problems: list[EvaluationProblem]) -> None:
    """Mean and 99th percentile of the searches, compared with evaluating the same without searching."""
    evaluate(problems[0], _CHIP)  # what depends on the chip alone is cached
    searched, plain = [], []
    for problem in problems:
        searched.append(_seconds(problem, SearchMode()))
        plain.append(_seconds(problem, _NOTHING))
    beside, mean = "the same, nothing searched", statistics.fmean(plain)
    name = f"full search, mean of {len(problems)} of DeepSeek-V3 on {_CHIP.name}"
    report(Result(name, statistics.fmean(searched), beside, mean, 3e-3))
    report(Result("full search, 99th percentile", sorted(searched)[int(len(searched) * 0.99)], beside, mean, 30e-3))


def _predicting(report: Report, problems: list[EvaluationProblem]) -> None:
    """The GPU model over the table together, per shape, compared with the roofline of the same."""
    m, n, k, batch = np.array([(p.m, p.n, p.k, p.batch) for p in problems] * 20, dtype=float).T
    gpu = GPUS["H100"]
    _, parameters = parameters_of(gpu)
    model, plain = partial(latencies_us, parameters, gpu, m, n, k, batch), partial(roofline_us, gpu, m, n, k, batch)
    seconds, plain_seconds = (each / len(m) for each in medians([model, plain], 20))
    report(Result(f"prediction for {gpu.name}, one of {len(m):,} together", seconds, "roofline", plain_seconds, 2e-6))


def _seconds(problem: EvaluationProblem, mode: SearchMode) -> float:
    started = time.perf_counter()
    evaluate(problem, _CHIP, mode)
    return time.perf_counter() - started


def _keeping(report: Report, place: Path, problems: list[EvaluationProblem]) -> None:
    """The table on all accelerators, searched and stored, then found again; once each, as it can be cold only once."""
    asked = [(problem, hardware) for hardware in PRESETS.values() for problem in problems]
    layout = open_store(place / "table")
    alone = _once(lambda: [evaluate(*one) for one in asked])
    started = time.perf_counter()
    with Evaluations(layout) as kept:
        for one in asked:
            kept.evaluate(*one)
    cold = time.perf_counter() - started
    with Evaluations(layout) as kept:
        cached = _once(lambda: [kept.evaluate(*one) for one in asked])
    report(Result(f"table of {len(asked)}, cold, saved in batches", cold, "searching alone", alone, 1.5))
    report(Result(f"table of {len(asked)}, cached", cached, "searching alone", alone, 20e-3))


def _passing(report: Report, place: Path) -> None:
    """A pass of every model for twelve numbers of tokens on all accelerators: cold, and from stored results."""
    layout = open_store(place / "passes")
    number = len(_passes(None))
    alone = _once(lambda: _passes(None))
    with Evaluations(layout) as kept:
        cold = _once(lambda: _passes(kept))
    with Evaluations(layout) as kept:
        first = _once(lambda: _passes(kept))
        again = _once(lambda: _passes(kept))
    report(Result(f"{number} model passes, cold", cold, "searching alone", alone, 3.0))
    report(Result(f"{number} model passes, first from stored results", first, "searching alone", alone, None))
    report(Result(f"{number} model passes, cached", again, "searching alone", alone, 50e-3))


def _passes(kept: Evaluations | None) -> list[float]:
    ask, found = asking(kept), []
    for model in dict.fromkeys(shape.model for shape in model_shapes()):
        shapes = layers_named(model)
        for tokens in _TOKENS:
            computed = operations(shapes, Step(tokens))
            found += [model_pass(computed, chip, tokens, ask).pass_us for chip in PRESETS.values()]
    return found


def _once(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _loading(report: Report, folder: Path, entries: int) -> None:
    layout = open_store(folder)
    path = _fill(layout, entries)
    goal = {10_000: 15e-3, 50_000: 80e-3}.get(entries)
    name = f"load {entries:,} results"
    read = partial(_parse, path)
    report(compare(name, partial(_load, layout), "json.loads of the file", read, goal_seconds=goal, samples=10))


def _fill(layout: StoreLayout, entries: int) -> Path:
    """Results as a store has them."""
    problem, evaluation = EvaluationProblem(1, 2112, 7168), _evaluation()
    made = [make_entry(replace(problem, m=m), SearchMode(), evaluation, 0.5, 1e9) for m in range(1, entries + 1)]
    file = ResultFile(layout, _empty(_CHIP), judge, durable=False, lock_timeout_s=60)
    file.append(NewResult(entry.key(), 1e9, 0.5, encode_entry(entry)) for entry in made)
    return layout.results_file(_CHIP.fingerprint())


def _putting(report: Report, folder: Path, name: str, durable: bool) -> None:
    """One result stored, compared with appending as many bytes to a file; with both synced, or neither."""
    evaluation, sizes = _evaluation(), count(2 * 10**6 if durable else 10**6)
    plain = os.open(folder.with_suffix(".plain"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    line = encode_entry(make_entry(EvaluationProblem(1, 1, 1), SearchMode(), evaluation, 0.5, 1e9))

    def append() -> None:
        os.write(plain, line)
        if durable:
            os.fsync(plain)

    with Evaluations(open_store(folder), durable=durable) as kept:
        kept.preload(_CHIP)

        def put() -> None:
            kept.put(EvaluationProblem(next(sizes), 64, 64), _CHIP, SearchMode(), evaluation)

        how = "durable" if durable else "fast"
        report(compare(f"one put, {how}, {name}", put, "appending as much", append, goal_seconds=0.5e-3, samples=_PUTS))
    os.close(plain)


def _evaluation() -> Evaluation:
    return evaluate(EvaluationProblem(1, 2112, 7168), _CHIP)


def _empty(hardware: Hardware) -> Snapshot:
    return empty_snapshot(MODEL_VERSION, EVALUATOR, hardware.fingerprint(), hardware.to_dict())


def _load(layout: StoreLayout) -> None:
    with Evaluations(layout) as kept:
        kept.preload(_CHIP)


def _parse(path: Path) -> None:
    json.loads(path.read_bytes())
