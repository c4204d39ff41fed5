"""Base classes for your own losses, regularizers, metrics, solvers, subproblems and step rules.

:mod:`proxlin.testing` has a checker for each.
"""

from proxlin.algebra import (
    MetricVector,
    Params,
    Scalar,
    Vector,
    add_scaled,
    count,
    dot,
    plain,
    scale,
)
from proxlin.direction import Direction
from proxlin.losses import Factor, Loss
from proxlin.metrics import Metric, inverse_roots, precondition, second_moments
from proxlin.proximity import Proximity
from proxlin.regularizers import Regularizer
from proxlin.solvers import Cost, LinearSolver, NormalSystem, Solution, Status
from proxlin.steps import Step, StepRule
from proxlin.subproblems import ConvexModel, Subproblem, Subsolution

__all__ = [
    "ConvexModel",
    "Cost",
    "Direction",
    "Factor",
    "LinearSolver",
    "Loss",
    "Metric",
    "MetricVector",
    "NormalSystem",
    "Params",
    "Proximity",
    "Regularizer",
    "Scalar",
    "Solution",
    "Status",
    "Step",
    "StepRule",
    "Subproblem",
    "Subsolution",
    "Vector",
    "add_scaled",
    "count",
    "dot",
    "inverse_roots",
    "plain",
    "precondition",
    "scale",
    "second_moments",
]
