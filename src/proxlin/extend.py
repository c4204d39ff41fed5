"""Base classes for your own pieces, and the algebra of the vectors they are given.

Losses, regularizers, metrics, solvers, subproblems and step rules are frozen dataclasses that
derive from the bases here. :mod:`proxlin.testing` has checkers for them.
"""

from proxlin.algebra import (
    MetricVector,
    Params,
    Scalar,
    Vector,
    add_scaled,
    algebra_dtype,
    cast_like,
    count,
    covector,
    dot,
    plain,
    scale,
    select,
    zeros_like,
)
from proxlin.direction import Direction, Info
from proxlin.losses import Factor, Loss
from proxlin.metrics import Inverse, Metric, inverse_roots, precondition, second_moments
from proxlin.proximity import Proximity
from proxlin.regularizers import Regularizer
from proxlin.solvers import (
    CompositeProblem,
    CompositeSolution,
    CompositeSolver,
    Cost,
    LinearSolver,
    NormalSystem,
    SmoothSolution,
    SmoothSolver,
    Solution,
    Status,
)
from proxlin.steps import Step, StepRule
from proxlin.subproblems import ConvexModel, Subproblem, Subsolution

__all__ = [
    "CompositeProblem",
    "CompositeSolution",
    "CompositeSolver",
    "ConvexModel",
    "Cost",
    "Direction",
    "Factor",
    "Info",
    "Inverse",
    "LinearSolver",
    "Loss",
    "Metric",
    "MetricVector",
    "NormalSystem",
    "Params",
    "Proximity",
    "Regularizer",
    "Scalar",
    "SmoothSolution",
    "SmoothSolver",
    "Solution",
    "Status",
    "Step",
    "StepRule",
    "Subproblem",
    "Subsolution",
    "Vector",
    "add_scaled",
    "algebra_dtype",
    "cast_like",
    "count",
    "covector",
    "dot",
    "inverse_roots",
    "plain",
    "precondition",
    "scale",
    "second_moments",
    "select",
    "zeros_like",
]
