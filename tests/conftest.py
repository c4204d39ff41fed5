"""Settings of all tests: double precision at hand, no silent promotion, eight devices."""

import os

# Most of the time of small tests would go into the code generation of XLA:CPU. This makes it some
# eight times faster, also in the processes that tests start; what is computed stays the same, as
# passes on HLO are not affected.
os.environ["XLA_FLAGS"] = " ".join(
    [
        os.environ.get("XLA_FLAGS", ""),
        "--xla_backend_optimization_level=0",
        "--xla_cpu_use_fusion_emitters=false",
        "--xla_cpu_parallel_codegen_split_count=1",
    ]
)

import importlib.util
import pkgutil

import jax
import jaxtyping._typeguard
import pytest
from hypothesis import HealthCheck, settings

# Every call within the library is checked against its annotations, shapes and dtypes included, with
# an int for a float as type checkers have it. The bench spends its time elsewhere, and is not.
spec = importlib.util.find_spec("proxlin")
assert spec and spec.submodule_search_locations
jaxtyping.install_import_hook(
    [
        f"proxlin.{room.name}"
        for room in pkgutil.iter_modules(spec.submodule_search_locations)
        if room.name != "bench"
    ],
    "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))",
)


def by_class(accepts):
    """The same check of a leaf, by isinstance: all leaves that the library names are classes."""
    kind = accepts.__annotations__["x"]

    def check(x):
        if not isinstance(x, kind):
            raise TypeError

    return check


# jaxtyping makes a checker anew for each pytree it sees, which would take a tenth of all test time.
jaxtyping._typeguard.typechecked = by_class

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 8)

settings.register_profile(
    "proxlin",
    deadline=None,
    derandomize=True,
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors],
)
settings.load_profile("proxlin")


@pytest.fixture
def unchecked():
    """Annotations are not enforced, as for users: what is wrong, the library has to say itself."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module")
def quick_compilation():
    """For tests that compile much and compute little."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
