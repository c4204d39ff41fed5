"""Partial differential equations solved by networks: error against seconds, with rivals.

    python -m benchmarks.pde run                # all that is not on record; then the report
    python -m benchmarks.pde run --methods LM   # the most important part
    python -m benchmarks.pde plan               # how long what is missing takes
    python -m benchmarks.pde report             # benchmarks/results/pde/table.md and errors.png
    python -m benchmarks.pde nist               # benchmarks/results/pde/nist.md: steps, no seconds

``--problems``, ``--methods``, ``--seeds`` and ``--seconds`` choose. A run that has ended is at once
a line of ``benchmarks/results/pde/<problem>.jsonl``, and is not run again when the command is.
Compilation and evaluation are off the clock. Everything is in double precision, except for methods
that say otherwise.
"""

import os

# Threads of LAPACK that wait for each other take seconds where the machine is busy. This must come
# before JAX loads it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax

jax.config.update("jax_enable_x64", True)
