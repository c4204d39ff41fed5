"""What `update` takes: no gradient, the first place in a chain, states from other containers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState

import proxlin
from tests.cases import flat, network, problem
from tests.test_frameworks import NNXNet, data, flax_nnx, lenient, numbers

LOSS = proxlin.Logistic()
PARAMS, X, Y = problem("logistic", jnp.float32)
METHODS = {
    "auto": proxlin.auto,
    "spl": proxlin.spl,
    "adam": lambda *a, **k: proxlin.direction_as_gradient(*a, optax.adam(1e-2), **k),
}


def same(one, other):
    for a, b in zip(numbers(one), numbers(other), strict=True):
        np.testing.assert_array_equal(a, b)


# No gradient ------------------------------------------------------------------------------------


@pytest.mark.parametrize("nothing", [{}, (), optax.EmptyState(), {"w1": None}, nnx.State({})])
def test_a_tree_without_leaves_is_no_gradient(nothing):
    opt = proxlin.spl(network, LOSS)
    state = opt.init(PARAMS)
    got = opt.update(nothing, state, PARAMS, inputs=X, targets=Y)
    same(got, opt.update(None, state, PARAMS, inputs=X, targets=Y))


CLIP = optax.clip_by_global_norm(1e-3)
INJECTED = optax.inject_hyperparams(lambda gamma: proxlin.spl(network, LOSS, gamma))(1.0)


@pytest.mark.parametrize(
    "chain",
    [
        lambda opt: optax.chain(CLIP, opt),
        lambda opt: optax.chain(optax.add_decayed_weights(0.1), opt, optax.scale(0.5)),
        lambda opt: optax.named_chain(("clip", CLIP), ("opt", opt)),
        lambda opt: optax.chain(CLIP, optax.chain(opt, optax.identity())),
        lambda _: optax.chain(CLIP, INJECTED),
    ],
    ids=["clip", "decay", "named", "nested", "injected"],
)
@pytest.mark.parametrize("jit", [False, True])
def test_nothing_may_stand_before_a_method_in_a_chain(chain, jit):
    opt = chain(proxlin.spl(network, LOSS))
    update = jax.jit(opt.update) if jit else opt.update
    with pytest.raises(ValueError, match=r"must come first .* would do nothing. Write optax.chain"):
        update(None, opt.init(PARAMS), PARAMS, inputs=X, targets=Y)


def test_what_stands_behind_a_method_acts_on_the_step():
    opt = optax.chain(optax.chain(proxlin.spl(network, LOSS)), CLIP)
    updates, _ = opt.update(None, opt.init(PARAMS), PARAMS, inputs=X, targets=Y)
    assert np.linalg.norm(flat(updates)) == pytest.approx(1e-3, rel=1e-5)


def test_a_transformation_of_ones_own_may_use_a_method():
    """Even behind others: it has gradients for them, and calls the method without."""
    inner = proxlin.spl(network, LOSS)

    def update(updates, state, params=None, **batch):
        own, state = inner.update(None, state, params, **batch)
        return jax.tree.map(jnp.add, own, updates), state

    opt = optax.chain(CLIP, optax.GradientTransformationExtraArgs(inner.init, update))
    grads = jax.tree.map(jnp.ones_like, PARAMS)
    got, _ = opt.update(grads, opt.init(PARAMS), PARAMS, inputs=X, targets=Y)
    own, _ = inner.update(None, inner.init(PARAMS), PARAMS, inputs=X, targets=Y)
    assert np.linalg.norm(flat(got) - flat(own)) == pytest.approx(1e-3, rel=1e-4)


# States in other containers ---------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("boxed", [False, True])
def test_optimizer_of_nnx_takes_the_same_steps(name, boxed):
    """With BatchNorm and dropout, whose state NNX keeps in boxes; `boxed`: as aux, too."""
    with lenient("nnx"):
        plain_model, params, rest, _ = flax_nnx()
        net = NNXNet(nnx.Rngs(0, dropout=1))
        graph, _, first = nnx.split(net, nnx.Param, ...)
        first = first if boxed else nnx.as_pure(first)

        def model(params, inputs, rest):
            net = nnx.merge(graph, params, rest, copy=True)
            outputs = net(inputs)
            aux = nnx.state(net, nnx.Not(nnx.Param))
            return outputs, aux if boxed else nnx.as_pure(aux)

        opt = METHODS[name](plain_model, LOSS, has_aux=True, init_aux=rest)
        want, state = params, opt.init(params)
        update = jax.jit(opt.update)

        method = METHODS[name](model, LOSS, has_aux=True, init_aux=first)
        optimizer = nnx.Optimizer(net, method, wrt=nnx.Param)

        @nnx.jit
        def train_step(net, optimizer, x, y):
            rest = nnx.state(net, nnx.Not(nnx.Param))
            optimizer.update(net, None, inputs=x, targets=y, args=(rest,))
            nnx.update(net, nnx.as_pure(optimizer.opt_state.aux))

        for seed in range(4):
            x, y = data(seed)
            updates, state = update(None, state, want, inputs=x, targets=y, args=(state.aux,))
            want = optax.apply_updates(want, updates)
            train_step(net, optimizer, x, y)
        got, rest = nnx.split(net, nnx.Param, ...)[1:]
        near = lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6)
        for a, b in zip(numbers((got, rest)), numbers((want, state.aux)), strict=True):
            near(a, b)
        assert int(state.taken) == 4
        # What reads a state reads that of NNX.
        average = proxlin.eval_params(optimizer.opt_state, got)
        assert jax.tree.structure(average) == jax.tree.structure(got)
        for a, b in zip(numbers(average), numbers(proxlin.eval_params(state, want)), strict=True):
            near(a, b)
        assert "4 taken and 0 rejected" in proxlin.explain(optimizer.opt_state)


class State(TrainState):
    """Flax's, with a method for a batch: `apply_gradients` has no place for one."""

    def apply_batch(self, **batch):
        updates, opt_state = self.tx.update(None, self.opt_state, self.params, **batch)
        params = optax.apply_updates(self.params, updates)
        return self.replace(step=self.step + 1, params=params, opt_state=opt_state)


@pytest.mark.parametrize("name", METHODS)
def test_train_state_of_flax_takes_the_same_steps(name):
    opt = METHODS[name](network, LOSS)
    with lenient("linen"):
        train = State.create(apply_fn=network, params=PARAMS, tx=opt)
        step = jax.jit(lambda train, **batch: train.apply_batch(**batch))
        state, params, update = opt.init(PARAMS), PARAMS, jax.jit(opt.update)
        for _ in range(3):
            train = step(train, inputs=X, targets=Y)
            updates, state = update(None, state, params, inputs=X, targets=Y)
            params = optax.apply_updates(params, updates)
    for a, b in zip(numbers(train.params), numbers(params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    assert int(train.step) == 3


def as_dicts(tree):
    """Named tuples, tuples and lists as dicts, as many a format of checkpoints has them."""
    if hasattr(tree, "_fields"):
        return {name: as_dicts(getattr(tree, name)) for name in sorted(tree._fields)}
    if isinstance(tree, tuple | list):
        return {str(i): as_dicts(x) for i, x in enumerate(tree)}
    return {k: as_dicts(v) for k, v in tree.items()} if isinstance(tree, dict) else tree


def test_state_survives_other_containers():
    """Fields in alphabetical order, too: a leaf is known by its name and not by its number."""
    opt = proxlin.auto(network, LOSS)
    state, update = opt.init(PARAMS), jax.jit(opt.update)
    for _ in range(2):
        _, state = update(None, state, PARAMS, inputs=X, targets=Y)
    want = update(None, state, PARAMS, inputs=X, targets=Y)
    fields = {name: as_dicts(getattr(state, name)) for name in state._fields}
    same(update(None, proxlin.ProxLinearState(**fields), PARAMS, inputs=X, targets=Y), want)
    got = update(None, as_dicts(state), PARAMS, inputs=X, targets=Y)
    same(got, want)
    assert jax.tree.structure(got) == jax.tree.structure(want)


@pytest.mark.parametrize(
    "other",
    [
        lambda: optax.adam(1e-3).init(PARAMS),
        lambda: proxlin.spl(network, LOSS).init(PARAMS),
        lambda: proxlin.auto(network, LOSS).init({**PARAMS, "w1": jnp.ones((7, 4))}),
        lambda: None,
    ],
    ids=["adam", "spl", "parameters", "none"],
)
def test_the_state_of_another_method_is_named(other):
    opt = proxlin.auto(network, LOSS)
    with pytest.raises(TypeError, match=r"state is not that of this method .* what opt.init"):
        opt.update(None, other(), PARAMS, inputs=X, targets=Y)


def test_average_of_other_parameters():
    state = proxlin.auto(network, LOSS).init(PARAMS)
    with pytest.raises(TypeError, match="average in the state has other leaves or shapes"):
        proxlin.eval_params(state, {"w": jnp.ones(3)})
