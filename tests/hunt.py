"""Differential testing: directions against dense references, over everything that can be combined.

``python -m tests.hunt --cases 10000 --seed 0`` draws configurations (loss, subproblem, solver,
dtype, ``jit``, sequences, sums, chunks, parts of the batch) and for each a number of problems
(gamma from 1e-8 to 1e8, condition numbers to 1e6, weights with zeros, tiny and huge ones). A case
is a failure if the status says OK and the direction is further from the reference than rounding
allows; or if it says INEXACT and the direction does not descend, or is longer than a gradient step.

The bound. The direction solves (G + I/gamma) d = grad. Rounding changes grad by about eps S, S the
sum of |J_i| (|g_i| + 1) over examples (a gradient is a difference of numbers of about one), and G
by eps L, L the sum of |J_i|^2 |H_i|; the inverse enlarges this by at most
a = 1 / (least eigenvalue of G + 1/gamma), so that

    |error| / |d| <= c eps a (S / |d| + L)

with a constant c that grows with the number of operations, here 40 + 4 p. Conjugate gradients stop
at a relative residual r of at least 10 eps: r a S / |d| more in the primal. In the dual the
residual is one of M* s, and |M (I/gamma + M* M)^-1| <= sqrt(gamma) / 2 takes it to the direction:
r sqrt(1 + gamma L) gamma S / |d|. An exact solution that is OK has an error of at most one whatever
the bound: the status is to tell where rounding decides.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import random
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import proxlin
from proxlin import Status
from tests import cases


def pseudo_huber(f, y):
    """A Hessian with equal eigenvalues where outputs are equally far from their targets."""
    return jnp.sum(jnp.sqrt(1 + (f - y) ** 2) - 1)


def softmax_cross_entropy(f, y):
    return jax.nn.logsumexp(f) - jnp.sum(f * y)


def singular(f, y):
    return jax.nn.softplus(jnp.sum(f) - jnp.sum(y))


LOSSES = {
    "squared": proxlin.Squared(),
    "logistic": proxlin.Logistic(),
    "binary": proxlin.BinaryLogistic(),
    "sparsemax": proxlin.Sparsemax(),
    "huber": proxlin.FromFunction(pseudo_huber),
    "softmax": proxlin.FromFunction(softmax_cross_entropy),
    "singular": proxlin.FromFunction(singular),
}
SUBPROBLEMS = {"dual": proxlin.dual_quadratic, "primal": proxlin.primal_quadratic}
SOLVERS = {
    "cg0": proxlin.CG(0),
    "cg2": proxlin.CG(2),
    "cg8": proxlin.CG(8),
    "cg300": proxlin.CG(300),
    "multishift": proxlin.MultiShiftCG(4),
    "cholesky": proxlin.Cholesky(),
    "rows": proxlin.Cholesky(independent=True),
    "blocks": proxlin.Cholesky(independent=True, max_elements=60),
    "columns": proxlin.Cholesky(max_elements=10),
}


@dataclasses.dataclass(frozen=True)
class Config:
    losses: tuple[str, ...]
    subproblem: str
    solver: str
    dtype: str
    jit: bool
    m: int
    k: int
    hidden: int  # 0: a linear model
    sequence: int  # 0: none
    weighted: bool
    part: int  # curvature from so many examples; 0: all
    chunk: int  # 0: none


def draw_config(rng: random.Random) -> Config:
    solver = rng.choice(list(SOLVERS))
    m = rng.choice([1, 3, 8, 33])
    config = Config(
        losses=tuple(rng.choice(list(LOSSES)) for _ in range(rng.choice([1, 1, 1, 2]))),
        subproblem=rng.choice(list(SUBPROBLEMS)),
        solver=solver,
        dtype=rng.choice(["float32", "float64"]),
        jit=rng.random() < 0.9,
        m=m,
        k=rng.choice([1, 2, 4]),
        hidden=rng.choice([0, 0, 3]),
        sequence=rng.choice([0, 0, 0, 2]),
        weighted=rng.random() < 0.6,
        part=rng.choice([0, 0, max(1, m // 3)]),
        chunk=rng.choice([0, 0, 0, 2]),
    )
    classes = {"logistic", "sparsemax", "softmax"} & set(config.losses)
    return dataclasses.replace(config, k=max(config.k, 2)) if classes else config


def network(params, inputs):
    """Linear, or one hidden layer; a number and an empty leaf among the parameters."""
    hidden = inputs
    if "w1" in params:
        hidden = jnp.tanh(inputs @ params["w1"])
    scale = jnp.broadcast_to(1 + params["number"], (1,) * inputs.ndim)
    return scale * (hidden @ params["w2"]) + jnp.sum(params["empty"])


def draw_problem(config: Config, seed: int):
    """Parameters, inputs, targets, weights and gamma in float64, then rounded to the dtype."""
    rng = np.random.default_rng(seed)
    features, examples = 4, (config.m, config.sequence) if config.sequence else (config.m,)
    params = {"number": rng.normal(), "empty": np.zeros((0, 2))}
    width = config.hidden or features
    if config.hidden:
        params["w1"] = rng.normal(size=(features, width)) / 2
    params["w2"] = rng.normal(size=(width, config.k)) / np.sqrt(width)
    scales = np.logspace(0, -rng.uniform(0, 3), features)  # squared in G
    terms = []
    for name in config.losses:
        x = rng.normal(size=(*examples, features)) * scales
        if name in ("logistic", "sparsemax"):
            y = rng.integers(0, config.k, examples)
        elif name == "softmax":
            y = np.eye(config.k)[rng.integers(0, config.k, examples)]
        elif name == "binary":
            y = rng.uniform(size=(*examples, config.k))
        else:
            y = rng.normal(size=(*examples, config.k))
        terms.append((x, y, _weights(rng, examples) if config.weighted else None))
    dtype = np.dtype(config.dtype)
    floats = lambda a: a if a is None or np.asarray(a).dtype.kind in "iu" else np.asarray(a, dtype)
    params = {name: floats(value) for name, value in params.items()}
    cast = [tuple(floats(a) for a in term) for term in terms]
    return params, cast, float(dtype.type(10 ** rng.uniform(-8, 8)))


def _weights(rng, examples):
    shape = examples  # tokens too, where there are some
    weights = rng.uniform(0.1, 1, size=shape)
    kind = rng.integers(4)
    if kind == 1:
        weights = weights * (rng.uniform(size=shape) < 0.5)
    if kind == 2:
        weights = np.exp(3 * rng.normal(size=shape))
    if not weights.any():
        weights.flat[0] = 1
    return weights * 10 ** rng.choice([-25.0, 0.0, 0.0, 30.0])


@functools.lru_cache(maxsize=4)
def compiled(config: Config):
    """The direction, and dense gradients, Jacobians and Hessians, of all problems of a kind."""
    losses = [LOSSES[name] for name in config.losses]
    options: dict[str, Any] = {
        "subproblem": SUBPROBLEMS[config.subproblem],
        "solver": SOLVERS[config.solver],
        "curvature_size": config.part or None,
        "chunk_size": config.chunk or None,
    }
    several = len(losses) > 1
    if several:
        terms = [proxlin.Term(network, loss, weight=1.0 + 2 * i) for i, loss in enumerate(losses)]
        fn = proxlin.value_and_direction(proxlin.Sum(*terms), **options)
    else:
        fn = proxlin.value_and_direction(network, losses[0], **options)

    def direction(params, terms, gamma):
        x, y, w = zip(*terms, strict=True) if several else terms[0]
        if several and w[0] is None:
            w = None
        (_, info), d = fn(params, x, y, gamma=gamma, weights=w)
        return d, info.slope, info.status, info.residual, info.grad

    @jax.jit
    def pieces(flat, terms):
        out = []
        for loss, (x, y) in zip(losses, terms, strict=True):
            at = lambda w, x=x: network(unravel(w), x)
            f = at(flat)
            rows = lambda a, f=f: a.reshape(-1, *a.shape[f.ndim - 1 :])
            single = lambda f, y, loss=loss: loss.value(f[None], y[None])[0]
            g = jax.vmap(jax.grad(single))(rows(f), rows(y))
            # Sparsemax's second derivative is the one that the library documents.
            h = jax.vmap(lambda f, y, loss=loss: loss.hessian(f[None], y[None])[0])(
                rows(f), rows(y)
            )
            out.append((rows(jax.jacobian(at)(flat)), g, h))
        return out

    _, unravel = ravel_pytree(
        jax.tree.map(lambda a: jnp.zeros(np.shape(a)), draw_problem(config, 0)[0])
    )
    return jax.jit(direction) if config.jit else direction, pieces


def _shares(config, terms):
    """For each term the weights of all rows, and those of the part that curvature is from."""
    out = []
    for number, (x, _, given) in enumerate(terms):
        w = np.ones(x.shape[:-1]) if given is None else np.asarray(given, np.float64)
        w = w / w.max() / np.sum(w / w.max())
        part = w
        if config.part and config.part < config.m:
            part = cases.part_of_batch(w, config.part)
        weight = 1.0 + 2 * number if len(terms) > 1 else 1.0
        out.append((weight * w.ravel(), weight * part.ravel()))
    return out


class Dense:
    """Gradient and Gauss-Newton matrix of a problem in float64, and their sizes."""

    def __init__(self, config, pieces, params, terms):
        up = lambda a: a if a.dtype.kind in "iu" else a.astype(np.float64)
        with jax.enable_x64(True):
            flat = ravel_pytree(jax.tree.map(lambda a: up(np.asarray(a)), params))[0]
            blocks = jax.device_get(pieces(flat, [(up(x), up(y)) for x, y, _ in terms]))
        p = flat.size
        self.grad, self.matrix, self.root = np.zeros(p), np.zeros((p, p)), []
        self.size, self.stretch = 0.0, 0.0
        for (j, g, h), (w, part) in zip(blocks, _shares(config, terms), strict=True):
            self.grad += np.einsum("n,nkp,nk->p", w, j, g)
            self.matrix += np.einsum("n,nkp,nkl,nlq->pq", part, j, h, j)
            lengths = np.linalg.norm(j, axis=(1, 2))
            self.size += np.sum(w * lengths * (np.linalg.norm(g, axis=1) + 1))
            self.stretch += np.sum(part * lengths**2 * np.linalg.norm(h, 2, axis=(1, 2)))

    def solve(self, gamma):
        matrix = self.matrix.astype(np.longdouble) + np.eye(len(self.matrix)) / np.longdouble(gamma)
        return _cholesky_solve(matrix, self.grad.astype(np.longdouble)).astype(np.float64)

    def truncated(self, gamma, steps, dual):
        """Conjugate gradients in extended precision, in the parameters."""
        shift = 1 / np.longdouble(gamma)
        matrix, b = self.matrix.astype(np.longdouble), self.grad.astype(np.longdouble)
        if steps == 0:
            return (b / shift).astype(np.float64)
        # In the dual x = M* z: the same iteration in the inner product of G, for G z.
        inner = (lambda a, c: a @ (matrix @ c)) if dual else (lambda a, c: a @ c)
        z, r = np.zeros_like(b), b.copy()
        q, rr = r.copy(), inner(r, r)
        for _ in range(steps):
            aq = shift * q + matrix @ q
            curvature = inner(q, aq)
            if not curvature > 0 or rr == 0:
                break
            z, r = z + rr / curvature * q, r - rr / curvature * aq
            new = inner(r, r)
            q, rr = r + new / rr * q, new
        return ((b - matrix @ z) / shift if dual else z).astype(np.float64)


def _cholesky_solve(a, b):
    n = len(b)
    lower = np.zeros_like(a)
    for i in range(n):
        lower[i, i] = np.sqrt(a[i, i] - lower[i, :i] @ lower[i, :i])
        lower[i + 1 :, i] = (a[i + 1 :, i] - lower[i + 1 :, :i] @ lower[i, :i]) / lower[i, i]
    y = np.zeros_like(b)
    for i in range(n):
        y[i] = (b[i] - lower[i, :i] @ y[:i]) / lower[i, i]
    x = np.zeros_like(b)
    for i in reversed(range(n)):
        x[i] = (y[i] - lower[i + 1 :, i] @ x[i + 1 :]) / lower[i, i]
    return x


def failure(config: Config, seed: int) -> str | None:
    """What is wrong with one case, or None."""
    direction, pieces = compiled(config)
    params, terms, gamma = draw_problem(config, seed)
    on_device = jax.tree.map(jnp.asarray, (params, terms))
    d, slope, status, residual, grad = direction(*on_device, jnp.asarray(gamma, config.dtype))
    dense = Dense(config, pieces, params, terms)
    flat = lambda tree: np.asarray(ravel_pytree(tree)[0], np.float64)
    d, grad, slope, status = flat(d), flat(grad), float(slope), Status(int(status))
    eps = float(np.finfo(config.dtype).eps)
    c = 40 + 4 * len(d)
    if not np.linalg.norm(grad - dense.grad) <= c * eps * dense.size:
        return f"gradient off by {np.linalg.norm(grad - dense.grad):.1e}, {status.name}"
    if status in (Status.NON_FINITE, Status.BAD_VALUE, Status.ASCENT):
        # Nothing is wrong with the problems themselves; what cannot be solved must say so.
        harmless = eps * gamma * dense.stretch > 0.01 or eps * gamma * dense.size > 1e30
        return (
            None if status == Status.ASCENT and harmless else f"{status.name} at gamma {gamma:.1e}"
        )
    longest = 1.1 * gamma * np.linalg.norm(dense.grad) + c * eps * gamma * dense.size
    if not slope >= 0 or not np.linalg.norm(d) <= longest:
        return f"slope {slope:.1e}, length {np.linalg.norm(d):.1e}, {status.name}"
    if status == Status.INEXACT:
        return None
    return _compare(config, dense, d, gamma, eps, c, float(residual))


def _compare(config, dense, d, gamma, eps, c, residual) -> str | None:
    solver, dual = SOLVERS[config.solver], config.subproblem == "dual"
    steps = getattr(solver, "max_steps", None)
    least = max(0.0, float(np.linalg.eigvalsh(dense.matrix)[0])) + 1 / gamma
    want = dense.solve(gamma)
    length = max(np.linalg.norm(want), 1e-150)
    condition = 1 + gamma * dense.stretch
    exact = steps is None or residual <= 100 * eps
    if steps is not None and not exact and steps < 300:
        want = dense.truncated(gamma, steps, dual)
        length = max(np.linalg.norm(want), 1e-150)
        if steps > 2 or 100 * c * eps * condition**2 > 1:
            return None  # rounding changes the course of the iteration
        bound = 100 * c * eps * (1 + condition**2)
    else:
        bound = c * eps / least * (dense.size / length + dense.stretch)
        if steps is not None and dual:
            bound += c * max(residual, eps) * np.sqrt(condition) * gamma * dense.size / length
        elif steps is not None:
            bound += c * max(residual, eps) / least * dense.size / length
        if exact:
            bound = min(bound, 1.0)
    error = np.linalg.norm(d - want) / length
    if error <= bound:
        return None
    return f"off by {error:.1e}, bound {bound:.1e}, gamma {gamma:.1e}, residual {residual:.1e}"


def hunt(cases: int, seed: int, per_config: int = 50, seconds: float = float("inf")):
    """Yields (config, seed of the case, what is wrong or None)."""
    rng, done, start = random.Random(seed), 0, time.monotonic()
    while done < cases and time.monotonic() - start < seconds:
        config = draw_config(rng)
        for _ in range(min(per_config if config.jit else 2, cases - done)):
            case = rng.randrange(2**31)
            yield config, case, failure(config, case)
            done += 1
        jax.clear_caches()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--per-config", type=int, default=50)
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    done = failed = 0
    for config, case, wrong in hunt(given.cases, given.seed, given.per_config, given.seconds):
        done += 1
        if wrong:
            failed += 1
            print(f"{wrong}\n    failure({config}, {case})", flush=True)
    print(f"seed {given.seed}, jax {jax.__version__}: {done - failed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
