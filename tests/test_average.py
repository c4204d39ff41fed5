"""The average of the parameters: what it is made of, and what it is good for."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen

import proxlin
from proxlin.bench import checkpoints
from tests.cases import flat, network, problem, relative_error

LOSS = proxlin.Logistic()


def method(**options):
    return proxlin.prox_linear(network, LOSS, step=proxlin.Fixed(0.3), average=True, **options)


def shares(number):
    """Of parameters w_0, ..., after ``number`` steps: w_t has the weight 9 / (t + 9) on arrival."""
    arrival = 9 / (np.arange(number + 1) + 9)
    kept = np.concatenate([np.cumprod((1 - arrival)[::-1])[::-1][1:], [1]])
    return arrival * kept


def test_the_weights_grow_like_the_eighth_power():
    """In closed form (t + 1) ... (t + 8) / n, so that the average looks back over a ninth."""
    n = 1000
    t = np.arange(n + 1)
    want = np.prod([(t + i) / n for i in range(1, 9)], axis=0)
    np.testing.assert_allclose(shares(n), want / want.sum(), rtol=1e-10)
    age = np.sum(shares(n) * (n - t))
    assert age == pytest.approx(n / 10, rel=0.01)


def walk(opt, params, number, bad=(), dtype=jnp.float64):
    """All parameters on the way, and the last state; steps whose number is in bad see a NaN."""
    update = jax.jit(opt.update)
    state, way = opt.init(params), [params]
    for i in range(number):
        _, x, y = problem("logistic", dtype, m=8, seed=i)
        x = x.at[0, 0].set(jnp.nan) if i in bad else x
        updates, state = update(None, state, way[-1], inputs=x, targets=y)
        if i in bad:
            assert not flat(updates).any()
        else:
            way.append(optax.apply_updates(way[-1], updates))
    return way, state


def mean(way):
    weights = shares(len(way) - 1)
    return sum(w * flat(params) for w, params in zip(weights, way, strict=True))


@pytest.mark.parametrize("bad", [(), (0, 3, 4, 9)], ids=["all taken", "some rejected"])
def test_it_is_the_weighted_mean_of_what_steps_have_left(bad):
    """A batch that is not finite is as if it had not been."""
    params, _, _ = problem("logistic", jnp.float64)
    way, state = walk(method(), params, 10, bad)
    assert int(state.taken) == 10 - len(bad) and int(state.rejected) == len(bad)
    got = proxlin.eval_params(state, way[-1])
    np.testing.assert_allclose(flat(got), mean(way), rtol=1e-12)
    assert relative_error(flat(way[-1]), mean(way)) > 1e-3


def test_before_the_first_step_it_is_the_parameters():
    params, _, _ = problem("logistic", jnp.float64)
    got = proxlin.eval_params(method().init(params), params)
    np.testing.assert_array_equal(flat(got), flat(params))


def test_without_an_average_it_is_the_parameters():
    params, x, y = problem("logistic", jnp.float64)
    opt = proxlin.prox_linear(network, LOSS)
    _, state = opt.update(None, opt.init(params), params, inputs=x, targets=y)
    assert proxlin.eval_params(state, params) is params


def test_of_bfloat16_parameters_it_is_in_float32():
    """Late weights are below the rounding of bfloat16, in which the average would stand still."""
    params, _, _ = problem("logistic", jnp.bfloat16)
    way, state = walk(method(), params, 40, dtype=jnp.bfloat16)
    assert {leaf.dtype for leaf in jax.tree.leaves(state.average)} == {jnp.dtype("float32")}
    got = proxlin.eval_params(state, way[-1])
    # Its own rounding is half a unit for each entry, whatever the number of steps.
    assert {leaf.dtype for leaf in jax.tree.leaves(got)} == {jnp.dtype("bfloat16")}
    eps = float(jnp.finfo(jnp.bfloat16).eps)
    np.testing.assert_allclose(flat(got), mean(way), rtol=0.51 * eps)


def in_a_chain():
    return optax.chain(method(), optax.scale(0.5), optax.trace(0.3))


def inject(**_):
    return optax.inject_hyperparams(lambda momentum: method(momentum=momentum))(0.2)


@pytest.mark.parametrize("make", [method, in_a_chain, inject])
def test_it_is_found_inside_of_other_states_and_inside_of_a_scan(make):
    """As the mean of the parameters that were seen, whatever comes after the method."""
    params, _, _ = problem("logistic", jnp.float64)
    opt = make()
    batches = [problem("logistic", jnp.float64, m=8, seed=i)[1:] for i in range(7)]

    @jax.jit
    def run(params, x, y):
        def step(carry, batch):
            params, state = carry
            updates, state = opt.update(None, state, params, inputs=batch[0], targets=batch[1])
            new = optax.apply_updates(params, updates)
            return (new, state), (new, proxlin.eval_params(state, new))

        return jax.lax.scan(step, (params, opt.init(params)), (x, y))[1]

    way, means = run(params, *jax.tree.map(lambda *b: jnp.stack(b), *batches))
    at = lambda tree, i: jax.tree.map(lambda leaf: leaf[i], tree)
    so_far = [params]
    for i in range(len(batches)):
        so_far.append(at(way, i))
        np.testing.assert_allclose(flat(at(means, i)), mean(so_far), rtol=1e-12)


def test_it_survives_a_checkpoint(tmp_path):
    params, _, _ = problem("logistic", jnp.float64)
    way, state = walk(method(), params, 5)
    checkpoints.save(tmp_path, state, {"step": 5})
    restored = checkpoints.restore(tmp_path, method().init(params))
    assert restored is not None
    got = proxlin.eval_params(restored.state, way[-1])
    np.testing.assert_array_equal(flat(got), flat(proxlin.eval_params(state, way[-1])))
    np.testing.assert_allclose(flat(got), mean(way), rtol=1e-12)


@pytest.mark.parametrize(
    "make,found",
    [
        (lambda w: optax.adam(0.1).init(w), "found 0 in a tuple"),
        (lambda w: (), "found 0 in a tuple"),
        (lambda w: [method().init(w), method().init(w)], "found 2 in a list"),
    ],
)
def test_other_states_are_an_error_that_says_what_to_pass(make, found):
    params, _, _ = problem("logistic", jnp.float32)
    with pytest.raises(TypeError, match=f"one prox-linear method, and {found}; pass what update"):
        proxlin.eval_params(make(params), params)


def test_it_is_better_than_the_last_parameters_in_noise():
    """Steps of a fixed length on targets of pure noise: the minimum of the mean is at zero."""
    opt = proxlin.prox_linear(
        lambda w, x: x + w[None], proxlin.Squared(), step=proxlin.Fixed(0.5), average=True
    )

    @jax.jit
    def run(w):
        def step(carry, key):
            w, state = carry
            y = jax.random.normal(key, (4, 300))
            updates, state = opt.update(None, state, w, inputs=jnp.zeros((4, 300)), targets=y)
            return (w + updates, state), None

        (w, state), _ = jax.lax.scan(
            step, (w, opt.init(w)), jax.random.split(jax.random.key(0), 400)
        )
        return w, proxlin.eval_params(state, w)

    last, averaged = run(jnp.ones(300))
    # With a = gamma / (1 + gamma), E|w|^2 = a / (2 - a) p / m, and correlations reach back 1 / a
    # steps, so that sum_t share_t^2 (2 - a) / a of that is left in the mean.
    a = 0.5 / 1.5
    want = a / (2 - a) * 300 / 4
    assert float(last @ last) == pytest.approx(want, rel=0.25)
    left = np.sum(shares(400) ** 2) * (2 - a) / a
    assert float(averaged @ averaged) == pytest.approx(left * want, rel=0.25)


# BatchNorm --------------------------------------------------------------------------------------


class Net(linen.Module):
    """Statistics of the last batch alone with a momentum of zero."""

    momentum: float = 0.9

    @linen.compact
    def __call__(self, x, train):
        x = linen.Dense(8)(x)
        norm = linen.BatchNorm(
            use_running_average=not train, momentum=self.momentum, param_dtype=x.dtype
        )
        return linen.Dense(3)(jnp.tanh(norm(x)))


def test_statistics_that_belong_to_the_average():
    """Their mean over batches of equal size, with the average, is that of the population.

    For the mean this is an identity. Flax has the biased variance, E x^2 - (E x)^2, within each
    batch, so that the mean over batches lacks the variance between their means.
    """
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        rng = np.random.default_rng(0)
        x = jnp.asarray(3 * rng.normal(size=(512, 4)) + 1, jnp.float32)
        y = jnp.asarray(np.argmax(x[:, :3] ** 2, axis=1))
        variables = Net().init(jax.random.key(0), x, train=True)
        params, stats = variables["params"], variables["batch_stats"]

        def model(params, inputs, stats, momentum=0.9):
            out, new = Net(momentum).apply(
                {"params": params, "batch_stats": stats},
                inputs,
                train=True,
                mutable=["batch_stats"],
            )
            return out, new["batch_stats"]

        opt = proxlin.auto(model, LOSS, has_aux=True, init_aux=stats)
        update = jax.jit(opt.update)
        state = opt.init(params)
        for i in range(60):
            rows = slice(64 * (i % 8), 64 * (i % 8) + 64)
            updates, state = update(
                None, state, params, inputs=x[rows], targets=y[rows], args=(state.aux,)
            )
            params = optax.apply_updates(params, updates)

        averaged = proxlin.eval_params(state, params)
        of_batch = jax.jit(functools.partial(model, momentum=0.0))
        found = [of_batch(averaged, part, stats)[1] for part in x.reshape(8, 64, 4)]
        anew = jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *found)
        whole = of_batch(averaged, x, stats)[1]
        predict = lambda params, stats: Net().apply(
            {"params": params, "batch_stats": stats}, x, train=False
        )
        exact = predict(averaged, whole)
        loss = lambda outputs: float(jnp.mean(LOSS.value(outputs, y)))
        got, stale = predict(averaged, anew), predict(averaged, state.aux)

    (norm,), (true,) = anew.values(), whole.values()
    np.testing.assert_allclose(norm["mean"], true["mean"], rtol=1e-4, atol=1e-5)
    between = np.var([next(iter(s.values()))["mean"] for s in found], axis=0)
    np.testing.assert_allclose(norm["var"] + between, true["var"], rtol=1e-4)
    assert relative_error(np.asarray(got), np.asarray(exact)) < 0.03
    assert loss(got) == pytest.approx(loss(exact), rel=0.03)
    # Those of training belong to the last parameters, and to the last batches.
    assert relative_error(np.asarray(stale), np.asarray(exact)) > relative_error(
        np.asarray(got), np.asarray(exact)
    )
