"""Solutions that have no closed form, by quadrature and by a spectral method."""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np


def burgers(points, nu):
    """Cole and Hopf: a quotient of two integrals, by the trapezoidal rule on the real line."""
    eta = np.arange(-25, 25.01, 0.04)
    x, t = np.asarray(points)[:, :1], np.asarray(points)[:, 1:]
    y = x - 2 * np.sqrt(nu * t) * eta
    log_weight = -(eta**2) - np.cos(np.pi * y) / (2 * np.pi * nu)
    weight = np.exp(log_weight - log_weight.max(axis=1, keepdims=True))
    u = -np.sum(np.sin(np.pi * y) * weight, axis=1) / np.sum(weight, axis=1)
    return jnp.asarray(u)


@functools.cache
def allen_cahn(modes=4096, steps=4000):
    """Points and values of u_t = 1e-4 u_xx + 5 (u - u^3), by Fourier modes and splitting.

    Diffusion and reaction are each solved exactly and composed to fourth order (Strang's splitting,
    extrapolated once). The start is periodic with a kink at the ends, which leaves an error of
    about 1e-7.
    """
    coarse, fine = (_split(modes, n) for n in (steps, 2 * steps))
    values = (4 * fine - coarse) / 3
    x = -1 + 2 * np.arange(modes) / modes
    times = np.linspace(0, 1, len(values))
    every = modes // 128
    grid = np.stack(np.meshgrid(x[::every], times), axis=-1).reshape(-1, 2)
    return grid, values[:, ::every].ravel()


def _split(modes, steps, every=20):
    """Values at 21 times, with equal steps."""
    x = -1 + 2 * np.arange(modes) / modes
    u = x**2 * np.cos(np.pi * x)
    dt = 1 / steps
    decay = np.exp(-1e-4 * (np.pi * np.fft.rfftfreq(modes, 1 / modes)) ** 2 * dt)
    half = np.exp(5 * dt)  # of the reaction, over half a step: e^(2 * 5 * dt / 2)
    react = lambda u: u * np.sqrt(half) / np.sqrt(1 + u**2 * (half - 1))
    kept = [u]
    for step in range(1, steps + 1):
        u = react(np.fft.irfft(decay * np.fft.rfft(react(u)), modes))
        if step % (steps // every) == 0:
            kept.append(u)
    return np.stack(kept)
