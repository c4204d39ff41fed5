"""A physics-informed network for Burgers' equation, which depends on time.

    python examples/burgers.py [--seconds 60] [--seeds 0 1 2] [--output runs/burgers]

u_t + u u_x = nu u_xx for x in [-1, 1] and t in [0, 1], with nu = 0.1 / pi, u = -sin(pi x) at the
start and u = 0 at both ends. A steep front forms at x = 0. The objective is a sum of three terms:
the equation, the ends, the start. The error is that against the formula of Cole and Hopf, by
quadrature.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import precision
from precision import along, network

import proxlin

NU = 0.1 / np.pi
INSIDE, ENDS, START = 600, 40, 40


def solution(points):
    """Cole and Hopf: a quotient of two integrals of a Gaussian, by Gauss-Hermite quadrature."""
    nodes, weights = np.polynomial.hermite.hermgauss(120)
    x, t = np.asarray(points)[:, :1], np.asarray(points)[:, 1:]
    y = x - 2 * np.sqrt(NU * t) * nodes
    density = weights * np.exp(-np.cos(np.pi * y) / (2 * np.pi * NU))
    u = -np.sum(np.sin(np.pi * y) * density, axis=1) / np.sum(density, axis=1)
    return jnp.asarray(u[:, None])


def equation(params, x):
    """u_t + u u_x - nu u_xx; the columns of x are place and time."""
    u = lambda x: network(params, x)
    return along(u, 1)(x) + u(x) * along(u, 0)(x) - NU * along(along(u, 0), 0)(x)


def problem():
    inside = precision.spread(INSIDE, (-1.0, 0.0), (1.0, 1.0))
    times = np.linspace(0, 1, ENDS // 2)
    ends = jnp.asarray([(x, t) for x in (-1.0, 1.0) for t in times])
    start = jnp.stack([jnp.linspace(-1.0, 1.0, START), jnp.zeros(START)], axis=1)
    grid = jnp.meshgrid(jnp.linspace(-1.0, 1.0, 101), jnp.linspace(0.0, 1.0, 101))
    points = jnp.stack(grid, axis=-1).reshape(-1, 2)
    return precision.Problem(
        name="burgers",
        title=f"Burgers, tanh network 2-24-24-24-1, {INSIDE} + {ENDS} + {START} points, float64",
        objective=proxlin.Sum(
            proxlin.Term(equation, proxlin.Squared()),
            proxlin.Term(network, proxlin.Squared(), weight=10.0),
            proxlin.Term(network, proxlin.Squared(), weight=10.0),
        ),
        inputs=(inside, ends, start),
        targets=(jnp.zeros((INSIDE, 1)), jnp.zeros((ENDS, 1)), solution(start)),
        sizes=(2, 24, 24, 24, 1),
        points=points,
        solution=solution(points),
    )


if __name__ == "__main__":
    precision.main(problem(), seconds=60)
