"""A physics-informed network for Poisson's equation in two dimensions.

    python examples/poisson.py [--seconds 60] [--seeds 0 1 2] [--output runs/poisson]

On the unit square, -laplacian(u) = 2 pi^2 sin(pi x) sin(pi y) with u = 0 on the boundary. The
objective is a sum of two terms, the equation at points inside and the value at points on the
boundary.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import precision
from precision import along, network

import proxlin

INSIDE, SIDE = 300, 16


def solution(x):
    return jnp.sin(jnp.pi * x[:, :1]) * jnp.sin(jnp.pi * x[:, 1:])


def equation(params, x):
    """The negative Laplacian of the network."""
    u = lambda x: network(params, x)
    return -(along(along(u, 0), 0)(x) + along(along(u, 1), 1)(x))


def boundary():
    """Points around the square, the corners among them."""
    t = np.arange(SIDE) / SIDE
    low, high = np.zeros(SIDE), np.ones(SIDE)
    sides = [(t, low), (high, t), (1 - t, high), (low, 1 - t)]
    return jnp.asarray(np.concatenate([np.stack(side, axis=1) for side in sides]))


def problem():
    inside = precision.spread(INSIDE, (0.0, 0.0), (1.0, 1.0))
    edge = boundary()
    line = jnp.linspace(0.0, 1.0, 101)
    points = jnp.stack(jnp.meshgrid(line, line), axis=-1).reshape(-1, 2)
    return precision.Problem(
        name="poisson",
        title=f"2-d Poisson, tanh network 2-32-32-1, {INSIDE} + {len(edge)} points, float64",
        objective=proxlin.Sum(
            proxlin.Term(equation, proxlin.Squared()),
            proxlin.Term(network, proxlin.Squared(), weight=100.0),
        ),
        inputs=(inside, edge),
        targets=(2 * jnp.pi**2 * solution(inside), jnp.zeros((len(edge), 1))),
        sizes=(2, 32, 32, 1),
        points=points,
        solution=solution(points),
    )


if __name__ == "__main__":
    precision.main(problem(), seconds=60)
