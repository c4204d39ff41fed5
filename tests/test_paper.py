"""What the paper proves of prox-linear directions, checked on small networks."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import proxlin
from proxlin.solvers import LinearSolver
from tests import cases
from tests.cases import LOSSES, SUBPROBLEMS, flat, network, problem, relative_error

dense = jax.jit(cases.dense, static_argnames=("name", "model"))

TAUS = tuple(range(11))
GAMMAS = tuple(10.0**e for e in range(-4, 5))
DTYPES = {"f32": jnp.float32, "f64": jnp.float64}


@dataclasses.dataclass(frozen=True)
class Recorder(LinearSolver):
    """A solver that keeps the last system and solution, for use inside one trace."""

    solver: LinearSolver
    record: dict = dataclasses.field(default_factory=dict, hash=False)

    def solve(self, system):
        solution = self.solver.solve(system)
        self.record.update(system=system, solution=solution)
        return solution


class Path(NamedTuple):
    """What there is after each number of steps, row by row."""

    d: jax.Array
    grad: jax.Array
    slope: jax.Array
    status: jax.Array
    x: jax.Array  # the variable of the subproblem


@functools.cache
def path_of(name, subproblem):
    """All numbers of steps in one compilation, which shares what they have in common."""

    def path(params, inputs, targets, gamma):
        iterates = []
        for tau in TAUS:
            solver = Recorder(proxlin.CG(tau))
            fn = proxlin.value_and_direction(
                network, LOSSES[name], subproblem=SUBPROBLEMS[subproblem], solver=solver
            )
            (_, info), d = fn(params, inputs, targets, gamma=gamma)
            x = solver.record["solution"].x
            d, grad, x = (ravel_pytree(tree)[0] for tree in (d, info.grad, x))
            iterates.append(Path(d, grad, info.slope, info.status, x))
        return jax.tree.map(lambda *rows: jnp.stack(rows), *iterates)

    compiled = jax.jit(path)

    def exact(*arguments):
        wide = lambda x: np.asarray(x, np.float64)
        return jax.tree.map(wide, compiled(*arguments))

    return exact


@functools.cache
def direction_of(name, subproblem, solver, model=network):
    return jax.jit(
        proxlin.value_and_direction(
            model, LOSSES[name], subproblem=SUBPROBLEMS[subproblem], solver=solver
        )
    )


def problems(name, dtype):
    """Networks with small, large and saturated outputs."""
    for seed, scale in ((0, 1.0), (1, 1.0), (2, 30.0), (3, 1e4)):
        params, inputs, targets = problem(name, dtype, seed=seed)
        yield {**params, "w2": (scale * params["w2"]).astype(dtype)}, inputs, targets


@pytest.mark.parametrize(
    "name,dtype",
    [
        ("squared", "f32"),
        ("squared", "f64"),
        ("logistic", "f32"),
        ("logistic", "f64"),
        ("singular", "f32"),
    ],
)
@pytest.mark.parametrize("subproblem", SUBPROBLEMS)
def test_descent_after_any_number_of_steps(name, subproblem, dtype):
    """<d, grad> >= 0, for the slope that is reported and for the direction that is returned."""
    path = path_of(name, subproblem)
    for index, (params, inputs, targets) in enumerate(problems(name, DTYPES[dtype])):
        for gamma in GAMMAS:
            got = path(params, inputs, targets, gamma)
            case = (index, gamma, got.slope)
            # In float32 rounding decides at the largest gammas, and the status says so.
            usable = proxlin.Status.OK, proxlin.Status.INEXACT
            assert np.isin(got.status, usable[: 2 if dtype == "f32" else 1]).all(), case
            assert np.isfinite(got.d).all(), case
            for d, grad, slope in zip(got.d, got.grad, got.slope, strict=True):
                if grad.any():
                    assert slope > 0 and d @ grad > 0, case
                else:
                    assert not d.any(), case


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("subproblem", SUBPROBLEMS)
@pytest.mark.parametrize("name", ["squared", "logistic"])
def test_no_step_is_a_gradient_step(name, subproblem, dtype):
    eps = np.finfo(DTYPES[dtype]).eps
    fn = direction_of(name, subproblem, proxlin.CG(0))
    for params, inputs, targets in problems(name, DTYPES[dtype]):
        for gamma in GAMMAS:
            (_, info), d = fn(params, inputs, targets, gamma=gamma)
            np.testing.assert_allclose(flat(d), gamma * flat(info.grad), rtol=4 * eps)
            assert (info.jvps, info.vjps, info.steps) == (0, 1, 0)


SOLVERS = (proxlin.CG(0), proxlin.CG(2), proxlin.CG(20), proxlin.Cholesky())


def linear(w, x):
    return x @ w


@pytest.mark.parametrize("subproblem", SUBPROBLEMS)
@pytest.mark.parametrize("solver", SOLVERS, ids=["cg0", "cg2", "cg20", "cholesky"])
def test_no_direction_at_a_critical_point(subproblem, solver):
    fn = direction_of("squared", subproblem, solver, linear)
    # Integers and four examples, so that all sums are exact.
    x = jnp.asarray([[1.0, 2.0], [3.0, -1.0], [0.0, 4.0], [5.0, 3.0]], jnp.float32)
    w = jnp.asarray([[2.0], [-3.0]], jnp.float32)
    fitted = x @ w
    # x^T r = 0: a minimum that fits no example
    unfitted = fitted + jnp.asarray([[12.0], [-4.0], [-7.0], [0.0]], jnp.float32)
    np.testing.assert_array_equal(x.T @ (unfitted - fitted), 0)
    for targets in (fitted, unfitted):
        for gamma in (1e-4, 1.0, 1e4):
            (_, info), d = fn(w, x, targets, gamma=gamma)
            assert info.status == proxlin.Status.OK
            assert info.slope == 0
            np.testing.assert_array_equal(d, 0)


@pytest.mark.parametrize("subproblem", SUBPROBLEMS)
def test_no_direction_only_at_a_critical_point(subproblem):
    """||d|| >= gamma ||grad|| / (1 + gamma lambda_max): where d is zero, so is the gradient."""
    fn = direction_of("logistic", subproblem, proxlin.Cholesky())
    for seed in range(3):
        params, inputs, targets = problem("logistic", jnp.float64, seed=seed)
        g, curvature = dense("logistic", params, inputs, targets)
        largest = np.linalg.eigvalsh(curvature)[-1]
        for gamma in GAMMAS:
            d = flat(fn(params, inputs, targets, gamma=gamma)[1])
            bound = gamma * np.linalg.norm(g) / (1 + gamma * largest)
            assert np.linalg.norm(d) >= (1 - 1e-9) * bound > 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("subproblem", SUBPROBLEMS)
@pytest.mark.parametrize("name", ["logistic", "binary", "function"])
def test_logits_of_any_size(name, subproblem, dtype):
    """Saturated examples have no curvature: the direction is a gradient step, and finite."""
    fn = direction_of(name, subproblem, proxlin.CG(2), linear)
    x = jnp.eye(6, dtype=DTYPES[dtype])
    rng = np.random.default_rng(0)
    w = rng.choice([-1.0, -0.5, 0.0, 0.5, 1.0], size=(6, 3)) + rng.permutation(3)[None, :]
    w = jnp.asarray(1e4 * w, DTYPES[dtype])
    targets = cases.targets_of(name, (6,), DTYPES[dtype])
    for gamma in (1e-4, 1.0, 1e4):
        (value, info), d = fn(w, x, targets, gamma=gamma)
        assert info.status == proxlin.Status.OK
        assert np.isfinite(value) and value > 1e3
        assert np.isfinite(flat(d)).all()
        assert info.slope > 0


@pytest.mark.parametrize("name", LOSSES)
def test_first_step_on_the_subproblem_is_a_gradient_step(name):
    """The gradient at d = 0 of the convex and of the quadratic subproblem is that of h."""
    params, inputs, targets = problem(name, jnp.float64)
    loss = LOSSES[name]

    def models(params, inputs, targets):
        lin = proxlin.linearize(network, params, inputs)
        g = loss.grad(lin.outputs, targets)
        zero = jax.tree.map(jnp.zeros_like, params)

        def convex(d):
            change = lin.jvp(d)
            return -jnp.mean(loss.value(lin.outputs - change, targets))

        def quadratic(d):
            change = lin.jvp(d)
            half = loss.hessian_factor(lin.outputs, targets).rmv(change)
            per_example = jnp.sum(g * change, axis=-1) - 0.5 * jnp.sum(half**2, axis=-1)
            return jnp.mean(per_example)

        objective = lambda w: jnp.mean(loss.value(network(w, inputs), targets))
        return [jax.grad(f)(w) for f, w in ((convex, zero), (quadratic, zero), (objective, params))]

    convex, quadratic, want = jax.jit(models)(params, inputs, targets)
    assert relative_error(flat(convex), flat(want)) <= 1e-13
    assert relative_error(flat(quadratic), flat(want)) <= 1e-13
    _, d = direction_of(name, "dual", proxlin.CG(0))(params, inputs, targets, gamma=2.0)
    assert relative_error(flat(d), 2.0 * flat(want)) <= 1e-13


@pytest.mark.parametrize("subproblem", SUBPROBLEMS)
def test_direction_is_not_linear_in_gamma(subproblem):
    params, inputs, targets = problem("logistic", jnp.float64)
    path = path_of("logistic", subproblem)
    small, large = (path(params, inputs, targets, gamma).d for gamma in (0.5, 5.0))
    assert relative_error(10 * small[0], large[0]) <= 1e-14  # the gradient is
    for row in range(2, len(TAUS)):
        assert relative_error(10 * small[row], large[row]) >= 0.1


@pytest.mark.parametrize("subproblem", SUBPROBLEMS)
def test_direction_of_a_batch_is_not_the_mean_of_directions(subproblem):
    params, inputs, targets = problem("logistic", jnp.float64)
    for tau in (0, 3):
        fn = direction_of("logistic", subproblem, proxlin.CG(tau))
        batch = flat(fn(params, inputs, targets, gamma=5.0)[1])
        single = [
            flat(fn(params, inputs[i : i + 1], targets[i : i + 1], gamma=5.0)[1])
            for i in range(len(inputs))
        ]
        difference = relative_error(np.mean(single, axis=0), batch)
        assert difference >= 0.1 if tau else difference <= 1e-13  # that of the gradient is


# The paper's own forms of the dual, with m examples of equal weight.


@dataclasses.dataclass(frozen=True)
class Parts:
    """f, J, g and H of a batch as matrices; B as the library has it."""

    m: int
    k: int
    outputs: np.ndarray  # (m, k)
    jacobian: np.ndarray  # (m k, p)
    g: np.ndarray  # (m k,)
    hessian: np.ndarray  # (m k, m k)
    factor: np.ndarray  # (m k, m k)


def block_diagonal(blocks):
    m, k, _ = blocks.shape
    out = np.zeros((m, k, m, k))
    out[np.arange(m), :, np.arange(m), :] = blocks
    return out.reshape(m * k, m * k)


def parts_of(name, seed=0):
    params, inputs, targets = problem(name, jnp.float64, seed=seed)
    start, unravel = ravel_pytree(params)
    loss = LOSSES[name]

    def compute(w, inputs, targets):
        outputs = network(unravel(w), inputs)
        single = lambda f, y: loss.value(f[None], y[None])[0]
        mv = loss.hessian_factor(outputs, targets).mv
        basis = jnp.eye(outputs.size).reshape(-1, *outputs.shape)
        return (
            outputs,
            jax.jacobian(lambda w: network(unravel(w), inputs))(w).reshape(outputs.size, -1),
            jax.vmap(jax.grad(single))(outputs, targets).reshape(-1),
            jax.vmap(jax.hessian(single))(outputs, targets),
            jax.vmap(mv, out_axes=-1)(basis).reshape(outputs.size, -1),
        )

    outputs, jacobian, g, hessians, factor = map(
        np.asarray, jax.jit(compute)(start, inputs, targets)
    )
    m, k = outputs.shape
    parts = Parts(m, k, outputs, jacobian, g, block_diagonal(hessians), factor)
    return (params, inputs, targets), parts


@functools.cache
def solved_of(name):
    """The dual solved to rounding, with its inner variable u."""

    def solve(params, inputs, targets, gamma):
        solver = Recorder(proxlin.CG(300))
        fn = proxlin.value_and_direction(network, LOSSES[name], solver=solver)
        _, d = fn(params, inputs, targets, gamma=gamma)
        return d, solver.record["solution"].x

    return jax.jit(solve)


@pytest.mark.parametrize("gamma", [1e-2, 1.0, 1e2])
def test_logistic_dual_is_the_constrained_problem_of_the_paper(gamma):
    r"""min 1/2 <b, D^-1 b> + gamma/(2m) ||J*(g - b)||^2 subject to sum(b_i) = 0, by its KKT."""
    arguments, parts = parts_of("logistic")
    c = gamma / parts.m
    jj = parts.jacobian @ parts.jacobian.T
    inverse = np.diag(1 / np.asarray(jax.nn.softmax(parts.outputs)).reshape(-1))
    sums = np.kron(np.eye(parts.m), np.ones((1, parts.k)))
    zeros = np.zeros((parts.m, parts.m))
    kkt = np.block([[inverse + c * jj, sums.T], [sums, zeros]])
    right = np.concatenate([c * jj @ parts.g, np.zeros(parts.m)])
    beta = np.linalg.solve(kkt, right)[: parts.m * parts.k]

    d, u = solved_of("logistic")(*arguments, gamma)
    # The library's factor contains sqrt(1/m).
    got = np.sqrt(parts.m) * parts.factor @ np.asarray(u).reshape(-1)
    assert relative_error(got, beta) <= 1e-9
    assert relative_error(flat(d), c * parts.jacobian.T @ (parts.g - beta)) <= 1e-9
    np.testing.assert_allclose(got.reshape(parts.m, parts.k).sum(axis=1), 0, atol=1e-13)


@pytest.mark.parametrize("gamma", [1e-2, 1.0, 1e2])
@pytest.mark.parametrize("name", ["squared", "logistic", "binary", "function", "singular"])
def test_dual_is_the_pseudo_inverse_form_of_the_paper(name, gamma):
    r"""min 1/2 <b, P H^+ P b> + gamma/(2m) ||J*(g - P b)||^2 with P = H H^+."""
    arguments, parts = parts_of(name)
    c = gamma / parts.m
    jj = parts.jacobian @ parts.jacobian.T
    pinv = np.linalg.pinv(parts.hessian, rcond=1e-10, hermitian=True)
    project = parts.hessian @ pinv
    q = project @ (pinv + c * jj) @ project
    beta = np.linalg.pinv(q, rcond=1e-10, hermitian=True) @ (c * project @ jj @ parts.g)

    d, u = solved_of(name)(*arguments, gamma)
    got = np.sqrt(parts.m) * parts.factor @ np.asarray(u).reshape(-1)
    assert relative_error(got, beta) <= 1e-8
    assert relative_error(flat(d), c * parts.jacobian.T @ (parts.g - beta)) <= 1e-8
    np.testing.assert_allclose(project @ got, got, atol=1e-12 * float(np.linalg.norm(got)))


def textbook_cg(q, c, steps):
    x = np.zeros_like(c)
    r = p = c
    iterates = [x]
    for _ in range(steps):
        a = r @ r / (p @ q @ p)
        x = x + a * p
        new = r - a * q @ p
        p = new + (new @ new / (r @ r)) * p
        r = new
        iterates.append(x)
    return iterates


@pytest.mark.parametrize("gamma", [1e-1, 1.0, 1e1])
def test_iterates_are_those_of_the_preconditioned_problem_of_the_paper(gamma):
    """Not only the solution: every step, projected and with D^(1/2) as preconditioner."""
    arguments, parts = parts_of("logistic", seed=4)
    c = gamma / parts.m
    jj = parts.jacobian @ parts.jacobian.T
    s = np.asarray(jax.nn.softmax(parts.outputs))
    root = np.diag(np.sqrt(s).reshape(-1))
    # beta = D^(1/2) v sums to zero when v is orthogonal to sqrt(s)
    projector = block_diagonal(np.eye(parts.k) - np.sqrt(s)[:, :, None] * np.sqrt(s)[:, None, :])
    q = projector @ (np.eye(len(root)) + c * root @ jj @ root) @ projector
    right = c * projector @ root @ jj @ parts.g
    path = path_of("logistic", "dual")(*arguments, gamma)
    for tau, v in enumerate(textbook_cg(q, right, 5)):
        want = c * parts.jacobian.T @ (parts.g - root @ v)
        assert relative_error(path.d[tau], want) <= 1e-9


def fisher(params, inputs):
    """E[grad log p grad log p^T] over labels drawn from the model, one label at a time."""
    start, unravel = ravel_pytree(params)

    def log_p(w, x):
        return jax.nn.log_softmax(network(unravel(w), x[None])[0])

    scores = jax.vmap(jax.jacobian(log_p), (None, 0))(start, inputs)
    p = jnp.exp(jax.vmap(log_p, (None, 0))(start, inputs))
    return jnp.einsum("my,myp,myq->pq", p, scores, scores) / len(inputs)


@pytest.mark.parametrize("subproblem", SUBPROBLEMS)
def test_curvature_of_the_logistic_loss_is_the_fisher_matrix(subproblem):
    params, inputs, targets = problem("logistic", jnp.float64)
    start, unravel = ravel_pytree(params)

    def curvature(params, inputs, targets):
        solver = Recorder(proxlin.CG(0))
        fn = proxlin.value_and_direction(
            network, LOSSES["logistic"], subproblem=SUBPROBLEMS[subproblem], solver=solver
        )
        fn(params, inputs, targets)
        system = solver.record["system"]
        # M* M in the primal, M M* in the dual
        first, second = system.forward, system.adjoint
        if subproblem == "dual":
            first, second = second, first
        product = lambda e: ravel_pytree(second(first(unravel(e))))[0]
        return jax.vmap(product)(jnp.eye(start.size))

    got = jax.jit(curvature)(params, inputs, targets)
    want = jax.jit(fisher)(params, inputs)
    assert relative_error(got, want) <= 1e-13


@pytest.mark.parametrize("name", ["squared", "binary"])
@pytest.mark.parametrize("solver", [proxlin.CG(50), proxlin.Cholesky()], ids=["cg", "cholesky"])
def test_infinite_gamma_is_a_gauss_newton_step(name, solver):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(9, 3)))
    w = jnp.asarray(rng.normal(size=(3, 3)))
    targets = cases.targets_of(name, (9,), jnp.float64)
    fn = direction_of(name, "primal", solver, linear)
    (_, info), d = fn(w, x, targets, gamma=jnp.inf)
    g, curvature = dense(name, w, x, targets, model=linear)
    assert info.status == proxlin.Status.OK
    assert relative_error(flat(d), np.linalg.solve(curvature, g)) <= 1e-9
    # With a linear model and the squared loss one step is the least-squares solution.
    if name == "squared":
        assert relative_error(flat(w - d), flat(jnp.linalg.lstsq(x, targets)[0])) <= 1e-9


def test_infinite_gamma_is_a_natural_gradient_step():
    # As many parameters as matter: p < m k, and shifts of all logits have no curvature.
    rng = np.random.default_rng(1)
    params, _, _ = problem("logistic", jnp.float64, seed=1, hidden=2, features=2)
    inputs = jnp.asarray(rng.normal(size=(40, 2)))
    targets = cases.targets_of("logistic", (40,), jnp.float64)
    fn = direction_of("logistic", "primal", proxlin.CG(300))
    (_, info), d = fn(params, inputs, targets, gamma=jnp.inf)
    natural = np.linalg.pinv(jax.jit(fisher)(params, inputs), rcond=1e-10, hermitian=True)
    assert relative_error(flat(d), natural @ flat(info.grad)) <= 1e-7


def test_infinite_gamma_in_the_dual():
    params, inputs, targets = problem("logistic", jnp.float64)
    fn = proxlin.value_and_direction(network, proxlin.Logistic())
    with pytest.raises(ValueError, match=r"dual needs a finite gamma; use .*primal_quadratic"):
        fn(params, inputs, targets, gamma=float("inf"))
    (_, info), d = jax.jit(fn)(params, inputs, targets, gamma=jnp.inf)
    assert info.status == proxlin.Status.BAD_VALUE
    np.testing.assert_array_equal(flat(d), 0)


@pytest.mark.parametrize("gamma", [1e-1, 1.0, 1e1, 1e2])
@pytest.mark.parametrize("name", ["squared", "logistic"])
def test_dual_and_primal_steps_span_the_same_space(name, gamma):
    """d after tau dual or tau + 1 primal steps; the primal is never worse on the model."""
    params, inputs, targets = problem(name, jnp.float64)
    g, curvature = map(np.asarray, dense(name, params, inputs, targets))
    model = lambda d: 0.5 * d @ curvature @ d + 0.5 * d @ d / gamma - d @ g
    dual, primal = (path_of(name, s)(params, inputs, targets, gamma).d for s in ("dual", "primal"))
    krylov = [g / np.linalg.norm(g)]
    for tau in range(5):
        basis = np.linalg.qr(np.stack(krylov, axis=1))[0]
        for d in (dual[tau], primal[tau + 1]):
            assert np.linalg.norm(d - basis @ (basis.T @ d)) <= 1e-8 * np.linalg.norm(d)
        best = basis @ np.linalg.solve(
            basis.T @ (curvature + np.eye(len(g)) / gamma) @ basis, basis.T @ g
        )
        assert relative_error(primal[tau + 1], best) <= 1e-7
        assert model(primal[tau + 1]) <= model(dual[tau]) + 1e-12
        following = curvature @ krylov[-1]
        krylov.append(following / np.linalg.norm(following))


@pytest.mark.parametrize(
    "name,dtype",
    [("squared", "f64"), ("logistic", "f32"), ("logistic", "f64"), ("singular", "f32")],
)
def test_dual_objective_never_increases(name, dtype):
    r"""1/2 <u, (I/gamma + M*M) u> - <M u, grad>, step by step."""
    params, inputs, targets = problem(name, DTYPES[dtype])
    _, parts = parts_of(name)
    m = (parts.jacobian.T @ parts.factor) / np.sqrt(parts.m)
    g = parts.jacobian.T @ parts.g / parts.m
    for gamma in GAMMAS:
        values = []
        for u in path_of(name, "dual")(params, inputs, targets, gamma).x:
            values.append(0.5 * u @ u / gamma + 0.5 * (m @ u) @ (m @ u) - (m @ u) @ g)
        rounding = 20 * np.finfo(DTYPES[dtype]).eps * np.abs(values).max()
        assert np.diff(values).max() <= rounding, gamma
        assert values[1] < values[0] == 0
        optimum = -0.5 * (m.T @ g) @ np.linalg.solve(np.eye(m.shape[1]) / gamma + m.T @ m, m.T @ g)
        assert min(values) >= optimum * (1 + 1e-3)
