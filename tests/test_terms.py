"""Sums of terms: the same as one model where they should be, and a dense reference for the rest."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import proxlin
from tests import cases

M = (6, 4)
SOLVERS = {
    "cg": proxlin.CG(60),
    "cholesky": proxlin.Cholesky(),
    "rows": proxlin.Cholesky(independent=True),
    "blocks": proxlin.Cholesky(independent=True, max_elements=100),
}
RULES = {
    "fixed": proxlin.Fixed(0.5),
    "armijo": proxlin.Armijo(0.5),
    "model": proxlin.ModelStep(0.5),
    "trust": proxlin.TrustRegion(0.5),
}


def slope(params, inputs):
    """Another model with the parameters of the first: its derivative along the first feature."""
    along = jnp.zeros_like(inputs).at[:, 0].set(1)
    return jax.jvp(lambda x: cases.network(params, x), (inputs,), (along,))[1][:, :2]


def two_terms(seed=0):
    """A logistic loss of the network, and a squared loss of its derivative at other points."""
    params, x, labels = cases.problem("logistic", jnp.float64, m=M[0], seed=seed)
    rng = np.random.default_rng(seed + 1)
    z = jnp.asarray(rng.normal(size=(M[1], x.shape[1])))
    slopes = jnp.asarray(rng.normal(size=(M[1], 2)))
    objective = proxlin.Sum(
        proxlin.Term(cases.network, proxlin.Logistic()),
        proxlin.Term(slope, proxlin.Squared(), weight=3.0),
    )
    return objective, params, (x, z), (labels, slopes)


def dense(params, inputs, targets, weights=(None, None)):
    """Gradient and Gauss-Newton matrix of the sum, term by term."""
    one = functools.partial(cases.dense, params=params)
    g, h = one("logistic", inputs=inputs[0], targets=targets[0], weights=weights[0])
    g_slope, h_slope = one(
        "squared", inputs=inputs[1], targets=targets[1], weights=weights[1], model=slope
    )
    return g + 3 * g_slope, h + 3 * h_slope


def assert_trees_equal(got, want, **tolerance):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), got, want)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("subproblem", cases.SUBPROBLEMS)
def test_direction_against_dense_solve(subproblem, solver):
    objective, params, inputs, targets = two_terms()
    weights = (jnp.asarray([1.0, 2, 0, 1, 1, 3]), None)
    fn = proxlin.value_and_direction(
        objective, subproblem=cases.SUBPROBLEMS[subproblem], solver=SOLVERS[solver]
    )
    (_, info), d = jax.jit(fn)(params, inputs, targets, gamma=2.0, weights=weights)
    g, h = dense(params, inputs, targets, weights)
    want = np.linalg.solve(h + np.eye(len(g)) / 2.0, g)
    assert info.status == proxlin.Status.OK
    assert cases.relative_error(cases.flat(info.grad), g) < 1e-12
    assert cases.relative_error(cases.flat(d), want) < 1e-9


@pytest.mark.parametrize(
    "subproblem,solver",
    [
        (proxlin.dual_convex, proxlin.ProximalGradient(3000)),
        (proxlin.primal_convex, proxlin.ProximalGradient(3000)),
        (proxlin.primal_convex, proxlin.LBFGS(200)),
    ],
    ids=["dual", "primal", "primal-lbfgs"],
)
def test_convex_subproblems_close_the_gap(subproblem, solver):
    """The gap bounds the error, and the minimum is a critical point of the convex model."""
    objective, params, inputs, targets = two_terms()
    fn = proxlin.value_and_direction(objective, subproblem=subproblem, solver=solver)
    (_, info), d = jax.jit(fn)(params, inputs, targets, gamma=0.5)

    def model(v):
        f = jax.jvp(lambda w: cases.network(w, inputs[0]), (params,), (v,))
        df = jax.jvp(lambda w: slope(w, inputs[1]), (params,), (v,))
        first = jnp.mean(proxlin.Logistic().value(f[0] - f[1], targets[0]))
        second = jnp.mean(proxlin.Squared().value(df[0] - df[1], targets[1]))
        return first + 3 * second + optax.tree.vdot(v, v) / (2 * 0.5)

    assert -1e-12 < info.gap < 1e-8
    np.testing.assert_allclose(info.primal, model(d), rtol=1e-12)
    assert np.linalg.norm(cases.flat(jax.grad(model)(d))) < 1e-4


@pytest.mark.parametrize(
    "subproblem,rule", [("primal", "trust"), *(("dual", rule) for rule in RULES)]
)
def test_one_term_is_the_plain_objective(subproblem, rule):
    """To the last bit, with every rule."""
    params, x, y = cases.problem("logistic", jnp.float64)
    options: dict[str, Any] = dict(step=RULES[rule], subproblem=cases.SUBPROBLEMS[subproblem])
    term = proxlin.Term(cases.network, proxlin.Logistic())

    def two_steps(opt, inputs, targets):
        state, w = opt.init(params), params
        for _ in range(2):
            updates, state = jax.jit(opt.update)(None, state, w, inputs=inputs, targets=targets)
            w = optax.apply_updates(w, updates)
        return w, state

    plain = two_steps(proxlin.prox_linear(cases.network, proxlin.Logistic(), **options), x, y)
    of_one = two_steps(proxlin.prox_linear(proxlin.Sum(term), **options), (x,), (y,))
    jax.tree.map(np.testing.assert_array_equal, of_one, plain)


ACROSS: dict[str, Any] = {
    "weights": {"weighted": True},
    "chunks": {"chunk_size": 2},
    "regularizer": {"regularizer": proxlin.L1(1e-2)},
    "rows": {"solver": proxlin.Cholesky(independent=True)},
    "convex": {"subproblem": proxlin.dual_convex, "solver": proxlin.ProximalGradient(20)},
}


@pytest.mark.parametrize(
    "case,rule", [*(("plain", rule) for rule in RULES), *((case, "armijo") for case in ACROSS)]
)
def test_a_batch_in_two_terms_is_the_batch(case, rule):
    """With the shares of their weights, for every option that a batch has and every rule."""
    options = dict(ACROSS.get(case, {}), step=RULES[rule])
    params, x, y = cases.problem("logistic", jnp.float64, m=10)
    weights = None
    shares = np.asarray([0.6, 0.4])
    if options.pop("weighted", False):
        weights = jnp.asarray([1.0, 2, 0, 1, 1, 3, 2, 1, 0, 1])
        shares = np.asarray([weights[:6].sum(), weights[6:].sum()]) / weights.sum()
    cut = lambda a: None if a is None else (a[:6], a[6:])
    objective = proxlin.Sum(
        *(proxlin.Term(cases.network, proxlin.Logistic(), float(share)) for share in shares)
    )
    whole = proxlin.prox_linear(cases.network, proxlin.Logistic(), **options)
    parts = proxlin.prox_linear(objective, **options)
    want, state = jax.jit(whole.update)(
        None, whole.init(params), params, inputs=x, targets=y, weights=weights
    )
    got, other = jax.jit(parts.update)(
        None, parts.init(params), params, inputs=cut(x), targets=cut(y), weights=cut(weights)
    )
    assert state.rejected == other.rejected == 0
    assert_trees_equal(got, want, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(other.info.value, state.info.value, rtol=1e-12)
    np.testing.assert_allclose(other.eta, state.eta, rtol=1e-12)


@pytest.mark.parametrize("subproblem", cases.SUBPROBLEMS)
def test_curvature_of_some_examples_of_each_term(subproblem):
    """The gradient of all, the Gauss-Newton matrix of every third and of a small term."""
    objective, params, inputs, targets = two_terms()
    fn = proxlin.value_and_direction(
        objective,
        subproblem=cases.SUBPROBLEMS[subproblem],
        solver=proxlin.Cholesky(),
        curvature_size=2,
    )
    (_, info), d = fn(params, inputs, targets, gamma=2.0)
    g, _ = dense(params, inputs, targets)
    every = lambda a, stride: a[::stride][:2]
    some = lambda pair: tuple(every(a, len(a) // 2) for a in pair)
    _, h = dense(params, some(inputs), some(targets))
    assert cases.relative_error(cases.flat(info.grad), g) < 1e-12
    want = np.linalg.solve(h + np.eye(len(g)) / 2.0, g)
    assert cases.relative_error(cases.flat(d), want) < 1e-9

    # Six of the first term are all of it, and the second has but four: nothing is left out.
    all_of_them = proxlin.value_and_direction(objective, curvature_size=6)
    whole = proxlin.value_and_direction(objective)
    assert_trees_equal(all_of_them(params, inputs, targets), whole(params, inputs, targets), rtol=0)


def test_aux_and_args_of_every_term():
    def with_aux(factor):
        return lambda w, x, shift: (factor * (x @ w) + shift, {"mean": jnp.mean(x)})

    objective = proxlin.Sum(
        proxlin.Term(with_aux(1.0), proxlin.Squared()),
        proxlin.Term(with_aux(2.0), proxlin.Squared()),
    )
    zero = ({"mean": 0.0}, {"mean": 0.0})
    opt = proxlin.prox_linear(objective, has_aux=True, init_aux=zero, solver=proxlin.Cholesky())
    w = jnp.zeros((2, 1))
    inputs = (jnp.eye(2), 3 * jnp.ones((4, 2)))
    targets = (jnp.ones((2, 1)), jnp.ones((4, 1)))
    _, state = opt.update(
        None, opt.init(w), w, inputs=inputs, targets=targets, args=(jnp.asarray(0.5),)
    )
    assert [float(aux["mean"]) for aux in state.aux] == [0.5, 3.0]
    np.testing.assert_allclose(state.info.value, 2 * 0.5 * 0.5**2)


def test_products_and_traces_are_those_of_one_model():
    """Each model is traced alike, and a second step traces nothing."""
    calls = []

    def counted(w, x):
        calls.append(x.shape)
        return x @ w

    term = proxlin.Term(counted, proxlin.Squared())
    opt = proxlin.prox_linear(proxlin.Sum(term, term), step=proxlin.TrustRegion())
    w = jnp.ones((3, 1))
    inputs, targets = (jnp.eye(3), jnp.ones((5, 3))), (jnp.zeros((3, 1)), jnp.zeros((5, 1)))
    update = jax.jit(opt.update)
    _, state = update(None, opt.init(w), w, inputs=inputs, targets=targets)
    assert (state.info.jvps, state.info.vjps, state.info.evaluations) == (3, 3, 1)
    assert calls.count((3, 3)) == calls.count((5, 3)) > 0
    traced = len(calls)
    _, state = update(None, state, w + 1, inputs=inputs, targets=targets)
    assert len(calls) == traced


def test_rows_cost_what_the_longest_example_costs():
    objective, params, inputs, targets = two_terms()
    fn = proxlin.value_and_direction(objective, solver=proxlin.Cholesky(independent=True))
    (_, info), _ = fn(params, inputs, targets)
    # Three outputs in the first term and two in the second; and the gradient. The logistic loss
    # knows no preimage, so that rows are checked by a product. Dense rows give all others.
    assert (info.vjps, info.jvps) == (3 + 1, 1)


@pytest.mark.parametrize("hidden", [8, 200], ids=["few-parameters", "many-parameters"])
@pytest.mark.parametrize("subproblem", cases.SUBPROBLEMS)
def test_memory_of_the_gram_matrix_is_bounded(subproblem, hidden):
    """By what the docstring says, in the program that XLA compiled; without blocks it is not."""
    params, x, _ = cases.problem("squared", jnp.float64, m=300, hidden=hidden)
    z = x[:100]
    objective = proxlin.Sum(
        proxlin.Term(lambda w, x: cases.network(w, x)[:, :1], proxlin.Squared()),
        proxlin.Term(lambda w, x: slope(w, x)[:, :1], proxlin.Squared()),
    )
    targets = (jnp.zeros((300, 1)), jnp.zeros((100, 1)))

    def numbers(solver):
        fn = proxlin.value_and_direction(
            objective, solver=solver, subproblem=cases.SUBPROBLEMS[subproblem]
        )
        compiled = jax.jit(fn).lower(params, (x, z), targets).compile()
        return compiled.memory_analysis().temp_size_in_bytes / 8

    n, p = 400, cases.flat(params).size
    assert (p < n) == (hidden == 8)
    products = numbers(proxlin.CG(2))
    bound = lambda max_elements: 4 * min(n, p) ** 2 + 4 * max_elements
    in_blocks = numbers(proxlin.Cholesky(independent=True, max_elements=10 * p)) - products
    at_once = numbers(proxlin.Cholesky(independent=True, max_elements=n * p)) - products
    assert in_blocks < at_once
    assert in_blocks <= bound(10 * p)
    assert at_once <= bound(n * p)


def test_dependent_examples_of_one_term_are_found():
    def centered(w, x):
        f = cases.network(w, x)
        return f - jnp.mean(f, axis=0, keepdims=True)

    _, params, inputs, targets = two_terms()
    objective = proxlin.Sum(
        proxlin.Term(cases.network, proxlin.Logistic()), proxlin.Term(centered, proxlin.Squared())
    )
    fn = proxlin.value_and_direction(objective, solver=proxlin.Cholesky(independent=True))
    (_, info), d = jax.jit(fn)(params, inputs, (targets[0], jnp.zeros((M[1], 3))))
    assert info.status == proxlin.Status.BAD_VALUE
    assert np.all(cases.flat(d) == 0)


def test_terms_in_every_front_door():
    objective, params, inputs, targets = two_terms()
    g, h = dense(params, inputs, targets)
    want = np.linalg.solve(h + np.eye(len(g)) / 2.0, g)
    options: dict[str, Any] = dict(gamma=2.0, solver=proxlin.Cholesky())
    for opt, sign in (
        (proxlin.spl(objective, **options), -1),
        (proxlin.armijo_spl(objective, **options), -1),
        (proxlin.direction_as_gradient(objective, **options), 1),
    ):
        updates, state = opt.update(None, opt.init(params), params, inputs=inputs, targets=targets)
        step = sign * want * np.asarray(state.eta)
        assert cases.relative_error(cases.flat(updates), step) < 1e-9


def test_terms_are_values():
    one = proxlin.Sum(proxlin.Term(cases.network, proxlin.Squared(), 2.0))
    other = proxlin.Sum(proxlin.Term(cases.network, proxlin.Squared(), 2))
    assert one == other and hash(one) == hash(other)
    assert one != proxlin.Sum(proxlin.Term(cases.network, proxlin.Squared()))
    with pytest.raises(AttributeError):
        one.terms = ()


TERM: Any = proxlin.Term(cases.network, proxlin.Squared())
WRONG: Any = 3


@pytest.mark.parametrize(
    "make,error,message",
    [
        (proxlin.Sum, ValueError, "give at least one term"),
        (lambda: proxlin.Sum(WRONG), TypeError, r"Sum takes terms, Term\(model, loss"),
        (lambda: proxlin.Term(WRONG, proxlin.Squared()), TypeError, "model must be a function"),
        (lambda: proxlin.Term(cases.network, WRONG), TypeError, "loss must be a proxlin.Loss"),
        (
            lambda: proxlin.Term(cases.network, proxlin.Squared(), 0.0),
            ValueError,
            r"weight=0.0\): give a positive number, and leave out",
        ),
        (
            lambda: proxlin.value_and_direction(proxlin.Sum(TERM), proxlin.Squared()),
            TypeError,
            r"a Sum has the losses of its terms, but loss=Squared\(\) was given too; leave it out",
        ),
        (lambda: proxlin.prox_linear(TERM), TypeError, r"write Sum\(term\)"),
        (
            lambda: proxlin.value_and_direction(cases.network),
            TypeError,
            "loss must be a proxlin.Loss such as Logistic",
        ),
        (
            lambda: proxlin.prox_linear(
                proxlin.Sum(TERM, proxlin.Term(cases.network, proxlin.Hinge()))
            ),
            TypeError,
            r"dual_quadratic needs a Hessian factor, which Hinge\(\) does not have",
        ),
        (
            lambda: proxlin.prox_linear(
                proxlin.Sum(TERM, proxlin.Term(cases.network, proxlin.Logistic())),
                subproblem=proxlin.dual_convex,
                solver=proxlin.CG(2),
            ),
            TypeError,
            r"CG.* cannot solve dual_convex with Logistic\(\)",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_objectives_that_cannot_be(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    "change,error,message",
    [
        (dict(inputs="one"), TypeError, "inputs of a Sum of 2 terms: got .*Array.*; give a tuple"),
        (dict(targets=(0,)), TypeError, "targets of a Sum of 2 terms: got a tuple of 1; give a"),
        (dict(weights=(None,) * 3), TypeError, "weights of a Sum of 2 terms: got a tuple of 3"),
        (dict(targets="swapped"), ValueError, r"(?s)targets.*This is term 0 of the Sum"),
        (dict(inputs="float32"), TypeError, r"dtypes \['float64', 'float32'\].*one dtype"),
        (
            dict(weights=(None, jnp.zeros(M[1]))),
            ValueError,
            "(?s)all weights are zero.*This is term 1 of the Sum",
        ),
    ],
)
def test_batches_that_do_not_fit(change, error, message):
    objective, params, inputs, targets = two_terms()
    given = {"inputs": inputs, "targets": targets, **change}
    if given["inputs"] == "one":
        given["inputs"] = inputs[0]
    if given["targets"] == "swapped":
        given["targets"] = targets[::-1]
    if given["inputs"] == "float32":
        params = jax.tree.map(lambda w: w.astype(jnp.float32), params)
        wide = lambda w, x: cases.network(jax.tree.map(lambda v: v.astype(x.dtype), w), x)
        objective = proxlin.Sum(
            proxlin.Term(wide, proxlin.Logistic()), proxlin.Term(wide, proxlin.Squared())
        )
        given["inputs"] = (inputs[0], inputs[1].astype(jnp.float32))
        given["targets"] = (targets[0], jnp.zeros((M[1], 3), jnp.float32))
    with pytest.raises(error, match=message):
        proxlin.value_and_direction(objective)(params, **given)


def test_poisson_in_one_dimension():
    """-u'' = pi^2 sin(pi x), u = 0 at both ends: four digits in 150 steps."""
    keys = jax.random.split(jax.random.key(0), 2)
    params = {
        "w1": jax.random.normal(keys[0], (1, 12)),
        "b1": jnp.linspace(-1.0, 1.0, 12),
        "w2": 0.3 * jax.random.normal(keys[1], (12, 1)),
    }
    u = cases.network

    def residual(w, x):
        single = lambda s: u(w, s[None, None])[0, 0]
        return -jax.vmap(jax.grad(jax.grad(single)))(x[:, 0])[:, None]

    exact = lambda x: jnp.sin(jnp.pi * x)
    x = jnp.linspace(0.0, 1.0, 42)[1:-1, None]
    inputs = (x, jnp.asarray([[0.0], [1.0]]))
    targets = (jnp.pi**2 * exact(x), jnp.zeros((2, 1)))
    objective = proxlin.Sum(
        proxlin.Term(residual, proxlin.Squared()), proxlin.Term(u, proxlin.Squared(), weight=100.0)
    )
    opt = proxlin.prox_linear(
        objective, step=proxlin.TrustRegion(), solver=proxlin.Cholesky(independent=True)
    )

    @jax.jit
    def train(params):
        def step(carry, _):
            w, state = carry
            updates, state = opt.update(None, state, w, inputs=inputs, targets=targets)
            return (optax.apply_updates(w, updates), state), None

        return jax.lax.scan(step, (params, opt.init(params)), length=150)[0]

    trained, state = train(params)
    test = jnp.linspace(0.0, 1.0, 201)[:, None]
    error = cases.relative_error(np.asarray(u(trained, test)), np.asarray(exact(test)))
    assert state.info.status == proxlin.Status.OK
    assert error < 1e-4
