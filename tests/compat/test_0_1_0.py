"""Every line of a program written for proxlin 0.1.0 still runs, deprecated or not.

``tests/compat/0.1.0`` holds the README and the guides of 0.1.0, word for word, and the tables below
its public names. All of it goes with 0.2, as the names deprecated since do.
"""

from __future__ import annotations

import inspect
import pathlib

import jax.numpy as jnp
import numpy as np
import pytest

import proxlin
from tests.pages import pages_with_blocks, run_blocks

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

PAGES = pages_with_blocks(
    pathlib.Path(__file__).parent / "0.1.0" / "README.md",
    pathlib.Path(__file__).parent / "0.1.0" / "guide",
)
SLOW = {"training", "choosing"}

NAMES = """
    Info value_and_direction Linearization linearize
    BinaryLogistic Factor FromFunction Hinge Logistic Loss Sparsemax Squared check_loss
    Diagonal Euclidean Kronecker Metric
    ProxLinearState StepInfo armijo_spl auto direction_as_gradient prox_linear spl
    L1 ElasticNet GroupL2 Regularizer SquaredL2 Zero check_regularizer
    SDCAInfo sdca
    CG LBFGS Cholesky MultiShiftCG NormalSystem ProximalGradient Status
    Armijo Fixed ModelStep StochasticTrustRegion TrustRegion
    dual_convex dual_quadratic primal_convex primal_quadratic
    Sum Term
""".split()

# What could be called in 0.1.0, and how; `...` is a default that is not a plain value. The
# subproblems are missing: users named them and set `anchor` and `passes`, which a guide does.
SIGNATURES = {
    "value_and_direction": lambda model, loss=None, *, subproblem=..., solver=None, regularizer=...,
        curvature_size=None, chunk_size=None, has_aux=False: None,
    "linearize": lambda model, params, inputs, *args, has_aux=False, chunk_size=None: None,
    "check_loss": lambda loss, outputs, targets, *, tolerance=None: None,
    "check_regularizer": lambda regularizer, params, *, tolerance=None: None,
    "armijo_spl": lambda model, loss=None, gamma=1.0, *, subproblem=None, solver=None,
        regularizer=..., curvature_size=None, chunk_size=None, has_aux=False, init_aux=None: None,
    "spl": lambda model, loss=None, gamma=1.0, *, subproblem=None, solver=None,
        regularizer=..., curvature_size=None, chunk_size=None, has_aux=False, init_aux=None: None,
    "auto": lambda model, loss=None, *, chunk_size=None, has_aux=False, init_aux=None: None,
    "direction_as_gradient": lambda model, loss=None, optimizer=None, *, gamma=1.0, subproblem=None,
        solver=None, regularizer=..., curvature_size=None, chunk_size=None, has_aux=False,
        init_aux=None: None,
    "prox_linear": lambda model, loss=None, *, step=..., metric=..., momentum=0.0, subproblem=None,
        solver=None, regularizer=..., curvature_size=None, chunk_size=None, has_aux=False,
        init_aux=None: None,
    "sdca": lambda features, targets, loss, *, strength, epochs, key, block_size=1,
        outputs=None: None,
    "Squared": lambda: None,
    "Logistic": lambda: None,
    "BinaryLogistic": lambda: None,
    "Sparsemax": lambda: None,
    "Hinge": lambda: None,
    "FromFunction": lambda fn, conjugate=None: None,
    "Factor": lambda mv, rmv, preimage=None: None,
    "Euclidean": lambda: None,
    "Diagonal": lambda decay=0.999, epsilon=1e-8: None,
    "Kronecker": lambda decay=0.95, block_size=128, every=20, root=2, epsilon=1e-4: None,
    "Zero": lambda where=None: None,
    "L1": lambda strength, where=None: None,
    "SquaredL2": lambda strength, where=None: None,
    "ElasticNet": lambda l1, l2, where=None: None,
    "GroupL2": lambda strength, axis=-1, where=None: None,
    "CG": lambda max_steps=2: None,
    "MultiShiftCG": lambda max_steps=2: None,
    "Cholesky": lambda independent=False, max_elements=2**26: None,
    "LBFGS": lambda max_steps=100, tolerance=0.0: None,
    "ProximalGradient": lambda max_steps=100, gap=None: None,
    "Fixed": lambda gamma=1.0, eta=1.0: None,
    "Armijo": lambda gamma=1.0, beta=1e-4, shrink=0.8, max_eta=1.0, max_backtracks=30: None,
    "ModelStep": lambda gamma=1.0: None,
    "TrustRegion": lambda gamma=1.0, low=0.25, high=0.75, shrink=0.5, grow=2.0, min_gamma=1e-30,
        max_gamma=1e30, max_residual=0.5: None,
    "StochasticTrustRegion": lambda gamma=0.01, target=-0.75, width=0.5, rate=0.05, decay=0.9,
        min_gamma=1e-30, max_gamma=1e30: None,
    "Sum": lambda *terms: None,
    "Term": lambda model, loss, weight=1.0: None,
}  # fmt: skip

# Defaults that have changed on purpose, each with an entry in the changelog.
NEW_DEFAULTS = {"StochasticTrustRegion": {"target": -0.375}}

# What could be read of reports and states, and what a loss and a regularizer could have.
ATTRIBUTES = {
    "Info": "grad slope predicted steps residual jvps vjps status aux penalty primal dual gap",
    "StepInfo": "value penalty slope predicted gap steps residual jvps vjps evaluations status",
    "ProxLinearState": "taken gamma eta refused aux info then memory rule",
    "SDCAInfo": "primal dual gap duals",
    "Linearization": "outputs jvp vjp rows rounding aux",
    "Loss": """
        value grad hvp hessian hessian_factor prox_conjugate shifted_solve check allowed valid
        differentiable twice_differentiable quadratic nonnegative has_conjugate
    """,
    "Regularizer": "value prox leaf_value leaf_prox modulus",
}


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=[pytest.mark.slow] * (p.stem in SLOW), id=p.stem) for p in PAGES],
)
def test_blocks_run(page, tmp_path):
    run_blocks(page, tmp_path, "-W", "ignore::DeprecationWarning")


def test_pages_are_there():
    assert len(PAGES) == 9 and SLOW < {page.stem for page in PAGES}


@pytest.mark.parametrize("name", NAMES)
def test_name(name):
    assert inspect.getdoc(getattr(proxlin, name))


def complaints(old: inspect.Signature, new: inspect.Signature) -> list[str]:
    """What a call that fits the old signature could stumble over in the new one."""
    found = []
    for before, after in zip(positional(old), positional(new), strict=False):
        if before.name != after.name:
            found.append(f"{before.name} has lost its position to {after.name}")
    for name, before in old.parameters.items():
        after = new.parameters.get(name)
        if after is None:
            found.append(f"{name} is missing")
        elif before.kind not in (after.kind, before.KEYWORD_ONLY):
            found.append(f"{name} is {after.kind.description}")
        elif before.default is not before.empty and after.default is after.empty:
            found.append(f"{name} has no default")
        elif before.default not in (before.empty, ...) and before.default != after.default:
            found.append(f"{name} has another default: {after.default}")
    for name in new.parameters.keys() - old.parameters.keys():
        added = new.parameters[name]
        variadic = added.kind in (added.VAR_POSITIONAL, added.VAR_KEYWORD)
        if added.default is added.empty and not variadic:
            found.append(f"{name} is new and has no default")
    return found


def positional(signature):
    return [p for p in signature.parameters.values() if p.kind == p.POSITIONAL_OR_KEYWORD]


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name):
    old, new = inspect.signature(SIGNATURES[name]), inspect.signature(getattr(proxlin, name))
    changed = NEW_DEFAULTS.get(name, {})
    assert complaints(old, new) == [
        f"{parameter} has another default: {value}" for parameter, value in changed.items()
    ]


@pytest.mark.parametrize(
    ("new", "complaint"),
    [
        (lambda b, a=1, *, c=...: None, "a has lost its position to b"),
        (lambda a, *, c=...: None, "b is missing"),
        (lambda a, *, b=1, c=...: None, "b is keyword-only"),
        (lambda a, b=2, *, c=...: None, "b has another default: 2"),
        (lambda a, b=1, *, c: None, "c has no default"),
        (lambda a, b=1, *, c=..., d: None, "d is new and has no default"),
    ],
)
def test_complaints_are_made(new, complaint):
    old = lambda a, b=1, *, c=...: None
    assert complaint in complaints(inspect.signature(old), inspect.signature(new))
    more = lambda a, b=1, c=0, *, d=2, **rest: None
    assert complaints(inspect.signature(old), inspect.signature(more)) == []


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes(name):
    there = getattr(proxlin, name)
    fields = set(getattr(there, "__dataclass_fields__", ()))
    assert set(ATTRIBUTES[name].split()) - fields - set(dir(there)) == set()


def test_normal_system():
    """It could be made with the names of 0.1.0, and solved."""
    matrix = jnp.array([[1.0, 2.0], [0.0, 1.0], [1.0, 1.0]])
    source = jnp.array([1.0, -1.0, 2.0])
    system = proxlin.NormalSystem(
        forward=lambda x: matrix @ x,
        adjoint=lambda y: matrix.T @ y,
        shift=jnp.asarray(0.5),
        source=source,
        preimage=None,
        rows=None,
    )
    assert system.source is source and system.rhs is None
    solution = proxlin.CG(max_steps=2).solve(system)
    exact = np.linalg.solve(0.5 * np.eye(2) + matrix.T @ matrix, matrix.T @ source)
    np.testing.assert_allclose(solution.x, exact, rtol=1e-12)
    assert int(solution.steps) == 2 and int(solution.status) == proxlin.Status.OK
    assert (int(solution.forwards), int(solution.adjoints)) == (2, 2)
    assert 0 < solution.residual < 1


def test_statuses():
    statuses = {name: int(status) for name, status in proxlin.Status.__members__.items()}
    assert statuses.items() >= {
        "OK": 0, "NON_FINITE": 1, "INEXACT": 2, "BREAKDOWN": 2, "BAD_VALUE": 3, "ASCENT": 4
    }.items()  # fmt: skip
