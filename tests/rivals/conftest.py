"""Tests for an environment of its own (`make test-rivals`): elsewhere there is no kfac-jax."""

import importlib.util

collect_ignore = [] if importlib.util.find_spec("kfac_jax") else ["test_kfac.py"]
