"""SDCA against scikit-learn, its duality gap, and the generic dual solver."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import LinearSVC

import proxlin
from proxlin.sdca import _block_step, _rows

N, D, K = 24, 6, 3


def data(seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N, D))
    scores = x @ rng.normal(size=(D, K)) + 0.5 * rng.normal(size=(N, K))
    return x, scores.argmax(axis=1), scores


def objective(weights, x, y, loss, strength):
    values = loss.value(jnp.asarray(x) @ weights.T, jnp.asarray(y))
    return float(values.mean() + 0.5 * strength * (weights**2).sum())


def reference(name, x, labels, scores, strength):
    n = len(x)
    if name == "squared":
        return Ridge(alpha=n * strength, fit_intercept=False, tol=1e-12).fit(x, scores).coef_
    if name == "hinge":
        model = LinearSVC(
            C=1 / (strength * n),
            multi_class="crammer_singer",
            fit_intercept=False,
            tol=1e-9,
            max_iter=1_000_000,
        )
        return model.fit(x, labels).coef_
    model = LogisticRegression(
        C=1 / (strength * n), fit_intercept=False, tol=1e-12, max_iter=10_000
    )
    return model.fit(x, labels).coef_


LOSSES = {
    "squared": proxlin.Squared(),
    "hinge": proxlin.Hinge(),
    "logistic": proxlin.Logistic(),
    "sparsemax": proxlin.Sparsemax(),
}
EPOCHS = {"squared": 100, "hinge": 400, "logistic": 25, "sparsemax": 100}


@pytest.mark.parametrize("block_size", [1, 5])
@pytest.mark.parametrize("name", list(LOSSES))
def test_reaches_the_minimum(name, block_size):
    """The gap certifies the minimum; scikit-learn's solution has the same objective."""
    x, labels, scores = data()
    strength, loss = 0.05, LOSSES[name]
    targets = scores if name == "squared" else labels
    weights, info = proxlin.sdca(
        x,
        targets,
        loss,
        strength=strength,
        epochs=EPOCHS[name],
        key=jax.random.key(0),
        block_size=block_size,
    )
    got = objective(weights, x, targets, loss, strength)
    assert abs(float(info.primal[-1]) - got) <= 1e-12 * abs(got)
    assert np.all(info.gap >= -1e-12)
    assert float(info.gap[-1]) <= 1e-8
    # the dual never falls from one epoch to the next
    assert np.all(np.diff(info.dual) >= -1e-9)
    if name != "sparsemax":  # which scikit-learn does not have
        coefficients = jnp.asarray(reference(name, x, labels, scores, strength))
        want = objective(coefficients, x, targets, loss, strength)
        assert got - want <= 1e-6
        assert float(info.dual[-1]) <= want + 1e-12


def test_smallest_strength_of_the_hinge_loss():
    x, labels, _ = data(1)
    _, info = proxlin.sdca(
        x, labels, proxlin.Hinge(), strength=1e-2, epochs=2000, key=jax.random.key(1)
    )
    assert float(info.gap[-1]) <= 1e-8


@pytest.mark.parametrize("name", ["squared", "logistic"])
def test_sparse_features_give_the_same(name):
    x, labels, scores = data(2)
    x = np.where(np.random.default_rng(0).uniform(size=x.shape) < 0.5, x, 0.0)
    x[3] = 0.0  # an empty row
    targets = scores if name == "squared" else labels
    run = lambda features, size: proxlin.sdca(
        features,
        targets,
        LOSSES[name],
        strength=0.1,
        epochs=5,
        key=jax.random.key(0),
        block_size=size,
    )
    for size in (1, 4):
        dense, info = run(x, size)
        sparse, sparse_info = run(scipy.sparse.csr_matrix(x), size)
        np.testing.assert_allclose(sparse, dense, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(sparse_info.gap, info.gap, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("name", ["squared", "hinge", "logistic", "sparsemax"])
@pytest.mark.parametrize("block_size", [1, 5])
def test_a_block_step_is_a_dual_subproblem(name, block_size):
    """At W without the block's own contribution, with gamma = m / (strength n)."""
    x, labels, scores = data(3)
    loss, strength = LOSSES[name], 0.1
    targets = jnp.asarray(scores if name == "squared" else labels)
    rows, c = _rows(x), 1 / (strength * N)
    duals = loss.grad(jnp.zeros((N, K)), targets)
    weights = -c * duals.T @ jnp.asarray(x)
    block = jnp.arange(block_size) + 4
    step = jax.jit(lambda w, a: _block_step(rows, targets, loss, c, w, a, block))
    new_weights, new_duals = step(weights, duals)

    chosen = jnp.asarray(x)[block]
    without = weights + c * duals[block].T @ chosen
    fn = proxlin.value_and_direction(
        lambda w, z: z @ w.T,
        loss,
        subproblem=proxlin.dual_convex,
        solver=proxlin.ProximalGradient(20_000, gap=1e-15),
    )
    _, d = jax.jit(fn)(without, chosen, targets[block], gamma=c * block_size)
    np.testing.assert_allclose(new_weights, without - d, atol=1e-7)
    np.testing.assert_allclose(new_weights, without - c * new_duals[block].T @ chosen, atol=1e-12)


def test_bad_input():
    x, labels, _ = data()
    run = lambda *a, **k: proxlin.sdca(
        *a, **{"strength": 0.1, "epochs": 1, "key": jax.random.key(0), **k}
    )
    with pytest.raises(ValueError, match="strength=0"):
        run(x, labels, proxlin.Logistic(), strength=0)
    with pytest.raises(ValueError, match="epochs=0"):
        run(x, labels, proxlin.Logistic(), epochs=0)
    with pytest.raises(ValueError, match="matrix"):
        run(x[0], labels, proxlin.Logistic())
    with pytest.raises(ValueError, match=r"targets of shape \(23,\)"):
        run(x, labels[1:], proxlin.Logistic())
    with pytest.raises(ValueError, match=r"labels 0\.\.1"):
        run(x, labels, proxlin.Logistic(), outputs=2)
    with pytest.raises(TypeError, match="conjugate"):
        run(x, labels, proxlin.FromFunction(lambda f, y: jnp.sum(f)), outputs=3)
