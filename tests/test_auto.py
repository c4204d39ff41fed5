"""The composition that needs no tuning."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.datasets import load_digits

import proxlin
from proxlin.bench import models
from tests.cases import flat, network, problem


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


@functools.cache
def one_step_of(opt):
    @jax.jit
    def step(params, state, x, y):
        updates, state = opt.update(None, state, params, inputs=x, targets=y, args=(state.aux,))
        return optax.apply_updates(params, updates), state

    return step


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
    """Step by step: convolutions in a scan are slow on CPUs."""
    model = IMAGES[name]
    opt = proxlin.auto(model.apply, proxlin.Logistic(), has_aux=True, init_aux=())
    params, stats = model.init(jax.random.key(0))
    state, losses = opt.init(params)._replace(aux=stats), []
    for i in range(56):
        rows = slice(128 * (i % 14), 128 * (i % 14) + 128)
        params, state = one_step_of(opt)(params, state, digits[0][rows], digits[1][rows])
        losses.append(float(state.info.value))
    assert np.mean(losses[-5:]) < 0.5 * losses[0]
    assert max(losses) < 1.5 * losses[0]
    assert int(state.rejected) <= 1  # a step that promises all of the loss and does not keep it


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


@pytest.mark.parametrize("scale", [0.01, 255.0])
def test_inputs_may_have_another_scale(scale, digits):
    model = NETWORKS["mlp"]
    opt = proxlin.auto(model.apply, proxlin.Logistic(), has_aux=True, init_aux=())
    losses, _ = train(opt, model, (scale * digits[0], digits[1]), 128, epochs=12)
    assert losses[-5:].mean() < 0.2
    assert losses.max() < 1.5 * losses[0]


@pytest.mark.parametrize("share,limit", [(0.5, 0.3), (0.8, 1.0)])
def test_noisy_labels_are_fitted_without_a_schedule(share, limit, digits):
    """A floor of noise, where gamma has to fall, and must not climb by chance."""
    x, y = digits
    rng = np.random.default_rng(1)
    noisy = np.where(rng.random(len(y)) < share, rng.integers(0, 10, len(y)), y)
    model = NETWORKS["mlp"]
    opt = proxlin.auto(model.apply, proxlin.Logistic(), has_aux=True, init_aux=())
    losses, _ = train(opt, model, (x, jnp.asarray(noisy)), 128, epochs=60)
    assert losses[-14:].mean() < limit
    assert losses.max() < 2 * losses[0]


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
    for kept in ("taken", "gamma", "aux", "proximity", "rule", "average"):
        for a, b in zip(
            jax.tree.leaves(getattr(state, kept)),
            jax.tree.leaves(getattr(after, kept)),
            strict=True,
        ):
            np.testing.assert_array_equal(a, b)
