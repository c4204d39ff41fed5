"""Settings of the tests of the bench."""

import jax
import pytest

from proxlin.bench import methods


@pytest.fixture(autouse=True)
def ordinary_promotion():
    """Optax's own optimizers count on it, and so may tasks of users."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture
def new_methods(monkeypatch):
    """A way to add methods to the table, which the next test will not find."""
    yield lambda name, method: monkeypatch.setitem(methods.METHODS, name, method)
    methods._build.cache_clear()
