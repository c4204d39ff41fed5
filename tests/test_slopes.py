"""Gamma by the slope that the next batch finds."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import proxlin
from proxlin.steps.stochastic_trust_region import Slopes, SlopeState
from tests.cases import dense, flat, network, problem
from tests.test_steps import direction

RULE = proxlin.StochasticTrustRegion(gamma=0.5, decay=0.75)


def slopes(start=0.0, curvature=0.0, end=0.0, shrink=1.0):
    return Slopes(*map(jnp.asarray, (start, curvature, end, shrink)))


def remembered(found, curvature, left, starting=True, start=0.0, shrink=1.0):
    """A state whose averages, after this step, are those of one last step alone.

    ``left`` is the slope that this batch finds left along the displacement.
    """
    grad = found.model.grad
    unit = jax.tree.map(lambda g: g * (left / jnp.sum(ravel_pytree(grad)[0] ** 2)), grad)
    zero = jnp.zeros(())
    return SlopeState(
        displacement=unit,
        last=slopes(start, curvature, shrink=shrink),
        mean=slopes(),
        ratio=zero,
        starting=jnp.asarray(starting),
    )


# The ratio --------------------------------------------------------------------------------------


@pytest.mark.parametrize("subproblem", [proxlin.dual_quadratic, proxlin.primal_quadratic])
@pytest.mark.parametrize("curvature_size", [None, 4])
def test_the_ratio_is_what_the_next_batch_finds_left_of_the_slope(curvature_size, subproblem):
    """Two steps on two batches, with slopes and curvature by explicit matrices."""
    opt = proxlin.prox_linear(
        network,
        proxlin.Logistic(),
        step=RULE,
        curvature_size=curvature_size,
        subproblem=subproblem,
    )
    params, *first = problem("logistic", jnp.float64, m=8)
    _, *second = problem("logistic", jnp.float64, m=8, seed=1)
    state = opt.init(params)
    updates, state = opt.update(None, state, params, inputs=first[0], targets=first[1])
    assert float(state.rule.ratio) == 1  # nothing is known before the first step
    rows = slice(None, None, 8 // (curvature_size or 8))
    gauss_newton = np.asarray(dense("logistic", params, first[0][rows], first[1][rows])[1])
    curvature = flat(updates) @ gauss_newton @ flat(updates)
    start = -flat(updates) @ np.asarray(dense("logistic", params, *first)[0])
    np.testing.assert_allclose(state.rule.last, (start, curvature, 0, 1), rtol=1e-9)
    moved = optax.apply_updates(params, updates)
    left = -flat(updates) @ np.asarray(dense("logistic", moved, *second)[0])
    _, state = opt.update(None, state, moved, inputs=second[0], targets=second[1])
    assert float(state.rule.ratio) == pytest.approx(left / curvature)
    # One step of two, with a decay of three quarters.
    np.testing.assert_allclose(state.rule.mean[:3], np.array([start, curvature, left]) / 4)


def test_slopes_are_averaged_before_they_are_divided():
    found = direction()
    before = remembered(found, curvature=2.0, left=-1.0)._replace(
        mean=slopes(curvature=4.0, end=3.0)
    )
    ratio = RULE.step(found, jnp.asarray(1), before).state.ratio
    assert float(ratio) == pytest.approx((0.75 * 3 - 0.25) / (0.75 * 4 + 0.25 * 2))


# Gamma ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "left,factor",
    [
        (RULE.target, 1.0),
        (RULE.target + 0.5 * RULE.width, np.exp(0.5 * RULE.rate)),
        (RULE.target - 0.5 * RULE.width, np.exp(-0.5 * RULE.rate)),
        (0.9, np.exp(RULE.rate)),
        (np.e - 1, np.exp(RULE.rate)),
        (9.0, 10**RULE.rate),  # ten times as long would end at the lowest point
        (-5.0, np.exp(-RULE.rate)),
    ],
)
def test_gamma_follows_the_ratio(left, factor):
    found = direction(gamma=1.0)
    assert found.kept_slope < 0.97  # curvature is felt
    step = RULE.step(found, jnp.asarray(1), remembered(found, 1.0, left, start=9.0))
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


def test_steps_with_little_curvature_are_short_enough():
    """Their next batch is a little worse however short they are; chance is no reason to grow."""
    found = direction(gamma=1.0)
    after = lambda left, start: RULE.step(
        found, jnp.asarray(1), remembered(found, 1.0, left, start=start, starting=False)
    )
    assert float(after(-0.9, start=10.1).gamma) == 1
    assert float(after(-0.9, start=9.9).gamma) == pytest.approx(np.exp(-RULE.rate))
    assert float(after(RULE.target + RULE.width, start=10.1).gamma) == 1
    assert float(after(0.9, start=10.1).gamma) == pytest.approx(np.exp(RULE.rate))


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


# The length of training -------------------------------------------------------------------------


def states_of(rule, number):
    """Parameters and states from step to step, on noisy parabolas of the same curvature."""
    opt = proxlin.prox_linear(lambda w, x: x @ w, proxlin.Squared(), step=rule)
    update = jax.jit(opt.update)
    rng = np.random.default_rng(0)
    x, w = jnp.asarray(rng.normal(size=(8, 5))), jnp.zeros((5, 1))
    found = [(w, opt.init(w))]
    for _ in range(number):
        y = x @ jnp.arange(5.0)[:, None] + rng.normal(size=(8, 1))
        updates, state = update(None, found[-1][1], w, inputs=x, targets=y)
        w = optax.apply_updates(w, updates)
        found.append((w, state))
    return found


def test_steps_shrink_to_nothing_over_the_second_half():
    n = 8
    found = states_of(proxlin.StochasticTrustRegion(gamma=0.3, steps=n), n + 2)
    shrink = [float(state.rule.last.shrink) for _, state in found[1:]]
    np.testing.assert_allclose(shrink, [1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0, 0])
    moves = [float(jnp.linalg.norm(b[0] - a[0])) for a, b in itertools.pairwise(found)]
    assert min(moves[:n]) > 0 and moves[n:] == [0, 0]
    # A step of no length is taken, and leaves nothing that is not finite.
    assert int(found[-1][1].taken) == n + 2
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(found[-1][1].rule))


def test_the_ratio_is_that_of_the_step_before_it_was_shortened():
    """On a quadratic, where the slope is linear in the length of the step."""
    n = 8  # the sixth step is the first one that is shortened
    free = states_of(proxlin.StochasticTrustRegion(gamma=0.3), 7)
    ends = states_of(proxlin.StochasticTrustRegion(gamma=0.3, steps=n), 7)
    np.testing.assert_array_equal(ends[5][0], free[5][0])
    np.testing.assert_allclose(ends[6][0] - ends[5][0], 0.75 * (free[6][0] - free[5][0]))
    shortened, want = ends[7][1].rule, free[7][1].rule
    assert float(shortened.ratio) == pytest.approx(float(want.ratio), rel=1e-9)
    np.testing.assert_allclose(shortened.mean[:3], want.mean[:3], rtol=1e-9)
    assert float(ends[7][1].gamma) == pytest.approx(float(free[7][1].gamma))


# Noise of known size ----------------------------------------------------------------------------


def on_a_noisy_parabola(number, optimum, p=2000, m=2, distance=30.0, seed=0):
    r"""Gammas, and distances from the minimum, for the loss 1/2 |w - w* - noise|^2, of unit noise.

    With stepsize :math:`a = \gamma / (1 + \gamma)` the distance from a minimum at rest settles
    at :math:`\sqrt{a / (2 - a)\, p / m}`, and the ratio at minus a half. The last result is the
    distance of the average of the parameters.
    """
    rule = proxlin.StochasticTrustRegion()
    opt = proxlin.prox_linear(lambda w, x: x + w[None], proxlin.Squared(), step=rule, average=True)

    @jax.jit
    def run(w):
        def step(carry, t):
            w, state = carry
            key = jax.random.fold_in(jax.random.key(seed), t)
            y = optimum(t) + jax.random.normal(key, (m, p))
            updates, state = opt.update(None, state, w, inputs=jnp.zeros((m, p)), targets=y)
            w = w + updates
            return (w, state), (state.gamma, jnp.linalg.norm(w - optimum(t)))

        (w, state), found = jax.lax.scan(step, (w, opt.init(w)), jnp.arange(number))
        average = proxlin.eval_params(state, w)
        return *found, jnp.linalg.norm(average - optimum(number - 1))

    return map(np.asarray, run(jnp.full(p, distance / np.sqrt(p)) + optimum(0)))


at_rest = lambda t: jnp.zeros(())


@pytest.mark.parametrize("seed", range(2))
def test_gamma_falls_where_noise_stops_progress_and_not_before(seed):
    p, m, distance, number = 2000, 2, 1000.0, 800
    gammas, distances, of_average = on_a_noisy_parabola(number, at_rest, p, m, distance, seed)
    # While the objective is far above the noise floor |w - w*|^2 = p / m there is progress.
    progress = np.flatnonzero(distances < 3 * np.sqrt(p / m))[0]
    assert progress > 10
    assert np.all(np.diff(gammas[:progress]) >= 0)
    # Along a step the slope falls by a share of a: gamma falls until that is a tenth.
    a = gammas[-1] / (1 + gammas[-1])
    assert gammas[-1] < 0.5 * gammas[progress]
    assert 0.08 < a < 0.12
    # The average is nearly as good as the mean of the samples that it looks back to: with weights
    # of about i^8 their squares add up to 81 / 17 over the number of steps.
    assert of_average**2 < 1.5 * 81 / 17 / number * p / m < 0.25 * distances[-1] ** 2


@pytest.mark.parametrize("batches", [2, 4, 12])
def test_gamma_does_not_collapse_if_batches_share_no_example(batches):
    """The batches of an epoch add up to the whole data, so that each is worse after the others.

    The noise of a fixed set of batches sums to zero; all of it lies in the steepest directions.
    """
    p, number = 400, 60 * batches
    curvature = jnp.logspace(0, -2, p)
    noise = jax.random.normal(jax.random.key(0), (batches, p))
    noise = jnp.tile(noise - noise.mean(0, keepdims=True), (60, 1))
    opt = proxlin.prox_linear(
        lambda w, x: jnp.sqrt(curvature)[None] * (w[None] - x),
        proxlin.Squared(),
        step=proxlin.StochasticTrustRegion(),
        average=True,
    )

    def step(carry, x):
        w, state = carry
        updates, state = opt.update(None, state, w, inputs=x[None], targets=jnp.zeros((1, p)))
        return (w + updates, state), state.gamma

    w = jnp.ones(p)
    _, gammas = jax.jit(lambda w: jax.lax.scan(step, (w, opt.init(w)), noise))(w)
    assert gammas[-1] > 0.5 * gammas[number // 2] > 1e-3


def test_gamma_comes_back_when_the_minimum_moves():
    p, rest = 2000, 400
    speed = 2 / np.sqrt(p)  # at each step, a length of two
    moving = lambda t: jnp.maximum(t - rest, 0).astype(jnp.float64) * speed
    gammas, distances, _ = on_a_noisy_parabola(2 * rest, moving, p)
    assert gammas[rest] < 0.2
    assert gammas[-1] > 3 * gammas[rest]
    # With the gamma at rest the lag would be speed / a.
    assert distances[-1] < 0.75 * speed * np.sqrt(p) * (1 + gammas[rest]) / gammas[rest]
