"""Base classes for your own pieces, and the algebra of the vectors they are given.

Losses, regularizers, metrics, solvers, subproblems and step rules are frozen dataclasses that
derive from the bases here. :mod:`proxlin.testing` has checkers for them.
"""

from proxlin.algebra import (
    MetricVector,
    Number,
    Params,
    Scalar,
    Shapes,
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
from proxlin.metrics import (
    DiagonalMetric,
    Inverse,
    Metric,
    apply_roots,
    axes_of,
    inverse_roots,
    second_moments,
)
from proxlin.proximity import Proximity, ProximityState
from proxlin.regularizers import Regularizer
from proxlin.solvers import (
    Again,
    CompositeProblem,
    CompositeSolution,
    CompositeSolver,
    Cost,
    LinearSolver,
    NormalSystem,
    Rows,
    SmoothSolution,
    SmoothSolver,
    Solution,
    Status,
    TermRows,
)
from proxlin.steps import Step, StepRule
from proxlin.subproblems import ConvexModel, Factors, Subproblem, Subsolution

__all__ = [
    "Again",
    "CompositeProblem",
    "CompositeSolution",
    "CompositeSolver",
    "ConvexModel",
    "Cost",
    "DiagonalMetric",
    "Direction",
    "Factor",
    "Factors",
    "Info",
    "Inverse",
    "LinearSolver",
    "Loss",
    "Metric",
    "MetricVector",
    "NormalSystem",
    "Number",
    "Params",
    "Proximity",
    "ProximityState",
    "Regularizer",
    "Rows",
    "Scalar",
    "Shapes",
    "SmoothSolution",
    "SmoothSolver",
    "Solution",
    "Status",
    "Step",
    "StepRule",
    "Subproblem",
    "Subsolution",
    "TermRows",
    "Vector",
    "add_scaled",
    "algebra_dtype",
    "apply_roots",
    "axes_of",
    "cast_like",
    "count",
    "covector",
    "dot",
    "inverse_roots",
    "plain",
    "scale",
    "second_moments",
    "select",
    "zeros_like",
]
