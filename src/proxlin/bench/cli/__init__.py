"""``proxlin``: the bench on the command line."""

from __future__ import annotations

import os

import jax

from proxlin.bench.cli.app import app as app
from proxlin.bench.data.places import cache

# `proxlin --help` lists the commands in this order.
# isort: off
from proxlin.bench.cli import training as training
from proxlin.bench.cli import results as results
from proxlin.bench.cli import data as data
# isort: on


def main() -> None:
    """The entry point. Compiled programs are cached: most runs compile the same ones."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(cache() / "xla"))
    app()
