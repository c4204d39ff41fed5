"""What Optax asks of its own optimizers, asked of every method here."""

import dataclasses
import functools
import inspect
import io
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import proxlin
from tests.cases import flat, relative_error
from tests.test_optimizer import avals, lenient

LOSS = proxlin.Squared()
BATCHES, M = 4, 2
TARGET = {"matrix": np.arange(16.0).reshape(8, 2) / 8, "vector": np.array([1.0, -1.0, 2.0])}
STRENGTH = 0.25  # of the L1 norm of the vector


def model(params, inputs, seen):
    """Parabolas of a matrix and of a vector, and the valley of Rosenbrock, as squares."""
    a, b = params["valley"]
    parabolas = [(params[k] - jnp.asarray(v, params[k].dtype)).ravel() for k, v in TARGET.items()]
    residuals = jnp.concatenate([*parabolas, jnp.stack([1 - a, 10 * (b - a**2)])])
    return inputs * residuals[None], seen + 1


def start_params(dtype=jnp.float32):
    zeros = {k: jnp.zeros(v.shape, dtype) for k, v in TARGET.items()}
    return {**zeros, "valley": jnp.array([-0.5, 0.5], dtype)}


def batch(i, dtype=jnp.float32):
    """Signs, which change all Jacobians, but neither the objective nor its minimum."""
    signs = np.random.default_rng(i).choice([-1, 1], (M, 1))
    return jnp.asarray(signs, dtype), jnp.zeros((M, 21), dtype)


SEEN = jnp.zeros((), jnp.int32)
AUX: dict[str, Any] = {"has_aux": True, "init_aux": SEEN}


def prox_linear(**options):
    return proxlin.prox_linear(model, LOSS, **AUX, **options)


# Each method as a function of one of its numbers, that number, and another one.
METHODS: dict[str, Any] = {
    "spl": (lambda gamma: proxlin.spl(model, LOSS, gamma, **AUX), 0.5, 0.1),
    "armijo_spl": (lambda gamma: proxlin.armijo_spl(model, LOSS, gamma, **AUX), 3.0, 0.1),
    "fixed": (lambda eta: prox_linear(step=proxlin.Fixed(0.5, eta)), 0.75, 0.5),
    "armijo": (lambda shrink: prox_linear(step=proxlin.Armijo(3.0, 0.6, shrink)), 0.7, 0.2),
    "model": (lambda gamma: prox_linear(step=proxlin.ModelStep(gamma)), 0.5, 0.1),
    "trust": (lambda grow: prox_linear(step=proxlin.TrustRegion(0.1, grow=grow)), 2.0, 3.0),
    "stochastic": (
        lambda rate: prox_linear(step=proxlin.StochasticTrustRegion(1.0, rate=rate)),
        0.05,
        1.0,
    ),
    "diagonal": (
        lambda gamma: prox_linear(metric=proxlin.Diagonal(), step=proxlin.Armijo(gamma)),
        0.5,
        0.1,
    ),
    "kronecker": (
        lambda gamma: prox_linear(metric=proxlin.Kronecker(root=4), step=proxlin.Armijo(gamma)),
        0.5,
        0.1,
    ),
    "momentum": (lambda momentum: prox_linear(momentum=momentum), 0.5, 0.1),
    "regularized": (
        lambda strength: prox_linear(regularizer=proxlin.L1(strength, lambda k: k == "vector")),
        STRENGTH,
        0.1,
    ),
    "direction": (
        lambda gamma: proxlin.direction_as_gradient(model, LOSS, gamma=gamma, **AUX),
        0.5,
        0.1,
    ),
    "adam": (
        lambda gamma: proxlin.direction_as_gradient(
            model, LOSS, lenient(optax.adam(0.1)), gamma=gamma, **AUX
        ),
        0.5,
        0.1,
    ),
    "auto": (lambda: proxlin.auto(model, LOSS, **AUX),),
}
# Gamma grows by five percent a step, from a hundredth to the millions that 1e-4 takes here.
STEPS = {"auto": 1000}
ASCENDS = {"direction"}  # returns +d, for an optimizer that comes after it
# Stepsizes by bisection have three digits, of which the last is a matter of rounding on a parabola;
# inverse roots of matrices lose some too.
TOLERANCES = {"model": 1e-2, "stochastic": 1e-2, "auto": 1e-2, "kronecker": 1e-3}
SCHEDULED = ("spl", "armijo_spl", "fixed", "model", "direction")
# How many trees of the shapes of the parameters are in the state.
LIKES = {"stochastic": 1, "diagonal": 1, "momentum": 1, "adam": 2, "auto": 3}


@pytest.fixture(scope="module", params=METHODS)
def method(request):
    """Each in turn, for all tests of a method in a row share what is compiled."""
    return request.param


@functools.cache
def make(method):
    factory, *number = METHODS[method]
    return factory(*number[:1])


def step(opt, sign, params, state, x, y, **extra):
    seen = optax.tree.get(state, "aux")
    updates, state = opt.update(None, state, params, inputs=x, targets=y, args=(seen,), **extra)
    return optax.apply_updates(params, jax.tree.map(lambda u: sign * u, updates)), state


def step_of(method, opt=None):
    return functools.partial(step, opt or make(method), -1 if method in ASCENDS else 1)


def start(method, dtype=jnp.float32) -> tuple[Any, Any]:
    params = start_params(dtype)
    return params, make(method).init(params)


@functools.cache
def compiled(method):
    """One step that overwrites parameters and state, and is given arguments of no use to it."""
    fn = functools.partial(step_of(method), temperature=3.0, value_fn=model)
    return jax.jit(fn, donate_argnums=(0, 1))


@functools.cache
def scanned(method):
    """Any number of steps in one program, which overwrites nothing."""
    batches = jax.tree.map(lambda *b: jnp.stack(b), *map(batch, range(BATCHES)))

    @jax.jit
    def steps(params, state, number):
        def body(i, carry):
            return step_of(method)(*carry, *jax.tree.map(lambda b: b[i % BATCHES], batches))

        return jax.lax.fori_loop(0, number, body, (params, state))

    return steps


def copies(tree):
    return jax.tree.map(jnp.copy, tree)


def pointers(tree):
    return [x.unsafe_buffer_pointer() for x in jax.tree.leaves(tree)]


def assert_close(got, want, tolerance=1e-5):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def tolerance(method):
    return TOLERANCES.get(method, 1e-5)


def run(fn, params, state, steps=3):
    for i in range(steps):
        params, state = fn(params, state, *batch(i))
    return params, state


# Steps ------------------------------------------------------------------------------------------


def test_steps_converge(method):
    steps = STEPS.get(method, 300)
    params, state = scanned(method)(*start(method), steps)
    want = {**TARGET, "valley": np.ones(2)}
    if method == "regularized":
        want["vector"] = np.sign(want["vector"]) * (np.abs(want["vector"]) - STRENGTH)
    assert_close(params, want, 1e-4)
    assert int(state.aux) == int(state.taken) == steps - int(state.rejected)


def test_steps_may_overwrite_parameters_and_state(method):
    """A loop in place, of one program, with unknown arguments, is a scan without all that."""
    params, state = start(method)
    first, given = state, copies(params)
    fn = compiled(method)
    end = run(fn, given, state, BATCHES)
    assert_close(
        end, scanned(method)(params, make(method).init(params), BATCHES), tolerance(method)
    )
    assert all(x.is_deleted() for x in jax.tree.leaves((given, first.taken, first.aux)))
    assert not any(x.is_deleted() for x in jax.tree.leaves((params, SEEN)))
    assert fn._cache_size() == 1


def test_no_two_leaves_share_a_buffer(method):
    params = start_params()
    opt = make(method)
    for state in (opt.init(params), jax.jit(opt.init)(params)):
        found = pointers((params, state, SEEN))
        assert len(set(found)) == len(found)
    found = pointers(compiled(method)(copies(params), state, *batch(0)))
    assert len(set(found)) == len(found)


def test_the_state_does_not_share_what_it_is_made_of():
    """Parameters that the optimizer inside keeps, and a gamma that is an array."""
    keeps = optax.GradientTransformation(lambda params: params, lambda u, s, p=None: (u, p))
    gamma, params = jnp.ones(()), start_params()
    opt = proxlin.direction_as_gradient(model, LOSS, keeps, gamma=gamma, **AUX)
    found = pointers((params, gamma, opt.init(params)))
    assert len(set(found)) == len(found)
    assert_close(opt.init(params).then, params)


# Numbers that change ----------------------------------------------------------------------------


@pytest.mark.parametrize("method", [k for k, (_, *numbers) in METHODS.items() if numbers])
def test_injected_numbers_are_used(method):
    factory, number, other = METHODS[method]
    (name,) = inspect.signature(factory).parameters
    opt = optax.inject_hyperparams(factory)(other)
    fn = jax.jit(step_of(method, opt))

    def end(value):
        params = start_params()
        state = opt.init(params)
        state.hyperparams[name] = jnp.asarray(value, jnp.float32)
        params, state = run(fn, params, state)
        return params, state.inner_state

    want = scanned(method)(*start(method), 3)
    assert_close(end(number), want, tolerance(method))
    assert relative_error(flat(end(other)[0]), flat(want[0])) > 2 * tolerance(method)


def test_a_bad_momentum_that_is_injected_is_rejected():
    opt = optax.inject_hyperparams(METHODS["momentum"][0])(0.5)
    state = opt.init(start_params())
    state.hyperparams["momentum"] = jnp.ones(())
    params, state = jax.jit(step_of("momentum", opt))(start_params(), state, *batch(0))
    assert_close(params, start_params())
    assert int(state.inner_state.rejected) == 1
    assert int(state.inner_state.info.status) == proxlin.Status.BAD_VALUE


RULES = (
    proxlin.Fixed,
    proxlin.Armijo,
    proxlin.ModelStep,
    proxlin.TrustRegion,
    proxlin.StochasticTrustRegion,
)


@pytest.mark.parametrize("rule", RULES)
def test_no_rule_looks_at_numbers_that_are_traced(rule):
    for field in dataclasses.fields(rule):
        if field.name in ("steps", "nielsen"):  # a size, and a choice
            continue
        made = jax.eval_shape(lambda v, name=field.name: getattr(rule(**{name: v}), name), 0.5)
        assert made.shape == ()


INJECTED: dict[str, Any] = {
    "spl": (proxlin.spl, {"gamma": 0.5}, ()),
    "armijo_spl": (proxlin.armijo_spl, {"gamma": 3.0}, ()),
    "direction": (proxlin.direction_as_gradient, {"gamma": 0.5}, ()),
    "trust": (proxlin.prox_linear, {"step": proxlin.TrustRegion(0.1)}, ("momentum",)),
    "auto": (proxlin.auto, {}, ()),
}


@pytest.mark.parametrize("method", INJECTED)
def test_methods_can_be_injected_into_by_name(method):
    factory, options, static = INJECTED[method]
    wrap = optax.inject_hyperparams(factory, static_args=("model", "loss", *static))
    opt = wrap(model, LOSS, **options, **AUX)
    params = start_params()
    fn = jax.jit(step_of(method, opt))
    params, state = run(fn, params, opt.init(params))
    want = scanned(method)(*start(method), 3)
    assert_close((params, state.inner_state), want, tolerance(method))


def test_schedules_can_be_injected():
    gamma = optax.linear_schedule(1.0, 0.1, 4)
    wrap = optax.inject_hyperparams(proxlin.spl, static_args=("model", "loss"))
    params = start_params()
    ends = []
    for opt in (wrap(model, LOSS, gamma, **AUX), proxlin.spl(model, LOSS, gamma, **AUX)):
        ends.append(run(jax.jit(step_of("spl", opt)), params, opt.init(params)))
    assert_close(ends[0][1].inner_state, ends[1][1])
    assert float(ends[1][1].gamma) == pytest.approx(gamma(2))


@pytest.mark.parametrize("method", SCHEDULED)
def test_a_constant_schedule_is_a_number(method):
    factory, number, _ = METHODS[method]
    opt = factory(optax.constant_schedule(number))
    params = start_params()
    fn = jax.jit(step_of(method, opt))
    want = scanned(method)(*start(method), 3)
    assert_close(run(fn, params, opt.init(params)), want, tolerance(method))


# Shapes, dtypes, placement ----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64])
def test_updates_are_like_parameters_and_states_like_the_first(method, dtype):
    params, state = start(method, dtype)
    x, y = batch(0, dtype)

    def maybe(flag, params, state):
        call = {"inputs": x, "targets": y, "args": (state.aux,)}
        step = lambda: make(method).update(None, state, params, **call)
        return jax.lax.cond(flag, step, lambda: (params, state))

    assert avals(jax.eval_shape(maybe, True, params, state)) == avals((params, state))


def test_low_precision_is_close_to_high(method):
    """From zero, where subproblems are so well conditioned that rounding does not grow."""
    zeros = lambda dtype: jax.tree.map(jnp.zeros_like, start_params(dtype))
    low, high = ((zeros(dtype), start(method, dtype)[1]) for dtype in (jnp.bfloat16, jnp.float32))
    params, _ = jax.jit(step_of(method))(*low, *batch(0, jnp.bfloat16))
    want, _ = scanned(method)(*high, 1)
    assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype(jnp.bfloat16)}
    assert relative_error(flat(params), flat(want)) < 2e-2


def test_init_knows_no_more_than_shapes(method):
    params, state = start(method)
    opt, shapes = make(method), jax.eval_shape(lambda: params)
    assert avals(jax.eval_shape(opt.init, shapes)) == avals(state)
    for same in (opt.init(shapes), jax.jit(opt.init)(params)):
        assert avals(same) == avals(state)
        assert_close(same, state)


def test_sharded_parameters_stay_where_they_are(method):
    mesh = jax.make_mesh((8,), ("rows",), axis_types=(AxisType.Auto,))
    on = lambda *spec: NamedSharding(mesh, P(*spec))
    where = {"matrix": on("rows"), "vector": on(), "valley": on()}
    params = jax.device_put(start_params(), where)
    state = make(method).init(params)
    new, after = jax.jit(step_of(method))(params, state, *batch(0))
    assert all(new[k].sharding.is_equivalent_to(where[k], new[k].ndim) for k in where)
    assert avals(after) == avals(state)
    assert_close((new, after), scanned(method)(*start(method), 1), tolerance(method))


# Trees ------------------------------------------------------------------------------------------


def test_map_params_finds_trees_like_the_parameters_alone(method):
    params, state = start(method)
    mapped = optax.tree.map_params(make(method), lambda v: v + 1, state)
    changed = jax.tree.map(lambda a, b: not np.array_equal(a, b), mapped, state)
    likes = LIKES.get(method, 0)
    assert sum(jax.tree.leaves(changed)) == likes * len(params)
    assert not any(jax.tree.leaves(changed._replace(then=(), proximity=(), rule=(), average=())))
    replaced = optax.tree.map_params(make(method), lambda _, w: w, state, params)
    kept = sum(w is v for v in jax.tree.leaves(replaced) for w in jax.tree.leaves(params))
    assert kept == likes * len(params)


def test_a_saved_state_continues_bit_by_bit(method):
    fn = compiled(method)
    saved = run(fn, *start(method), 2)
    leaves, structure = jax.tree.flatten(saved)
    file = io.BytesIO()
    np.savez(file, *leaves)
    file.seek(0)
    with np.load(file, allow_pickle=False) as arrays:
        restored = jax.tree.unflatten(structure, [jnp.asarray(arrays[k]) for k in arrays.files])
    pickled = pickle.loads(pickle.dumps(saved))
    ends = [run(fn, *start_of) for start_of in (saved, restored, pickled)]
    for end in ends[1:]:
        assert jax.tree.structure(end) == jax.tree.structure(ends[0])
        for a, b in zip(jax.tree.leaves(end), jax.tree.leaves(ends[0]), strict=True):
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_accumulation_around_a_method_is_rejected_with_the_remedy(method):
    params = start_params()
    opt = optax.MultiSteps(make(method), every_k_schedule=2)
    state = opt.init(params)
    call = dict(zip(("inputs", "targets"), batch(0), strict=True))
    with pytest.raises(ValueError, match=r"whole batch instead of wrapping it in optax.Multi"):
        opt.update(params, state, params, **call, args=(SEEN,))
    # Without gradients there is nothing that it could accumulate.
    with pytest.raises(ValueError, match="pytree"):
        opt.update(None, state, params, **call, args=(SEEN,))
