"""Products with the Jacobian, counted in the program that XLA compiled.

With a linear model ``x @ w`` each forward pass and each JVP is a matrix product of shape (m, k),
each VJP one of shape (features, k). All sizes differ, so that shapes tell them apart.
"""

from __future__ import annotations

import collections
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import proxlin
from tests.cases import SUBPROBLEMS

M, FEATURES, K, SOME = 48, 40, 24, 16
OUTPUTS, PARAMS, SOME_OUTPUTS = f"f32[{M},{K}]", f"f32[{FEATURES},{K}]", f"f32[{SOME},{K}]"


def linear(w, x):
    return x @ w


def data(loss):
    rng = np.random.default_rng(0)
    w = jnp.asarray(rng.normal(size=(FEATURES, K)), jnp.float32)
    x = jnp.asarray(rng.normal(size=(M, FEATURES)), jnp.float32)
    if isinstance(loss, proxlin.Logistic):
        return w, x, jnp.asarray(rng.integers(0, K, M))
    return w, x, jnp.asarray(rng.normal(size=(M, K)), jnp.float32)


def count_products(compiled, others=()):
    """Products by shape, outside and inside of loops; of ``others`` there may be any number."""
    computations = {}
    for block in re.split(r"\n(?=ENTRY|%)", compiled.as_text()):
        header = re.match(r"(ENTRY )?%?([\w.\-]+) ", block)
        if header:
            name = "ENTRY" if header[1] else header[2]
            computations[name] = block

    outside, inside = collections.Counter(), collections.Counter()

    def visit(name, counter):
        block = computations[name]
        counter.update(re.findall(r"= (\w+\[[\d,]*\])\S* dot\(", block))
        assert not re.search(r"= \S+ (custom-call|convolution)\(", block)
        for callee in re.findall(r"(?:calls|to_apply)=%?([\w.\-]+)", block):
            visit(callee, counter)
        for callee in re.findall(r"(?:body|condition)=%?([\w.\-]+)", block):
            visit(callee, inside)

    visit("ENTRY", outside)
    assert set(outside) | set(inside) <= {OUTPUTS, PARAMS, SOME_OUTPUTS, *others}
    return outside, inside


@pytest.mark.parametrize(
    "tau,loss",
    [*((tau, proxlin.Logistic()) for tau in (0, 1, 2, 4)), (2, proxlin.Squared())],
    ids=str,
)
@pytest.mark.parametrize("subproblem", SUBPROBLEMS)
def test_products_of_a_direction(subproblem, tau, loss):
    fn = proxlin.value_and_direction(
        linear, loss, subproblem=SUBPROBLEMS[subproblem], solver=proxlin.CG(tau)
    )
    arguments = data(loss)
    compiled = jax.jit(fn).lower(*arguments, gamma=1.0).compile()
    outside, inside = count_products(compiled)
    jvps = tau
    vjps = tau + 1 if subproblem == "dual" else max(tau, 1)
    assert outside[OUTPUTS] - 1 == jvps  # one is the forward pass
    assert outside[PARAMS] == vjps
    assert not inside
    (_, info), _ = compiled(*arguments, gamma=1.0)
    assert (info.steps, info.jvps, info.vjps) == (tau, jvps, vjps)


@pytest.mark.parametrize("subproblem", SUBPROBLEMS)
def test_products_of_many_steps(subproblem):
    """In the loop one JVP and one VJP a step; the last step still does without one of them."""
    fn = proxlin.value_and_direction(
        linear, proxlin.Logistic(), subproblem=SUBPROBLEMS[subproblem], solver=proxlin.CG(12)
    )
    arguments = data(proxlin.Logistic())
    compiled = jax.jit(fn).lower(*arguments, gamma=1.0).compile()
    outside, inside = count_products(compiled)
    assert inside == {OUTPUTS: 1, PARAMS: 1}
    assert outside == {OUTPUTS: 2, PARAMS: 2 if subproblem == "dual" else 1}
    (_, info), _ = compiled(*arguments, gamma=1e3)
    assert (info.steps, info.jvps) == (12, 12)
    assert info.vjps == (13 if subproblem == "dual" else 12)
    # Solved to rounding before: no more steps, and no more products than the one that found out.
    (_, info), _ = compiled(*arguments, gamma=1e-2)
    assert info.steps < 12
    assert info.jvps <= info.steps + 1


@pytest.mark.parametrize("subproblem", SUBPROBLEMS)
def test_products_with_curvature_of_some_examples(subproblem):
    """The batch is seen once, by the gradient; curvature costs what its examples cost."""
    fn = proxlin.value_and_direction(
        linear, proxlin.Logistic(), subproblem=SUBPROBLEMS[subproblem], curvature_size=SOME
    )
    compiled = jax.jit(fn).lower(*data(proxlin.Logistic()), gamma=1.0).compile()
    outside, _ = count_products(compiled)
    vjps = 3 if subproblem == "dual" else 2
    assert outside == {OUTPUTS: 1, SOME_OUTPUTS: 1 + 2, PARAMS: vjps}


# JVPs and forward passes that a rule adds to those of the direction, outside of loops.
RULES = {
    "fixed": (proxlin.Fixed(), {"dual": 0, "primal": 0}, 0),
    "armijo": (proxlin.Armijo(), {"dual": 0, "primal": 0}, 0),
    # Conjugate gradients on the primal have J d already.
    "model": (proxlin.ModelStep(), {"dual": 1, "primal": 0}, 0),
    "trust": (proxlin.TrustRegion(), {"dual": 1, "primal": 0}, 1),
    "stochastic": (proxlin.StochasticTrustRegion(), {"dual": 1, "primal": 0}, 0),
}


@pytest.mark.parametrize("subproblem", SUBPROBLEMS)
@pytest.mark.parametrize("rule", RULES)
def test_products_of_a_step(rule, subproblem):
    step, extra, trials = RULES[rule]
    opt = proxlin.prox_linear(
        linear, proxlin.Logistic(), step=step, subproblem=SUBPROBLEMS[subproblem]
    )
    w, x, y = data(proxlin.Logistic())

    def update(state, w, x, y):
        return opt.update(None, state, w, inputs=x, targets=y)

    state = opt.init(w)
    compiled = jax.jit(update).lower(state, w, x, y).compile()
    outside, inside = count_products(compiled)
    jvps = 2 + extra[subproblem]
    vjps = 3 if subproblem == "dual" else 2
    assert outside[OUTPUTS] == 1 + jvps + trials
    assert outside[PARAMS] == vjps
    # Armijo tries one stepsize at a time; the search on the convex model needs no product.
    assert inside == ({OUTPUTS: 1} if rule == "armijo" else {})
    _, state = compiled(state, w, x, y)
    assert (state.info.jvps, state.info.vjps) == (jvps, vjps)
    if rule == "armijo":
        assert state.info.evaluations >= 1
    else:
        assert state.info.evaluations == trials


def counting(model):
    calls = []

    def counted(*arguments):
        calls.append(None)
        return model(*arguments)

    return counted, calls


def test_direction_is_traced_once():
    model, calls = counting(linear)
    fn = jax.jit(proxlin.value_and_direction(model, proxlin.Squared()))
    w, x, y = data(proxlin.Squared())
    (first, _), d = fn(w, x, y, gamma=1.0)
    traced = len(calls)
    assert traced > 0
    (second, _), _ = fn(w - d, x + 1, y, gamma=0.5)
    assert len(calls) == traced
    assert second != first


@pytest.mark.parametrize("rule", RULES)
def test_step_is_traced_once(rule):
    """The state has one structure from init on, whatever happens in a step."""
    model, calls = counting(linear)
    opt = proxlin.prox_linear(model, proxlin.Squared(), step=RULES[rule][0])
    w, x, y = data(proxlin.Squared())

    @jax.jit
    def update(state, w, x, y):
        updates, state = opt.update(None, state, w, inputs=x, targets=y)
        return state, w + updates

    state, first = update(opt.init(w), w, x, y)
    traced = len(calls)
    assert traced > 0
    state, second = update(state, first, x, y)
    state, third = update(state, second, x.at[0, 0].set(jnp.nan), y)  # rejected
    assert len(calls) == traced
    assert jnp.any(second != first)
    np.testing.assert_array_equal(third, second)
    assert state.rejected == 1
