"""Gamma by the slope that the next batch finds, and the composition that needs no tuning."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree
from sklearn.datasets import load_digits

import proxlin
from proxlin.bench import models
from proxlin.steps import SlopeState
from tests.cases import dense, flat, network, problem
from tests.test_steps import direction

RULE = proxlin.StochasticTrustRegion(gamma=0.5, decay=0.75)


def remembered(found, curvature, left, starting=True):
    """A state whose averages, after this step, are those of one last step alone."""
    grad = found.model.grad
    unit = jax.tree.map(lambda g: g * (left / jnp.sum(ravel_pytree(grad)[0] ** 2)), grad)
    zero = jnp.zeros(())
    return SlopeState(unit, jnp.asarray(curvature), zero, zero, zero, jnp.asarray(starting))


# the rule ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("curvature_size", [None, 4])
def test_the_ratio_is_what_the_next_batch_finds_left_of_the_slope(curvature_size):
    """Two steps on two batches, with slopes and curvature by explicit matrices."""
    opt = proxlin.prox_linear(network, proxlin.Logistic(), step=RULE, curvature_size=curvature_size)
    params, *first = problem("logistic", jnp.float64, m=8)
    _, *second = problem("logistic", jnp.float64, m=8, seed=1)
    state = opt.init(params)
    updates, state = opt.update(None, state, params, inputs=first[0], targets=first[1])
    assert float(state.rule.ratio) == 1  # nothing is known before the first step
    rows = slice(None, None, 8 // (curvature_size or 8))
    gauss_newton = np.asarray(dense("logistic", params, first[0][rows], first[1][rows])[1])
    bend = flat(updates) @ gauss_newton @ flat(updates)
    moved = optax.apply_updates(params, updates)
    left = -flat(updates) @ np.asarray(dense("logistic", moved, *second)[0])
    _, state = opt.update(None, state, moved, inputs=second[0], targets=second[1])
    assert float(state.rule.ratio) == pytest.approx(left / bend)


def test_slopes_are_averaged_before_they_are_divided():
    found = direction()
    before = remembered(found, curvature=2.0, left=-1.0)._replace(
        mean_curvature=jnp.asarray(4.0), mean_slope=jnp.asarray(3.0)
    )
    ratio = RULE.step(found, jnp.asarray(1), before).state.ratio
    assert float(ratio) == pytest.approx((0.75 * 3 - 0.25) / (0.75 * 4 + 0.25 * 2))


@pytest.mark.parametrize(
    "left,factor",
    [
        (RULE.target, 1.0),
        (RULE.target + 0.5 * RULE.width, np.exp(0.5 * RULE.rate)),
        (RULE.target - 0.5 * RULE.width, np.exp(-0.5 * RULE.rate)),
        (0.9, np.exp(RULE.rate)),
        (-5.0, np.exp(-RULE.rate)),
    ],
)
def test_gamma_follows_the_ratio(left, factor):
    found = direction(gamma=1.0)
    assert found.kept_slope < 0.97  # curvature is felt
    step = RULE.step(found, jnp.asarray(1), remembered(found, 1.0, left))
    assert float(step.eta) > 0.5
    assert float(step.gamma) == pytest.approx(factor)


def test_gamma_doubles_while_curvature_is_not_felt():
    found = direction(gamma=1e-4)
    assert found.kept_slope > 0.99
    longer = RULE.step(found, jnp.asarray(1), remembered(found, 1.0, 0.9))
    assert float(longer.gamma) == pytest.approx(2e-4)
    turned = RULE.step(found, jnp.asarray(1), remembered(found, 1.0, -5.0))
    assert float(turned.gamma) == pytest.approx(1e-4 * np.exp(-RULE.rate))
    assert longer.state.starting and not turned.state.starting
    # Where losses vanish curvature does too, and one lucky batch must not double gamma.
    later = RULE.step(found, jnp.asarray(1), remembered(found, 1.0, 0.9, starting=False))
    assert float(later.gamma) == pytest.approx(1e-4 * np.exp(RULE.rate))


def test_the_fraction_is_that_of_dense_matrices():
    batch = problem("squared", jnp.float64)
    grad, gauss_newton = dense("squared", *batch)
    gamma = 3.0
    d = np.linalg.solve(gauss_newton + np.eye(len(grad)) / gamma, grad)
    found = direction("squared", gamma, solver=proxlin.CG(60))
    assert float(found.kept_slope) == pytest.approx(d @ grad / (gamma * grad @ grad))


def test_gamma_is_halved_where_the_model_is_lowest_early():
    """Saturated losses: the quadratic model sees no curvature, the convex one does."""
    outputs = lambda w, x: x @ w
    loss = proxlin.Logistic()
    w, x, y = 40.0 * jnp.eye(2), jnp.eye(2), jnp.array([1, 0])
    opt = proxlin.prox_linear(outputs, loss, step=proxlin.StochasticTrustRegion(gamma=1e4))
    _, state = opt.update(None, opt.init(w), w, inputs=x, targets=y)
    assert 0 < float(state.eta) < 0.5
    assert float(state.gamma) == pytest.approx(5e3)


class Shifted(proxlin.Logistic):
    """The same loss, of which nothing is known to be above zero."""

    nonnegative = False


@pytest.mark.parametrize("loss", [proxlin.Logistic(), Shifted()])
def test_no_step_promises_more_than_twice_the_value(loss):
    """All loss is in one example, curvature comes from others that are saturated."""
    x, y = jnp.eye(8), jnp.zeros(8, int).at[1].set(1)
    w = jnp.zeros((8, 2)).at[:, 0].set(30.0).at[1, 0].set(3.0)
    rule = proxlin.StochasticTrustRegion(gamma=1e4)
    opt = proxlin.prox_linear(lambda w, x: x @ w, loss, step=rule, curvature_size=4)
    _, state = opt.update(None, opt.init(w), w, inputs=x, targets=y)
    promised = float(state.eta * state.info.slope)
    if loss.nonnegative:
        assert promised == pytest.approx(2 * float(state.info.value))
        assert float(state.gamma) == pytest.approx(1e4 * np.exp(-rule.rate))
    else:
        assert promised > 100 * float(state.info.value) and float(state.eta) == 1


def test_exact_steps_are_not_shortened():
    """What an exact step on a parabola promises is at most twice the value: twice, if it fits."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 9)))
    rule = proxlin.StochasticTrustRegion(gamma=1e8)
    options: dict[str, Any] = {"solver": proxlin.Cholesky(), "step": rule}
    opt = proxlin.prox_linear(lambda w, x: x @ w, proxlin.Squared(), **options)
    w = jnp.zeros((9, 1))
    updates, state = opt.update(None, opt.init(w), w, inputs=x, targets=jnp.ones((4, 1)))
    assert float(state.eta) == pytest.approx(1, rel=2e-3)  # to three digits
    promised = float(state.eta * state.info.slope)
    assert promised == pytest.approx(2 * float(state.info.value), rel=2e-3)
    np.testing.assert_allclose(x @ updates, 1, rtol=2e-3)


def test_nothing_to_gain_is_no_rejection():
    w, x, y = 200 * jnp.eye(2), jnp.eye(2), jnp.array([0, 1])
    opt = proxlin.auto(lambda w, x: x @ w, proxlin.Logistic())
    updates, state = opt.update(None, opt.init(w), w, inputs=x, targets=y)
    assert float(state.info.value) == 0 and int(state.rejected) == 0
    assert not updates.any()


def test_gamma_stays_within_its_bounds():
    found = direction(gamma=1.0)
    rule = proxlin.StochasticTrustRegion(gamma=1.0, min_gamma=1.0, max_gamma=1.0)
    for left in (-5.0, 0.9):
        step = rule.step(found, jnp.asarray(1), remembered(found, 1.0, left))
        assert float(step.gamma) == 1


@pytest.mark.parametrize(
    "options,error,message",
    [
        (dict(gamma=lambda t: t), TypeError, "adapts gamma itself"),
        (dict(gamma=-1.0), ValueError, "gamma=-1.0.: give a positive number"),
        (dict(rate=0.0), ValueError, "rate=0.0.: give a positive number"),
        (dict(decay=1.0), ValueError, "give a number between 0 and 1"),
        (dict(target=np.inf), ValueError, "needs a finite target"),
        (dict(min_gamma=2.0, max_gamma=1.0), ValueError, "min_gamma <= max_gamma"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_rules(options, error, message):
    with pytest.raises(error, match=message):
        proxlin.StochasticTrustRegion(**options)


# the composition --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    images = x[order].reshape(-1, 8, 8, 1)
    return jnp.asarray(images / 16, jnp.float32), jnp.asarray(y[order])


@functools.cache
def steps_of(opt, model):
    @jax.jit
    def steps(params, state, stats, x, y):
        def step(carry, batch):
            params, state = carry
            updates, state = opt.update(
                None, state, params, inputs=batch[0], targets=batch[1], args=(state.aux,)
            )
            return (optax.apply_updates(params, updates), state), state.info.value

        return jax.lax.scan(step, (params, state), (x, y))

    return steps


def train(opt, model, digits, batch, epochs):
    """Losses step by step, and the last state."""
    x, y = digits
    n = len(x) // batch * batch
    split = lambda a: jnp.tile(a[:n].reshape(-1, batch, *a.shape[1:]), (epochs,) + (1,) * a.ndim)
    params, stats = model.init(jax.random.key(0))
    state = opt.init(params)._replace(aux=stats)
    (params, state), losses = steps_of(opt, model)(params, state, stats, split(x), split(y))
    return np.asarray(losses), state


NETWORKS = {
    "linear": models.linear((8, 8, 1), 10),
    "mlp": models.mlp((8, 8, 1), 10),
}
IMAGES = {
    "convnet": models.convnet((8, 8, 1), 10),
    "resnet": models.resnet((8, 8, 1), 10, blocks=(1, 1), width=8),  # with BatchNorm
}


@pytest.mark.parametrize("batch", [32, 256, 1024])
@pytest.mark.parametrize("name", NETWORKS)
def test_auto_trains_untouched(name, batch, digits):
    model = NETWORKS[name]
    opt = proxlin.auto(model.apply, proxlin.Logistic(), has_aux=True, init_aux=())
    losses, state = train(opt, model, digits, batch, epochs=max(3, batch // 10))
    assert np.isfinite(losses).all()
    assert losses[-5:].mean() < 0.3
    assert losses.max() < 1.5 * losses[0]  # at no time worse than the start by much
    assert int(state.rejected) == 0


@pytest.mark.parametrize("name", IMAGES)
def test_auto_trains_networks_for_images(name, digits):
    model = IMAGES[name]
    opt = proxlin.auto(model.apply, proxlin.Logistic(), has_aux=True, init_aux=())
    losses, state = train(opt, model, digits, 128, epochs=4)
    assert losses[-5:].mean() < 0.5 * losses[0]
    assert losses.max() < 1.5 * losses[0]
    assert int(state.rejected) == 0


def test_auto_trains_a_transformer():
    model = models.transformer((8, 5), 5, width=16, layers=1, heads=2)
    rng = np.random.default_rng(0)
    text = jnp.asarray(rng.integers(0, 5, (60, 32, 1)) + np.arange(9)) % 5  # it counts
    opt = proxlin.auto(model.apply, proxlin.Logistic(), has_aux=True, init_aux=())
    params, stats = model.init(jax.random.key(0))
    state = opt.init(params)._replace(aux=stats)
    steps = steps_of(opt, model)
    inputs = jax.nn.one_hot(text[..., :-1], 5, dtype=jnp.float32)
    (_, state), losses = steps(params, state, stats, inputs, text[..., 1:])
    assert float(losses[-5:].mean()) < 0.5 * float(losses[0])
    assert int(state.rejected) == 0


def test_a_loss_that_vanishes_stays_away(digits):
    """The curvature of a logistic loss goes with it, and gamma grows; hard examples are left."""
    model = NETWORKS["mlp"]
    opt = proxlin.auto(model.apply, proxlin.Logistic(), has_aux=True, init_aux=())
    losses, state = train(opt, model, digits, 128, epochs=60)
    by_epoch = losses.reshape(60, -1).mean(axis=1)
    assert by_epoch[30:].max() < 1e-3
    assert by_epoch[-1] < 1e-6
    assert int(state.rejected) < 10  # steps that promise more than they keep


@pytest.mark.parametrize("gamma", [1e-6, 1e4])
def test_a_bad_first_gamma_does_no_harm(gamma, digits):
    model = NETWORKS["mlp"]
    opt = proxlin.prox_linear(
        model.apply,
        proxlin.Logistic(),
        step=proxlin.StochasticTrustRegion(gamma),
        metric=proxlin.Kronecker(),
        momentum=0.9,
        curvature_size=32,
        has_aux=True,
        init_aux=(),
    )
    losses, _ = train(opt, model, digits, 128, epochs=8)
    assert losses[-5:].mean() < 0.3
    assert losses.max() < 2 * losses[0]


def test_auto_is_the_same_on_all_scales_of_the_loss():
    """Gamma takes up the units: scaling loss and targets scales nothing but gamma."""
    params, inputs, targets = problem("squared", jnp.float64, m=32)
    runs = []
    for scale in (1.0, 1e3):
        # (scale f - scale y)^2 = scale^2 (f - y)^2
        model = lambda w, x, scale=scale: scale * network(w, x)
        opt = proxlin.prox_linear(
            model,
            proxlin.Squared(),
            step=proxlin.StochasticTrustRegion(1e-2 / scale**2, min_gamma=1e-30),
            metric=proxlin.Kronecker(),
            momentum=0.9,
        )
        w, state = params, opt.init(params)
        for _ in range(6):
            updates, state = opt.update(None, state, w, inputs=inputs, targets=scale * targets)
            w = optax.apply_updates(w, updates)
        runs.append((flat(w), float(state.gamma) * scale**2))
    np.testing.assert_allclose(runs[0][0], runs[1][0], rtol=1e-6)
    assert runs[0][1] == pytest.approx(runs[1][1], rel=1e-6)


def test_a_rejected_step_leaves_what_was_learned_unchanged():
    params, inputs, targets = problem("logistic", jnp.float64, m=8)
    opt = proxlin.auto(network, proxlin.Logistic())
    _, state = opt.update(None, opt.init(params), params, inputs=inputs, targets=targets)
    bad = inputs.at[0, 0].set(jnp.nan)
    updates, after = opt.update(None, state, params, inputs=bad, targets=targets)
    assert not flat(updates).any()
    assert int(after.rejected) == 1
    for kept in ("gamma", "proximity", "rule"):
        for a, b in zip(
            jax.tree.leaves(getattr(state, kept)),
            jax.tree.leaves(getattr(after, kept)),
            strict=True,
        ):
            np.testing.assert_array_equal(a, b)
