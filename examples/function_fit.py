"""A network fitted to a function of one variable, to many digits.

    python examples/function_fit.py [--seconds 30] [--seeds 0 1 2] [--output runs/function_fit]

sin(10 x) / (1 + 4 x^2) on [-1, 1], from 200 values without noise; the error is measured between
the points.
"""

from __future__ import annotations

import jax.numpy as jnp
import precision

import proxlin

POINTS = 200


def solution(x):
    return jnp.sin(10 * x) / (1 + 4 * x**2)


def problem():
    x = jnp.linspace(-1.0, 1.0, POINTS)[:, None]
    points = jnp.linspace(-1.0, 1.0, 3001)[:, None]
    return precision.Problem(
        name="function_fit",
        title=f"Function of one variable, tanh network 1-24-24-1, {POINTS} points, float64",
        objective=proxlin.Sum(proxlin.Term(precision.network, proxlin.Squared())),
        inputs=(x,),
        targets=(solution(x),),
        sizes=(1, 24, 24, 1),
        points=points,
        solution=solution(points),
    )


if __name__ == "__main__":
    precision.main(problem(), seconds=30)
