"""Versions, machine and commit, for the records."""

from __future__ import annotations

import datetime
import functools
import importlib.metadata
import os
import pathlib
import platform
import shlex
import subprocess
import sys
from typing import Any

import jax

import proxlin

PACKAGES = ("jax", "jaxlib", "optax", "numpy", "orbax-checkpoint", "scikit-learn", "kfac-jax")


def environment() -> dict[str, Any]:
    """The environment that a record was made in.

    Example:
        >>> sorted(environment())[:4]
        ['command', 'commit', 'cores', 'cpu']
    """
    return {
        "proxlin": proxlin.__version__,
        "python": platform.python_version(),
        **versions(),
        **machine(),
        "commit": commit(),
        "date": datetime.date.today().isoformat(),
        "command": command(),
    }


def versions() -> dict[str, str]:
    """Versions of the installed packages that the results depend on."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """The machine."""
    info = pathlib.Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "device": jax.devices()[0].device_kind,
        "devices": jax.device_count(),
        "cpu": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        # if far above the number of cores, other processes ran too and timings mean little
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
    }


def command() -> str:
    """The command line, with the bare name of the program."""
    program = pathlib.Path(sys.argv[0]).name
    return shlex.join(["proxlin" if program == "__main__.py" else program, *sys.argv[1:]])


def commit() -> str | None:
    """The commit that this file was run from, if it was run from a clone."""
    here = pathlib.Path(__file__).resolve()
    git = functools.partial(
        subprocess.run, cwd=here.parent, capture_output=True, text=True, check=False
    )
    try:
        root = git(["git", "rev-parse", "--show-toplevel"]).stdout.strip()
        # An installed copy may lie in the repository of another project, which says nothing.
        if not root or pathlib.Path(root) / "src/proxlin/bench/environment.py" != here:
            return None
        return git(["git", "describe", "--always", "--dirty"]).stdout.strip()
    except OSError:  # no git
        return None
