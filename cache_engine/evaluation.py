"""Public names of the evaluator, which predicts by arithmetic how long a GEMM takes on an accelerator or a GPU."""

from cache_engine.evaluator.catalogue import table_shapes
from cache_engine.evaluator.chips import GPUS, Gpu
from cache_engine.evaluator.cost import Evaluation, SearchMode
from cache_engine.evaluator.gpu import Prediction, predict, predict_grouped
from cache_engine.evaluator.hardware import PRESETS, Hardware
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.evaluator.results import Evaluations
from cache_engine.evaluator.results.entry import Answer
from cache_engine.evaluator.search import evaluate

__all__ = [
    "GPUS",
    "PRESETS",
    "Answer",
    "Evaluation",
    "EvaluationProblem",
    "Evaluations",
    "Gpu",
    "Hardware",
    "Prediction",
    "SearchMode",
    "evaluate",
    "predict",
    "predict_grouped",
    "table_shapes",
]
