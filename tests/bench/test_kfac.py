"""What the adapter to kfac-jax rejects, with or without kfac-jax; the rest is in tests/rivals."""

from __future__ import annotations

import sys
import types

import pytest

import proxlin
from proxlin.bench import models
from proxlin.bench.errors import UsageError
from proxlin.bench.rivals.kfac import kfac

IMAGE = (8, 8, 1)


def test_what_to_run_without_kfac_jax(monkeypatch):
    monkeypatch.setitem(sys.modules, "kfac_jax", None)
    with pytest.raises(UsageError, match="cannot be imported here: run `make rivals`"):
        kfac(models.mlp(IMAGE, 10), proxlin.Logistic(), IMAGE, 0.1)


def test_what_to_run_with_another_jax(monkeypatch):
    monkeypatch.setitem(sys.modules, "kfac_jax", types.ModuleType("kfac_jax"))
    monkeypatch.setattr("jax.__version_info__", (0, 10, 2))
    with pytest.raises(UsageError, match=r"kfac-jax does not work with JAX .*: run `make rivals`"):
        kfac(models.mlp(IMAGE, 10), proxlin.Logistic(), IMAGE, 0.1)


def test_other_losses_and_networks_are_rejected():
    with pytest.raises(UsageError, match=r"kfac with Squared\(\): it takes Logistic\(\) only"):
        kfac(models.mlp(IMAGE, 10), proxlin.Squared(), IMAGE, 0.1)
    with pytest.raises(UsageError, match="one label for each example; choose another method"):
        kfac(models.transformer((8, 5), 5), proxlin.Logistic(), (8, 5), 0.1)
    with pytest.raises(UsageError, match="without statistics only"):
        kfac(models.resnet(IMAGE, 10, blocks=(1,)), proxlin.Logistic(), IMAGE, 0.1)
