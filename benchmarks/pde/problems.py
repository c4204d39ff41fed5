"""Ten problems, with the networks and numbers of points of those who set the marks.

Poisson in 2, 5 and 10 dimensions and heat in 1 and 4 are those of Dangel, Mueller and Zeinhofer
(2024), "Kronecker-factored approximate curvature for physics-informed neural networks": one hidden
layer of 64 neurons. Burgers, Allen-Cahn and Helmholtz are the usual ones.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import proxlin
from benchmarks.pde import reference
from benchmarks.pde.networks import along, first_params, laplacian, perceptron

# In the plane points gather at the boundary, which is worth a digit. In many dimensions most points
# lie near the boundary as it is.
GATHER = {2: 0.5}


@dataclasses.dataclass(frozen=True)
class Problem:
    """A sum of terms with its points, the first parameters, and the solution to compare with."""

    name: str
    objective: proxlin.Sum
    inputs: tuple
    targets: tuple
    first: Callable[[int], Any]  # seed -> parameters
    network: Callable[[Any, jax.Array], jax.Array]
    points: jax.Array
    solution: jax.Array
    candidates: jax.Array | None = None  # for points inside, of an equation without a source

    def chosen(self, params, key):
        """As many points inside as before, those with a large residual more often than others.

        Drawn without replacement, with a weight of one plus the residual relative to its mean.
        """
        pool = self.candidates
        residuals = jnp.abs(self.objective.terms[0].model(params, pool)).sum(axis=1)
        weights = 1 + residuals / jnp.mean(residuals)
        noise = jax.random.gumbel(key, weights.shape, weights.dtype)
        return pool[jax.lax.top_k(jnp.log(weights) + noise, len(self.inputs[0]))[1]]

    def error(self, params):
        """The relative L2 error."""
        difference = self.network(params, self.points.astype(jax.tree.leaves(params)[0].dtype))
        difference = difference.astype(self.solution.dtype) - self.solution
        return jnp.linalg.norm(difference) / jnp.linalg.norm(self.solution)

    def value(self, params):
        """The objective, for methods that want a gradient."""
        total = 0.0
        for term, x, y in zip(self.objective.terms, self.inputs, self.targets, strict=True):
            total += term.weight * jnp.mean(term.loss.value(term.model(params, x), y))
        return total

    def residuals(self, params):
        """The residuals as one vector, half of whose squared length is the objective."""
        parts = [
            (term.weight / len(x)) ** 0.5 * (term.model(params, x) - y).ravel()
            for term, x, y in zip(self.objective.terms, self.inputs, self.targets, strict=True)
        ]
        return jnp.concatenate(parts)

    def cast(self, dtype):
        """The same in another precision; the error is still measured in double."""
        cast = lambda tree: jax.tree.map(lambda leaf: leaf.astype(dtype), tree)
        return dataclasses.replace(
            self,
            inputs=cast(self.inputs),
            targets=cast(self.targets),
            candidates=cast(self.candidates),
            first=lambda seed: cast(self.first(seed)),
        )


def spread(n, low, high, gather=0.0):
    """Points that fill a box: an additive recurrence (Roberts' sequence).

    They are even, or ``gather`` of the way towards those of Chebyshev, which lie closer to each
    other at the boundary, where what fits between points is worst.
    """
    d = len(low)
    ratio = 2.0
    for _ in range(50):
        ratio = (1 + ratio) ** (1 / (d + 1))
    unit = (0.5 + np.arange(1, n + 1)[:, None] * ratio ** -np.arange(1.0, d + 1)) % 1
    unit = (1 - gather) * unit + gather * (1 - np.cos(np.pi * unit)) / 2
    return np.asarray(low) + unit * (np.asarray(high) - np.asarray(low))


def boundary(n, low, high, axes, gather=0.0):
    """Points on the faces of a box that bound these axes, as many on each face.

    Each face has a sequence of its own: every fourth point of one sequence leaves gaps.
    """
    faces = [(axis, side) for axis in axes for side in (low, high)]
    parts = []
    for number, (axis, side) in enumerate(faces):
        count = n // len(faces) + (number < n % len(faces))
        parts.append(face(count, low, high, axis, side[axis], gather))
    return np.concatenate(parts)


def face(n, low, high, axis, value, gather=0.0):
    """Points that fill one face of a box."""
    x = spread(n, np.delete(low, axis), np.delete(high, axis), gather)
    return np.insert(x, axis, value, axis=1)


def problem(name, equation, source, known, points, sizes, test, solution, weight=100.0):
    """A problem of one equation inside and one set of known values."""
    as_column = lambda y: jnp.asarray(y).reshape(-1, 1)
    inside, edge = (jnp.asarray(x) for x in points)
    return Problem(
        name=name,
        objective=proxlin.Sum(
            proxlin.Term(equation, proxlin.Squared()),
            proxlin.Term(perceptron, proxlin.Squared(), weight=weight),
        ),
        inputs=(inside, edge),
        targets=(as_column(source(inside)), as_column(known(edge))),
        first=functools.partial(first_params, sizes),
        network=perceptron,
        points=jnp.asarray(test),
        solution=as_column(solution(test)),
    )


def poisson(dim, inside, edge, solution, source):
    """-laplacian(u) = f on the unit cube, with u known on its boundary."""
    axes, box, gather = tuple(range(dim)), ((0.0,) * dim, (1.0,) * dim), GATHER.get(dim, 0.0)
    test = np.random.default_rng(1).uniform(*box, (10_000, dim))
    return problem(
        f"poisson{dim}d",
        lambda params, x: -laplacian(lambda x: perceptron(params, x), axes)(x),
        source,
        solution,
        (spread(inside, *box, gather), boundary(edge, *box, axes, gather)),
        (dim, 64, 1),
        test,
        solution,
    )


def heat(dim, inside, edge, solution):
    """u_t = laplacian(u) / 4 on the unit cube; the first column of x is time."""
    axes, box = tuple(range(1, dim + 1)), ((0.0,) * (dim + 1), (1.0,) * (dim + 1))
    gather = GATHER.get(dim + 1, 0.0)
    start = face(edge // 2, *box, axis=0, value=0.0, gather=gather)
    sides = boundary(edge // 2, *box, axes, gather)
    test = np.random.default_rng(1).uniform(*box, (10_000, dim + 1))

    def equation(params, x):
        u = lambda x: perceptron(params, x)
        return along(u, 0)(x) - laplacian(u, axes)(x) / 4

    return problem(
        f"heat{dim}d",
        equation,
        lambda x: jnp.zeros(len(x)),
        solution,
        (spread(inside, *box, gather), np.concatenate([start, sides])),
        (dim + 1, 64, 1),
        test,
        solution,
    )


def burgers(name, nu, gather):
    """u_t + u u_x = nu u_xx on [-1, 1] x [0, 1], u = -sin(pi x) at the start.

    Points gather at the front: they are even in s, and x = sinh(gather s) / sinh(gather). A third
    of the candidates for later ones is even in x.
    """
    bend = lambda s: np.sinh(gather * s) / np.sinh(gather)
    even, inside, candidates = (spread(n, (-1.0, 0.0), (1.0, 1.0)) for n in (4000, 2500, 8000))
    inside[:, 0], candidates[:, 0] = bend(inside[:, 0]), bend(candidates[:, 0])
    start = np.stack([bend(np.linspace(-1, 1, 120)), np.zeros(120)], axis=1)
    ends = np.array([(x, t) for x in (-1.0, 1.0) for t in np.linspace(0, 1, 40)])
    grid = np.meshgrid(np.linspace(-1, 1, 201), np.linspace(0, 1, 51))
    solution = functools.partial(reference.burgers, nu=nu)

    def equation(params, x):
        u = lambda x: perceptron(params, x)
        return along(u, 1)(x) + u(x) * along(u, 0)(x) - nu * laplacian(u, (0,))(x)

    made = problem(
        name,
        equation,
        lambda x: jnp.zeros(len(x)),
        solution,
        (inside, np.concatenate([start, ends])),
        (2, 16, 16, 16, 1),
        np.stack(grid, axis=-1).reshape(-1, 2),
        solution,
    )
    pool = np.concatenate([even, candidates])
    return dataclasses.replace(made, candidates=jnp.asarray(pool))


def allen_cahn():
    """u_t = 1e-4 u_xx + 5 (u - u^3) on [-1, 1] x [0, 1], periodic, from x^2 cos(pi x).

    The network sees sine and cosine of pi x, so that it is periodic.
    """
    inside = spread(2500, (-1.0, 0.0), (1.0, 1.0))
    start = np.stack([np.linspace(-1, 1, 200), np.zeros(200)], axis=1)
    test, values = reference.allen_cahn()

    def network(params, x):
        angle = jnp.pi * x[:, :1]
        return perceptron(
            params, jnp.concatenate([jnp.sin(angle), jnp.cos(angle), x[:, 1:]], axis=1)
        )

    def equation(params, x):
        u = lambda x: network(params, x)
        return along(u, 1)(x) - 1e-4 * laplacian(u, (0,))(x) - 5 * (u(x) - u(x) ** 3)

    return Problem(
        name="allen-cahn",
        objective=proxlin.Sum(
            proxlin.Term(equation, proxlin.Squared()),
            proxlin.Term(network, proxlin.Squared(), weight=100.0),
        ),
        inputs=(jnp.asarray(inside), jnp.asarray(start)),
        targets=(
            jnp.zeros((len(inside), 1)),
            jnp.asarray(start[:, :1] ** 2 * np.cos(np.pi * start[:, :1])),
        ),
        first=functools.partial(first_params, (3, 16, 16, 16, 1)),
        network=network,
        points=jnp.asarray(test),
        solution=jnp.asarray(values)[:, None],
        candidates=jnp.asarray(spread(12_000, (-1.0, 0.0), (1.0, 1.0))),
    )


def helmholtz():
    """laplacian(u) + u = f on [-1, 1]^2, with u = sin(pi x) sin(4 pi y)."""
    box = ((-1.0, -1.0), (1.0, 1.0))
    solution = lambda x: jnp.sin(jnp.pi * x[:, 0]) * jnp.sin(4 * jnp.pi * x[:, 1])

    def equation(params, x):
        u = lambda x: perceptron(params, x)
        return laplacian(u, (0, 1))(x) + u(x)

    test = np.random.default_rng(1).uniform(*box, (10_000, 2))
    return problem(
        "helmholtz",
        equation,
        lambda x: (1 - 17 * jnp.pi**2) * solution(x),
        solution,
        (spread(2000, *box, GATHER[2]), boundary(400, *box, (0, 1), GATHER[2])),
        (2, 24, 24, 1),
        test,
        solution,
        weight=1000.0,
    )


def inverse_heat():
    """An unknown diffusivity: u_t = kappa u_xx, with u known at 60 points inside.

    The parameters are the network and the logarithm of kappa, which is 1 / 4.
    """
    solution = lambda x: jnp.exp(-(jnp.pi**2) * x[:, 0] / 4) * jnp.sin(jnp.pi * x[:, 1])
    box = ((0.0, 0.0), (1.0, 1.0))
    network = lambda params, x: perceptron(params["network"], x)

    def equation(params, x):
        u = lambda x: network(params, x)
        return along(u, 0)(x) - jnp.exp(params["log_kappa"]) * laplacian(u, (1,))(x)

    inside, data = spread(900, *box), spread(60, *box)
    test = np.random.default_rng(1).uniform(*box, (10_000, 2))
    return Problem(
        name="inverse-heat",
        objective=proxlin.Sum(
            proxlin.Term(equation, proxlin.Squared()),
            proxlin.Term(network, proxlin.Squared(), weight=100.0),
        ),
        inputs=(jnp.asarray(inside), jnp.asarray(data)),
        targets=(jnp.zeros((len(inside), 1)), solution(jnp.asarray(data))[:, None]),
        first=lambda seed: {
            "network": first_params((2, 64, 1), seed),
            "log_kappa": jnp.zeros((), jnp.float64),
        },
        network=network,
        points=jnp.asarray(test),
        solution=solution(jnp.asarray(test))[:, None],
    )


def _sines(x):
    return jnp.prod(jnp.sin(jnp.pi * x), axis=1)


def _cosines(x):
    return jnp.sum(jnp.cos(jnp.pi * x), axis=1)


def _products(x):
    """Harmonic: x_1 x_2 + x_3 x_4 + ..."""
    return jnp.sum(x[:, ::2] * x[:, 1::2], axis=1)


def _decaying_sines(x):
    rate = jnp.pi**2 * (x.shape[1] - 1) / 4
    return jnp.exp(-rate * x[:, 0]) * jnp.prod(jnp.sin(jnp.pi * x[:, 1:]), axis=1)


def _sum_of_sines(x):
    return jnp.exp(-x[:, 0]) * jnp.sum(jnp.sin(2 * x[:, 1:]), axis=1)


PROBLEMS = {
    "poisson2d": lambda: poisson(2, 900, 120, _sines, lambda x: 2 * jnp.pi**2 * _sines(x)),
    "heat1d": lambda: heat(1, 900, 120, _decaying_sines),
    "poisson5d": lambda: poisson(5, 3000, 500, _cosines, lambda x: jnp.pi**2 * _cosines(x)),
    "heat4d": lambda: heat(4, 3000, 500, _sum_of_sines),
    "poisson10d": lambda: poisson(10, 3000, 1000, _products, lambda x: jnp.zeros(len(x))),
    "burgers": lambda: burgers("burgers", 0.01, gather=3.0),
    "burgers-sharp": lambda: burgers("burgers-sharp", 0.01 / np.pi, gather=5.0),
    "allen-cahn": allen_cahn,
    "helmholtz": helmholtz,
    "inverse-heat": inverse_heat,
}
