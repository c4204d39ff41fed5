"""Partial differential equations solved by networks: error against seconds, with rivals.

    python -m benchmarks.pde run [--problems poisson2d ...] [--methods ...] [--seconds 60]
    python -m benchmarks.pde report    # benchmarks/results/pde/table.md and errors.png

A run that has ended is at once a line of ``benchmarks/results/pde/<problem>.jsonl``, and is not run
again when the command is. Compilation and evaluation are off the clock. Everything is in double
precision, except for methods that say otherwise.
"""

import os

# Threads of LAPACK that wait for each other take seconds where the machine is busy. This must come
# before JAX loads it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax

jax.config.update("jax_enable_x64", True)
