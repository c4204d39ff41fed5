"""What the last step did, in words, and the warning about rejected steps."""

from __future__ import annotations

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import proxlin
from tests.cases import network, problem

LOSS = proxlin.Logistic()
PARAMS, X, Y = problem("logistic", jnp.float32)


def after(opt=None, params=PARAMS, *, inputs=X, targets=Y, **batch):
    """The state after one compiled step."""
    opt = opt or proxlin.spl(network, LOSS)
    return jax.jit(opt.update)(
        None, opt.init(params), params, inputs=inputs, targets=targets, **batch
    )[1]


def root_at_zero(params, inputs):
    """Finite outputs, with a derivative that is not."""
    return jnp.sqrt(jnp.abs(inputs * 0 @ params["w1"])) @ params["w2"]


def far_too_strict():
    return proxlin.Armijo(gamma=1e4, beta=0.99, max_backtracks=0)


REJECTED = {
    "labels from one": (
        lambda: after(targets=Y + 1),
        r"\(BAD_VALUE\).* a label outside 0..k-1.*same call of update without jit",
    ),
    "label minus one": (lambda: after(targets=Y.at[0].set(-1)), "BAD_VALUE"),
    "all weights zero": (lambda: after(weights=jnp.zeros(len(X))), "weights that are all zero"),
    "row of nan": (
        lambda: after(inputs=X.at[2].set(jnp.nan)),
        r"\(NON_FINITE\).*loss of the batch is nan: look for numbers that are not finite",
    ),
    "derivative of a root": (
        lambda: after(proxlin.spl(root_at_zero, LOSS)),
        r"\(NON_FINITE\).*loss is finite, but its gradient .* roots, norms and divisions",
    ),
    "no stepsize": (
        lambda: after(proxlin.prox_linear(network, LOSS, step=far_too_strict())),
        r"\(OK\).*step rule found no stepsize.*gamma that is too large",
    ),
    "in a chain": (
        lambda: after(optax.chain(proxlin.auto(network, LOSS), optax.scale(0.5)), targets=Y + 1),
        "BAD_VALUE",
    ),
}


@pytest.mark.parametrize("name", REJECTED)
def test_why_a_step_was_rejected(name):
    state, words = REJECTED[name]
    text = proxlin.explain(state())
    assert text.startswith("The last step was rejected (")
    assert "unchanged" in text and "0 taken and 1 rejected so far" in text
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(text)


def test_the_remedy_for_a_bad_value_works():
    """Without jit the same call names the value, as the explanation says."""
    opt = proxlin.spl(network, LOSS)
    with pytest.raises(ValueError, match=r"targets\[\d\] is 3; allowed are labels 0..2"):
        opt.update(None, opt.init(PARAMS), PARAMS, inputs=X, targets=Y + 1)


def test_steps_that_were_taken():
    opt = proxlin.auto(network, LOSS)
    assert proxlin.explain(opt.init(PARAMS)) == "No step yet: this is the state that init returned."
    state = after(opt)
    text = proxlin.explain(state)
    assert f"taken, with stepsize {float(state.eta):.3g}" in text
    assert f"the loss of its batch was {float(state.info.value):.4g}." in text
    assert f"1 taken and 0 rejected so far; gamma is {float(state.gamma):.3g}." in text


def test_a_loss_that_depends_on_no_parameter():
    text = proxlin.explain(after(proxlin.spl(lambda p, x: 0 * network(p, x), LOSS)))
    assert "The gradient of the batch is zero" in text


def test_an_inexact_direction_is_said_to_be_so():
    opt = proxlin.spl(network, LOSS, 1e30)
    state = after(opt)
    assert state.info.status == proxlin.Status.INEXACT and "(INEXACT)" in proxlin.explain(state)


def test_the_end_of_a_known_length_is_no_rejection():
    opt = proxlin.auto(network, LOSS, steps=1)
    update = jax.jit(opt.update)
    state = opt.init(PARAMS)
    for bad in (1, 0, 0):  # one rejection before, so that there are some
        _, state = update(None, state, PARAMS, inputs=X, targets=Y + bad)
    assert state.eta == 0 and state.rejected == 1
    assert "number of steps that the method was told is over" in proxlin.explain(state)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        proxlin.warn_if_rejected(state)
        jax.effects_barrier()


def test_a_rejected_step_warns_from_inside_of_a_compiled_one():
    opt = proxlin.spl(network, LOSS)

    @jax.jit
    def step(state, targets):
        _, state = opt.update(None, state, PARAMS, inputs=X, targets=targets)
        proxlin.warn_if_rejected(state)
        return state

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        state = step(opt.init(PARAMS), Y)
        jax.effects_barrier()
        assert caught == []
        state = step(state, Y + 1)
        jax.effects_barrier()
        assert [w.category for w in caught] == [RuntimeWarning]
        assert "A step was rejected. A value is not allowed: a label" in str(caught[0].message)
        step(state, Y)
        jax.effects_barrier()
        assert len(caught) == 1


def test_what_cannot_be_explained():
    state = after()
    with pytest.raises(TypeError, match=r"not known under jit: .* warn_if_rejected"):
        jax.jit(lambda state: proxlin.explain(state) and state)(state)
    batch = jax.tree.map(lambda x: jnp.stack([x, x]), state)
    with pytest.raises(TypeError, match="a batch of them: pick one"):
        proxlin.explain(batch)
    for reads in (proxlin.explain, proxlin.warn_if_rejected):
        with pytest.raises(TypeError, match=f"{reads.__name__} needs the state of one"):
            reads(optax.adam(1e-3).init(PARAMS))


# Rejected before any step -------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [proxlin.Logistic(), proxlin.Sparsemax()])
def test_one_class_is_no_classification(loss):
    opt = proxlin.spl(lambda p, x: network(p, x)[:, :1], loss)
    words = r"outputs of shape \(6, 1\) have one class.* use BinaryLogistic\(\)"
    with pytest.raises(ValueError, match=words):
        jax.jit(opt.update)(None, opt.init(PARAMS), PARAMS, inputs=X, targets=0 * Y)


def test_the_remedy_for_one_class_works():
    opt = proxlin.spl(lambda p, x: network(p, x)[:, :1], proxlin.BinaryLogistic())
    state = after(opt, targets=jnp.asarray(np.arange(6) % 2, jnp.float32)[:, None])
    assert state.taken == 1 and state.info.slope > 0


# Pieces and parameters of the wrong kind, found before any work ----------------------------------

MODULE = eqx.nn.MLP(5, 3, 4, 1, key=jax.random.key(0))
METHODS = [proxlin.auto, proxlin.spl, proxlin.levenberg_marquardt]
WRONG_PARAMS = {
    "integers": ({"w": jnp.ones(3, int)}, r"params\['w'\] has dtype int64; .*\.astype\(float\)"),
    "a number": ({"b": 0.0}, r"params\['b'\] is 0.0; .* to be trained with jnp.asarray"),
    "a module": (MODULE, r"params.activation is .*eqx.partition\(module, eqx.is_"),
}


@pytest.mark.parametrize("name", WRONG_PARAMS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.usefixtures("unchecked")
def test_parameters_are_checked_by_init(method, name):
    params, words = WRONG_PARAMS[name]
    with pytest.raises(TypeError, match=words):
        method(network, LOSS).init(params)


WRONG_OPTIONS = {
    "gamma auto": (
        lambda: proxlin.spl(network, LOSS, gamma="auto"),  # type: ignore[arg-type]
        r"Fixed\(gamma='auto'\): give a positive number.*; proxlin.auto\(model, loss\) chooses",
    ),
    "no gamma": (
        lambda: proxlin.armijo_spl(network, LOSS, gamma=None),  # type: ignore[arg-type]
        r"Armijo\(gamma=None\): give a positive number, not None$",
    ),
    "beta": (
        lambda: proxlin.Armijo(beta="0.1"),  # type: ignore[arg-type]
        r"Armijo\(beta='0.1'\): give a number between 0 and 1",
    ),
    "momentum": (
        lambda: proxlin.prox_linear(network, LOSS, momentum="0.9"),  # type: ignore[arg-type]
        r"momentum='0.9': give a number in \[0, 1\)",
    ),
    "decay": (
        lambda: proxlin.auto(network, LOSS, weight_decay="small"),  # type: ignore[arg-type]
        "weight_decay='small': give a non-negative number",
    ),
}


@pytest.mark.parametrize("name", WRONG_OPTIONS)
@pytest.mark.usefixtures("unchecked")
def test_options_that_are_no_numbers(name):
    make, words = WRONG_OPTIONS[name]
    with pytest.raises(TypeError, match=words):
        make()


def notes(raised):
    return " ".join(raised.value.__notes__)


@pytest.mark.usefixtures("unchecked")
def test_inputs_as_lists():
    fn = proxlin.value_and_direction(network, LOSS)
    with pytest.raises(TypeError, match="inputs are a list of numbers; give one array"):
        fn(PARAMS, X.tolist(), Y)
    with pytest.raises(AttributeError) as raised:
        fn(PARAMS, list(X), Y)
    assert "list of 6, which the model got as it is" in notes(raised)
    # A list is also how a model gets several arrays.
    pair = proxlin.value_and_direction(lambda p, x: network(p, x[0] + x[1]), LOSS)
    (value, _), _ = pair(PARAMS, [X, 0 * X], Y)
    assert value == fn(PARAMS, X, Y)[0][0]


@pytest.mark.usefixtures("unchecked")
def test_a_module_in_place_of_a_function():
    params, _ = eqx.partition(MODULE, eqx.is_inexact_array)
    with pytest.raises(TypeError) as raised:
        proxlin.value_and_direction(MODULE, LOSS)(params, X, Y)
    assert "The model is of type MLP" in notes(raised) and "eqx.combine" in notes(raised)
