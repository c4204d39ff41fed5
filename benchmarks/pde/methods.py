"""What is compared: each method as a start and a jitted run of a few steps."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

import proxlin
from proxlin.bench.rivals.soap import soap

EVERY = 200  # steps, after which points are chosen again


@dataclasses.dataclass(frozen=True)
class Method:
    """``start(params) -> state`` and ``run(state, elapsed) -> state``, which takes ``steps`` steps.

    A state is a tuple whose first entry is the parameters; ``elapsed`` is the fraction of the time
    that is over.
    """

    start: Callable[[Any], tuple]
    run: Callable[[tuple, jax.Array], tuple]
    steps: int
    problem: Any


def levenberg_marquardt(problem, dtype=jnp.float64, **options):
    """With points inside that are chosen again every 200 steps, where there are candidates."""
    problem = problem.cast(dtype)
    opt = proxlin.levenberg_marquardt(problem.objective, **options)

    def start(params):
        points = () if problem.candidates is None else problem.inputs[0]
        return params, opt.init(params), points

    def run(state, elapsed):
        params, inner, points = state
        inputs = problem.inputs
        if problem.candidates is not None:
            number = inner.taken + inner.rejected
            choose = lambda: problem.chosen(params, jax.random.key(number))
            again = (number > 0) & (number % EVERY == 0)
            points = jax.lax.cond(again, choose, lambda: points)
            inputs = (points, *inputs[1:])
        updates, inner = opt.update(None, inner, params, inputs=inputs, targets=problem.targets)
        return optax.apply_updates(params, updates), inner, points

    return Method(start, run, 1, problem)


def first_order(problem, make, rate, cosine=False):
    def with_rate(learning_rate):
        return make(learning_rate)

    opt = optax.inject_hyperparams(with_rate)(learning_rate=rate)

    def run(state, elapsed):
        def step(state, _):
            params, inner = state
            updates, inner = opt.update(jax.grad(problem.value)(params), inner, params)
            return (optax.apply_updates(params, updates), inner), None

        params, inner = state
        if cosine:
            inner.hyperparams["learning_rate"] = 0.5 * rate * (1 + jnp.cos(jnp.pi * elapsed))
        return jax.lax.scan(step, (params, inner), length=100)[0]

    return Method(lambda params: (params, opt.init(params)), run, 100, problem)


def lbfgs(problem, memory):
    opt = optax.lbfgs(memory_size=memory)

    def run(state, elapsed):
        def step(state, _):
            params, inner = state
            value, grad = optax.value_and_grad_from_state(problem.value)(params, state=inner)
            updates, inner = opt.update(
                grad, inner, params, value=value, grad=grad, value_fn=problem.value
            )
            return (optax.apply_updates(params, updates), inner), None

        return jax.lax.scan(step, state, length=10)[0]

    return Method(lambda params: (params, opt.init(params)), run, 10, problem)


def optimistix(problem, kind):
    """Its solvers step by step, as ``optimistix.least_squares`` takes them."""
    import equinox as eqx
    import optimistix as optx

    solver = getattr(optx, kind)(rtol=1e-30, atol=1e-30)
    traced = lambda params, args: (problem.residuals(params), None)
    shapes = jax.eval_shape(traced, problem.first(0), None)
    init = lambda params: solver.init(traced, params, None, {}, *shapes, frozenset())
    _, static = eqx.partition(init(problem.first(0)), eqx.is_array)  # traced functions

    def run(state, elapsed):
        params, inner = state
        inner = eqx.combine(inner, static)
        params, inner, _ = solver.step(traced, params, None, {}, inner, frozenset())
        return params, eqx.filter(inner, eqx.is_array)

    return Method(lambda params: (params, eqx.filter(init(params), eqx.is_array)), run, 1, problem)


METHODS = {
    "LM": levenberg_marquardt,
    "LM, float32": functools.partial(levenberg_marquardt, dtype=jnp.float32),
    "optimistix, LM": functools.partial(optimistix, kind="LevenbergMarquardt"),
    "optimistix, Dogleg": functools.partial(optimistix, kind="Dogleg"),
    "L-BFGS, memory 10": functools.partial(lbfgs, memory=10),
    "L-BFGS, memory 100": functools.partial(lbfgs, memory=100),
    "SOAP, 0.003 to 0": functools.partial(first_order, make=soap, rate=3e-3, cosine=True),
    "Adam, 0.01 to 0": functools.partial(first_order, make=optax.adam, rate=1e-2, cosine=True),
    "LM, straight": functools.partial(levenberg_marquardt, acceleration=None),
}
SCIPY = {"SciPy, trf": "trf", "SciPy, lm": "lm"}


def train(problem, name, seed, seconds):
    """One run: the curve of seconds, steps, objective and error; the clock stops while it looks."""
    method = METHODS[name](problem)
    state = method.start(method.problem.first(seed))
    run = jax.jit(method.run).lower(state, jnp.zeros(())).compile()
    jax.block_until_ready(run(state, jnp.zeros(())))  # the first call is slower than others
    look = jax.jit(lambda params: (method.problem.value(params), method.problem.error(params)))
    curve = _Curve(look, seconds)
    curve.add(0.0, 0, state[0])
    elapsed, steps = 0.0, 0
    while elapsed < seconds and curve.finite:
        begun = time.perf_counter()
        state = run(state, jnp.asarray(min(1.0, elapsed / seconds)))
        jax.block_until_ready(state)
        elapsed, steps = elapsed + time.perf_counter() - begun, steps + method.steps
        curve.add(elapsed, steps, state[0])
    return curve.rows


def train_with_scipy(problem, name, seed, seconds):
    """The same with ``scipy.optimize.least_squares``, with the Jacobian of JAX."""
    import scipy.optimize

    flat, unravel = ravel_pytree(problem.first(seed))
    residuals = jax.jit(lambda w: problem.residuals(unravel(w)))
    # Column by column, by products with the whole batch: what its users would write.
    jacobian = jax.jit(jax.jacfwd(lambda w: problem.residuals(unravel(w))))
    look = jax.jit(lambda w: (problem.value(unravel(w)), problem.error(unravel(w))))
    jax.block_until_ready((residuals(flat), jacobian(flat)))
    curve = _Curve(look, seconds)
    curve.add(0.0, 0, flat)
    spent, begun, steps = [0.0], [time.perf_counter()], [0]

    def jac(w):  # one call for each step
        spent[0] += time.perf_counter() - begun[0]
        steps[0] += 1
        curve.add(spent[0], steps[0], jnp.asarray(w))
        if spent[0] > seconds:
            raise TimeoutError
        begun[0] = time.perf_counter()
        return np.asarray(jacobian(w))

    options = {"ftol": 1e-15, "xtol": 1e-15, "gtol": 1e-15, "x_scale": "jac", "max_nfev": 10**9}
    try:
        fn = lambda w: np.asarray(residuals(w))
        scipy.optimize.least_squares(fn, np.asarray(flat), jac, method=SCIPY[name], **options)
    except TimeoutError:
        pass
    return curve.rows


class _Curve:
    """Rows of seconds, steps, objective and error, at times that are even on a logarithmic axis."""

    def __init__(self, look, seconds):
        self.look, self.rows, self.finite = look, [], True
        self.marks = [0.0, *np.geomspace(seconds / 100, seconds, 40)]

    def add(self, elapsed, steps, params):
        if not self.marks or elapsed < self.marks[0]:
            return
        value, error = (float(x) for x in self.look(params))
        self.rows.append([round(elapsed, 4), steps, value, error])
        self.marks = [mark for mark in self.marks if mark > elapsed]
        self.finite = bool(np.isfinite(value))
