"""NIST's 27 reference problems of nonlinear regression, with certified solutions.

The files are those of the Statistical Reference Datasets (StRD) of the National Institute of
Standards and Technology, which are in the public domain: two starting points, the certified
parameters and the data of each problem. Its formula stands in the header of its file.
"""

from __future__ import annotations

import pathlib
import re
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

FOLDER = pathlib.Path(__file__).parent


class Problem(NamedTuple):
    starts: np.ndarray  # (2, parameters)
    certified: np.ndarray
    inputs: np.ndarray
    targets: np.ndarray


def _exponentials(b, x):
    return b[0] * jnp.exp(-b[1] * x) + b[2] * jnp.exp(-b[3] * x) + b[4] * jnp.exp(-b[5] * x)


def _gauss(b, x):
    peak = lambda height, at, width: height * jnp.exp(-((x - at) ** 2) / width**2)
    return b[0] * jnp.exp(-b[1] * x) + peak(*b[2:5]) + peak(*b[5:8])


def _cubics(b, x):
    return (b[0] + x * (b[1] + x * (b[2] + x * b[3]))) / (1 + x * (b[4] + x * (b[5] + x * b[6])))


def _enso(b, x):
    wave = lambda cosine, sine, period: (
        cosine * jnp.cos(2 * jnp.pi * x / period) + sine * jnp.sin(2 * jnp.pi * x / period)
    )
    return b[0] + wave(b[1], b[2], 12) + wave(b[4], b[5], b[3]) + wave(b[7], b[8], b[6])


def _chwirut(b, x):
    return jnp.exp(-b[0] * x) / (b[1] + b[2] * x)


MODELS = {
    "Bennett5": lambda b, x: b[0] * (b[1] + x) ** (-1 / b[2]),
    "BoxBOD": lambda b, x: b[0] * (1 - jnp.exp(-b[1] * x)),
    "Chwirut1": _chwirut,
    "Chwirut2": _chwirut,
    "DanWood": lambda b, x: b[0] * x ** b[1],
    "ENSO": _enso,
    "Eckerle4": lambda b, x: b[0] / b[1] * jnp.exp(-0.5 * ((x - b[2]) / b[1]) ** 2),
    "Gauss1": _gauss,
    "Gauss2": _gauss,
    "Gauss3": _gauss,
    "Hahn1": _cubics,
    "Kirby2": lambda b, x: (b[0] + x * (b[1] + x * b[2])) / (1 + x * (b[3] + x * b[4])),
    "Lanczos1": _exponentials,
    "Lanczos2": _exponentials,
    "Lanczos3": _exponentials,
    "MGH09": lambda b, x: b[0] * (x**2 + x * b[1]) / (x**2 + x * b[2] + b[3]),
    "MGH10": lambda b, x: b[0] * jnp.exp(b[1] / (x + b[2])),
    "MGH17": lambda b, x: b[0] + b[1] * jnp.exp(-x * b[3]) + b[2] * jnp.exp(-x * b[4]),
    "Misra1a": lambda b, x: b[0] * (1 - jnp.exp(-b[1] * x)),
    "Misra1b": lambda b, x: b[0] * (1 - (1 + b[1] * x / 2) ** (-2)),
    "Misra1c": lambda b, x: b[0] * (1 - (1 + 2 * b[1] * x) ** (-0.5)),
    "Misra1d": lambda b, x: b[0] * b[1] * x / (1 + b[1] * x),
    "Nelson": lambda b, x: b[0] - b[1] * x[:, 0] * jnp.exp(-b[2] * x[:, 1]),  # of log y
    "Rat42": lambda b, x: b[0] / (1 + jnp.exp(b[1] - b[2] * x)),
    "Rat43": lambda b, x: b[0] / (1 + jnp.exp(b[1] - b[2] * x)) ** (1 / b[3]),
    "Roszman1": lambda b, x: b[0] - b[1] * x - jnp.arctan(b[2] / (x - b[3])) / jnp.pi,
    "Thurber": _cubics,
}


def read(name: str) -> Problem:
    lines = (FOLDER / f"{name}.dat").read_text().splitlines()
    rows = [re.findall(r"=\s+(.+)", line) for line in lines if re.match(r"\s+b\d+\s*=", line)]
    values = np.array([row[0].split() for row in rows], float)
    first = max(i for i, line in enumerate(lines) if line.startswith("Data:"))
    data = np.array([line.split() for line in lines[first + 1 :] if line.strip()], float)
    y, x = data[:, 0], data[:, 1:]
    if name == "Nelson":
        y = np.log(y)
    return Problem(values[:, :2].T, values[:, 2], x if x.shape[1] > 1 else x[:, 0], y)


def digits(params: np.ndarray, certified: np.ndarray) -> float:
    """How many digits agree, at the parameter where the fewest do; at most eleven."""
    error = np.max(np.abs(params - certified) / np.abs(certified))
    return float(np.clip(-np.log10(max(error, 1e-11)), 0, 11)) if np.isfinite(error) else 0.0
