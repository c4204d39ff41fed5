"""Bad input: an error with its own message where it is known, a status under jit, and no work."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import proxlin
from tests.cases import SUBPROBLEMS, flat, network, problem, softmax_cross_entropy

M, K = 6, 3
PARAMS, X, LABELS = problem("logistic", jnp.float64, M)
_, _, Y = problem("squared", jnp.float64, M)
LOGISTIC, SQUARED = proxlin.Logistic(), proxlin.Squared()


class Recording:
    """A model that knows whether it ever saw numbers, and not only shapes."""

    def __init__(self, model=network):
        self.model = model
        self.worked = False

    def __call__(self, params, inputs, *args):
        # Under jax.linearize the parameters are traced, but inputs still have values.
        self.worked |= not all(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(inputs))
        return self.model(params, inputs, *args)


def call(loss=LOGISTIC, model=network, *, params=PARAMS, x=X, y=LABELS, args=(), **options):
    """One direction, with what is wrong given by keyword."""
    at = {name: options.pop(name) for name in ("gamma", "weights") if name in options}
    recording = Recording(model)
    try:
        return proxlin.value_and_direction(recording, loss, **options)(params, x, y, *args, **at)
    finally:
        assert not recording.worked


# Each with its exception and what its message must say.
BAD_BATCHES = {
    "fewer labels": (
        dict(y=LABELS[:-1]),
        ValueError,
        r"targets of shape \(5,\) .*for outputs of shape \(6, 3\); give integer labels",
    ),
    "fewer targets": (
        dict(loss=SQUARED, y=Y[:-1]),
        ValueError,
        r"Squared: targets of shape \(5, 3\) for outputs of shape \(6, 3\)",
    ),
    "fewer targets of a function": (
        dict(loss=proxlin.FromFunction(softmax_cross_entropy), y=LABELS[:-1]),
        ValueError,
        r"targets of shape \(5,\) do not fit outputs of shape \(6, 3\)",
    ),
    "fewer weights": (
        dict(weights=jnp.ones(M - 1)),
        ValueError,
        r"weights of shape \(5,\) for outputs of shape \(6, 3\): give \(6,\)",
    ),
    "weights of outputs": (
        dict(weights=jnp.ones((M, K))),
        ValueError,
        r"weights of shape \(6, 3\) for outputs of shape \(6, 3\): give \(6,\)",
    ),
    "ragged inputs": (
        dict(
            model=lambda w, x: network(w, x["a"]),
            x={"a": X, "b": X[:-1]},
            weights=jnp.ones(M),
        ),
        ValueError,
        r"leaves of shapes \[\(6, 5\), \(5, 5\)\].*Pass what is not per example in `args`",
    ),
    "inputs without examples": (
        dict(model=lambda w, x: network(w, X) * x, x=1.0, chunk_size=2),
        ValueError,
        "inputs have no example axis",
    ),
    "fewer outputs than inputs": (
        dict(model=lambda w, x: network(w, x)[::2], y=LABELS[::2], curvature_size=2),
        ValueError,
        "inputs of 6 examples, outputs of 3: mismatched batch sizes",
    ),
    "flat outputs": (
        dict(loss=SQUARED, model=lambda w, x: network(w, x)[:, 0], y=Y[:, 0]),
        ValueError,
        r"outputs of shape \(6,\); return \(m, 1\) instead of \(m,\)",
    ),
    "integer outputs": (
        dict(model=lambda w, x: jnp.ones((M, K), int)),
        TypeError,
        "must return one floating-point array",
    ),
    "aux without has_aux": (
        dict(model=lambda w, x: (network(w, x), 1)),
        TypeError,
        r"a model that returns \(outputs, aux\) needs has_aux=True",
    ),
    "has_aux without aux": (
        dict(has_aux=True),
        TypeError,
        r"has_aux=True: the model must return \(outputs, aux\)",
    ),
    "label too large": (
        dict(y=LABELS.at[2].set(K)),
        ValueError,
        r"Logistic: targets\[2\] is 3; allowed are labels 0\.\.2",
    ),
    "label negative": (
        dict(y=LABELS.at[4].set(-1), weights=jnp.ones(M)),
        ValueError,
        r"Logistic: targets\[4\] is -1; allowed are labels 0\.\.2",
    ),
    "not a distribution": (
        dict(y=jnp.full((M, K), 0.5)),
        ValueError,
        r"Logistic: targets\[0\] is \[0\.5 0\.5 0\.5\]; allowed are .*rows that sum to one",
    ),
    "not a probability": (
        dict(loss=proxlin.BinaryLogistic(), y=jnp.full((M, K), 0.5).at[1, 2].set(1.5)),
        ValueError,
        r"BinaryLogistic: targets\[1\] is .*1\.5.*; allowed are numbers in \[0, 1\]",
    ),
    "target not finite": (
        dict(loss=SQUARED, y=Y.at[3, 0].set(jnp.nan)),
        ValueError,
        r"Squared: targets\[3\] is .*nan.*; allowed are finite numbers",
    ),
    "labels in a column": (
        dict(y=LABELS[:, None]),
        ValueError,
        r"targets of shape \(6, 1\) .*give integer labels of shape \(6,\)",
    ),
    "targets without an axis": (
        dict(loss=SQUARED, y=Y[:, 0]),
        ValueError,
        r"Squared: targets of shape \(6,\) .*nothing is broadcast",
    ),
    "labels as floats": (
        dict(y=LABELS.astype(jnp.float64)),
        ValueError,
        r"targets of shape \(6,\) and dtype float64 .*give integer labels",
    ),
    "labels for yes or no": (
        dict(loss=proxlin.BinaryLogistic()),
        ValueError,
        r"BinaryLogistic: targets of shape \(6,\)",
    ),
    "gamma zero": (dict(gamma=0.0), ValueError, r"gamma=0\.0: it must be a positive number"),
    "gamma negative": (dict(gamma=-1), ValueError, "gamma=-1: it must be a positive number"),
    "gamma nan": (dict(gamma=jnp.nan), ValueError, "gamma=nan: it must be a positive number"),
    "gamma array": (
        dict(gamma=jnp.ones(2)),
        ValueError,
        r"gamma must be one number, not an array of shape \(2,\)",
    ),
    "weights negative": (
        dict(weights=jnp.ones(M).at[1].set(-2)),
        ValueError,
        r"weights must be finite and non-negative; the smallest is -2",
    ),
    "weights nan": (
        dict(weights=jnp.ones(M).at[1].set(jnp.nan)),
        ValueError,
        "weights must be finite and non-negative",
    ),
    "weights zero": (dict(weights=jnp.zeros(M)), ValueError, "all weights are zero"),
    "empty batch": (dict(x=X[:0], y=LABELS[:0]), ValueError, "empty batch"),
    "empty outputs": (
        dict(loss=SQUARED, model=lambda w, x: network(w, x)[:, :0], y=Y[:, :0]),
        ValueError,
        r"empty batch: the model returned outputs of shape \(6, 0\)",
    ),
    "integer parameters": (
        dict(params={**PARAMS, "b1": jnp.ones(4, int)}),
        TypeError,
        r"params\['b1'\] has dtype int64; .*in `args`",
    ),
    "complex parameters": (
        dict(params={**PARAMS, "w1": PARAMS["w1"].astype(complex)}),
        TypeError,
        r"params\['w1'\] has dtype complex128; parameters must be real",
    ),
    "no parameters": (dict(params={}), ValueError, "params has no leaves"),
    "too much curvature": (
        dict(curvature_size=M + 1),
        ValueError,
        "curvature_size=7 for a batch of 6 examples",
    ),
}


@pytest.mark.parametrize("case", BAD_BATCHES)
def test_bad_batch_raises_before_any_work(case):
    options, error, message = BAD_BATCHES[case]
    with pytest.raises(error, match=message):
        call(**options)


def test_messages_tell_cases_apart():
    messages = [message for _, _, message in BAD_BATCHES.values()]
    shared = {m for m in messages if messages.count(m) > 1}
    assert shared == set()


def test_recording_sees_work():
    """The check above is worth something: a good call is noticed."""
    recording = Recording()
    proxlin.value_and_direction(recording, LOGISTIC)(PARAMS, X, LABELS)
    assert recording.worked


@pytest.mark.parametrize(
    "options,error,message",
    [
        (dict(curvature_size=0), ValueError, "curvature_size=0: give a positive integer"),
        (dict(curvature_size=2.0), ValueError, r"curvature_size=2\.0: give a positive integer"),
        (dict(chunk_size=-1), ValueError, "chunk_size=-1: give a positive integer"),
        (dict(chunk_size=2, has_aux=True), ValueError, "chunk_size with has_aux: .*drop one"),
        (dict(loss=softmax_cross_entropy), TypeError, r"wrap a convex function as FromFunction"),
        (dict(loss=proxlin.Logistic), TypeError, r"must be a proxlin.Loss such as Logistic\(\)"),
        (dict(model=PARAMS), TypeError, r"model must be a function model\(params, inputs\)"),
        (
            dict(subproblem="dual"),
            TypeError,
            "subproblem must be a Subproblem such as dual_quadratic, not 'dual'",
        ),
        (dict(solver="cg"), TypeError, r"cg cannot solve dual_quadratic.* use CG\(max_steps\)"),
        (dict(solver=proxlin.CG), TypeError, r"cannot solve dual_quadratic.* or SVD\(\)"),
        (
            dict(subproblem=proxlin.primal_quadratic, solver=jnp.linalg.solve),
            TypeError,
            "cannot solve primal_quadratic",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
@pytest.mark.usefixtures("unchecked")
def test_bad_options_raise_at_once(options, error, message):
    """Before there is a batch."""
    options = {"model": network, "loss": LOGISTIC, **options}
    with pytest.raises(error, match=message):
        proxlin.value_and_direction(options.pop("model"), options.pop("loss"), **options)


@pytest.mark.parametrize("steps", [-1, 1.5, "2"])
@pytest.mark.usefixtures("unchecked")
def test_bad_number_of_steps(steps):
    with pytest.raises(ValueError, match=r"CG\(max_steps=.*\): give an integer of at least 0"):
        proxlin.CG(steps)


def test_missing_conjugate():
    loss = proxlin.FromFunction(softmax_cross_entropy)
    with pytest.raises(TypeError, match=r"has no conjugate; .*FromFunction\(fn, conjugate="):
        loss.conjugate(jnp.zeros((M, K)), LABELS)


@pytest.fixture(scope="module", params=SUBPROBLEMS)
def traced(request):
    """A compiled direction in which everything is traced."""
    direction = proxlin.value_and_direction(
        network, LOGISTIC, subproblem=SUBPROBLEMS[request.param]
    )
    fn = jax.jit(lambda x, y, gamma, weights: direction(PARAMS, x, y, gamma=gamma, weights=weights))
    return lambda x=X, y=LABELS, gamma=1.0, weights=np.ones(M): fn(x, y, gamma, weights)


BAD_VALUES = {
    "gamma zero": dict(gamma=0.0),
    "gamma negative": dict(gamma=-1.0),
    "gamma nan": dict(gamma=np.nan),
    "label too large": dict(y=LABELS.at[2].set(K)),
    "label negative": dict(y=LABELS.at[2].set(-1)),
    "weights negative": dict(weights=np.array([1.0, 1.0, -0.5, 1.0, 1.0, 1.0])),
    "weights nan": dict(weights=np.array([1.0, 1.0, np.nan, 1.0, 1.0, 1.0])),
    "weights infinite": dict(weights=np.array([1.0, 1.0, np.inf, 1.0, 1.0, 1.0])),
    "weights zero": dict(weights=np.zeros(M)),
}


@pytest.mark.parametrize("case", BAD_VALUES)
def test_bad_value_under_jit(traced, case):
    (_, info), d = traced(**BAD_VALUES[case])
    assert info.status == proxlin.Status.BAD_VALUE
    np.testing.assert_array_equal(flat(d), 0)


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_input_that_is_not_finite(traced, bad):
    (_, info), d = traced(x=X.at[1].set(bad).at[1, 0].set(jnp.nan))
    assert info.status == proxlin.Status.NON_FINITE
    np.testing.assert_array_equal(flat(d), 0)


def test_good_values_under_jit(traced):
    (_, info), d = traced()
    assert info.status == proxlin.Status.OK
    assert flat(d).any()


@pytest.mark.parametrize("independent", [False, True])
@pytest.mark.parametrize("subproblem", SUBPROBLEMS)
def test_direct_solver_on_input_that_is_not_finite(subproblem, independent):
    fn = jax.jit(
        proxlin.value_and_direction(
            network,
            SQUARED,
            subproblem=SUBPROBLEMS[subproblem],
            solver=proxlin.Cholesky(independent=independent),
        )
    )
    (_, info), d = fn(PARAMS, X.at[0, 0].set(jnp.nan), Y)
    assert info.status == proxlin.Status.NON_FINITE
    np.testing.assert_array_equal(flat(d), 0)


def test_overflow_is_not_finite():
    """Finite inputs, an infinite objective."""
    huge = jax.tree.map(lambda w: (1e30 * w).astype(jnp.float32), PARAMS)
    (value, info), d = call_f32(huge)
    assert not np.isfinite(value)
    assert info.status == proxlin.Status.NON_FINITE
    np.testing.assert_array_equal(flat(d), 0)


def call_f32(params):
    fn = jax.jit(proxlin.value_and_direction(network, SQUARED))
    return fn(params, X.astype(jnp.float32), Y.astype(jnp.float32))


@pytest.mark.parametrize("subproblem", SUBPROBLEMS)
def test_examples_that_influence_each_other(subproblem):
    """Rows of one example alone would be wrong; products with the batch are not."""
    model = lambda w, x: network(w, x) - jnp.mean(network(w, x), axis=0, keepdims=True)
    make = lambda independent: jax.jit(
        proxlin.value_and_direction(
            model,
            SQUARED,
            subproblem=SUBPROBLEMS[subproblem],
            solver=proxlin.Cholesky(independent=independent),
        )
    )
    (_, info), d = make(True)(PARAMS, X, Y)
    assert info.status == proxlin.Status.BAD_VALUE
    np.testing.assert_array_equal(flat(d), 0)
    (_, info), d = make(False)(PARAMS, X, Y)
    assert info.status == proxlin.Status.OK
    assert flat(d).any()


def test_numpy_and_masks_are_welcome():
    """Not errors: constant NumPy arrays, where solvers index examples, and booleans as weights."""
    keep = np.array([True, True, False, True, False, True])
    x, y = np.asarray(X), np.asarray(LABELS)
    fn = proxlin.value_and_direction(network, LOGISTIC, solver=proxlin.Cholesky(independent=True))
    _, d = jax.jit(lambda params: fn(params, x, y, weights=keep))(PARAMS)
    _, want = jax.jit(lambda params: fn(params, x[keep], y[keep]))(PARAMS)
    np.testing.assert_allclose(flat(d), flat(want), rtol=1e-10, atol=1e-13)
