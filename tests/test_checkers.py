"""The checkers accept all that the library has, and name what is wrong with what is broken."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import proxlin
from proxlin.losses.base import per_example

RNG = np.random.default_rng(0)
OUTPUTS = jnp.asarray(RNG.normal(size=(4, 3)))
ROWS = jnp.asarray(RNG.normal(size=(4, 3)))
LABELS = jnp.array([0, 2, 1, 1])
PARAMS = {"w": jnp.asarray(RNG.normal(size=(4, 3))), "b": jnp.asarray(RNG.normal(size=3))}


pytestmark = pytest.mark.usefixtures("quick_compilation")


def pseudo_huber(f, y):
    return jnp.sum(jnp.sqrt(1 + (f - y) ** 2) - 1)


def pseudo_huber_conjugate(a, y):
    root = jnp.sqrt(jnp.maximum(1 - a**2, 0))
    return jnp.where(jnp.all(jnp.abs(a) <= 1), jnp.sum(1 - root + a * y), jnp.inf)


GOOD_LOSSES = {
    "squared": (proxlin.Squared(), ROWS),
    "logistic": (proxlin.Logistic(), LABELS),
    "distributions": (proxlin.Logistic(), jax.nn.softmax(ROWS)),
    "binary": (proxlin.BinaryLogistic(), jax.nn.sigmoid(ROWS)),
    "hinge": (proxlin.Hinge(), LABELS),
    "sparsemax": (proxlin.Sparsemax(), LABELS),
    "function": (proxlin.FromFunction(pseudo_huber), ROWS),
    "conjugate": (proxlin.FromFunction(pseudo_huber, conjugate=pseudo_huber_conjugate), ROWS),
}


@pytest.mark.parametrize("name", GOOD_LOSSES)
def test_losses_of_the_library_pass(name):
    proxlin.check_loss(GOOD_LOSSES[name][0], OUTPUTS, GOOD_LOSSES[name][1])


@pytest.mark.parametrize("name", ["squared", "hinge"])
def test_losses_pass_in_single_precision(name):
    loss, targets = GOOD_LOSSES[name]
    if jnp.issubdtype(targets.dtype, jnp.floating):
        targets = targets.astype(jnp.float32)
    proxlin.check_loss(loss, OUTPUTS.astype(jnp.float32), targets)


def test_more_than_one_axis_of_examples_passes():
    proxlin.check_loss(proxlin.Squared(), OUTPUTS.reshape(2, 2, 3), ROWS.reshape(2, 2, 3))


class WrongSign(proxlin.Squared):
    def grad(self, outputs, targets):
        return targets - outputs

    def value(self, outputs, targets):
        return 0.5 * jnp.sum((outputs - targets) ** 2, axis=-1)


class NotConvex(proxlin.Squared):
    def value(self, outputs, targets):
        return jnp.sum(jnp.log1p((outputs - targets) ** 2), axis=-1) - jnp.sum(outputs**2, axis=-1)


class WrongFactor(proxlin.Squared):
    def hessian_factor(self, outputs, targets):
        return proxlin.Factor(lambda v: 2 * v, lambda v: 2 * v)


class WrongAdjoint(proxlin.Squared):
    def hessian_factor(self, outputs, targets):
        return proxlin.Factor(lambda v: 2 * v, lambda v: 0.5 * v)


class WrongPreimage(proxlin.Squared):
    def hessian_factor(self, outputs, targets):
        return proxlin.Factor(lambda v: v, lambda v: v, preimage=targets)


class WrongHessian(proxlin.Squared):
    def hvp(self, outputs, targets, v):
        return 0.5 * v


class NoHalf(proxlin.Squared):
    def conjugate(self, duals, targets):
        return jnp.sum(duals * (duals + targets), axis=-1)


class NoDomain(proxlin.Hinge):
    def conjugate(self, duals, targets):
        return jnp.sum(duals * jax.nn.one_hot(targets, 3, dtype=duals.dtype), axis=-1)


class NoStepsize(proxlin.Squared):
    def prox_conjugate(self, z, targets, stepsize):
        return (z - targets) / 2


class WrongStepsize(proxlin.Squared):
    def prox_conjugate(self, z, targets, stepsize):
        sigma = 1 / per_example(stepsize, z)
        return (z - sigma * targets) / (1 + sigma)


class SumOfBatch(proxlin.Squared):
    def value(self, outputs, targets):
        return 0.5 * jnp.sum((outputs - targets) ** 2)


class KeptAxis(proxlin.Squared):
    def value(self, outputs, targets):
        return 0.5 * jnp.sum((outputs - targets) ** 2, axis=-1, keepdims=True)


class Coupled(proxlin.Squared):
    def value(self, outputs, targets):
        return 0.5 * jnp.sum((outputs - jnp.mean(targets)) ** 2, axis=-1)


class Cumulated(proxlin.Squared):
    def value(self, outputs, targets):
        return jnp.cumsum(jnp.sum((outputs - targets) ** 2, axis=-1))


class NotFinite(proxlin.Squared):
    def value(self, outputs, targets):
        return jnp.sum(-jnp.log(outputs), axis=-1)


class BelowZero(proxlin.Squared):
    def value(self, outputs, targets):
        return 0.5 * jnp.sum((outputs - targets) ** 2, axis=-1) - 10


BROKEN_LOSSES = {
    "value >= 0, as nonnegative says: violated by": BelowZero(),
    "grad against differences of value": WrongSign(),
    "convexity": NotConvex(),
    "B B^T u against hvp": WrongFactor(),
    "<B v, u> = <v, B^T u>": WrongAdjoint(),
    "B preimage = grad": WrongPreimage(),
    "hvp against differences of grad": WrongHessian(),
    "Fenchel-Young equality": NoHalf(),
    "prox_conjugate for stepsize 10.0": NoStepsize(),
    "prox_conjugate for stepsize 0.1": WrongStepsize(),
    "value has shape ()": SumOfBatch(),
    "value has shape (4, 1)": KeptAxis(),
    "value of the first example alone": Coupled(),
    "value of the last example alone": Cumulated(),
    "value: not finite": NotFinite(),
}


@pytest.mark.parametrize("what", BROKEN_LOSSES)
def test_a_broken_loss_is_named(what):
    with pytest.raises(ValueError) as error:
        proxlin.check_loss(BROKEN_LOSSES[what], OUTPUTS, ROWS)
    assert what in str(error.value)


def test_a_conjugate_that_is_finite_off_its_domain_is_named():
    with pytest.raises(ValueError, match="Fenchel-Young inequality"):
        proxlin.check_loss(NoDomain(), OUTPUTS, LABELS)


def test_only_what_is_wrong_is_named_and_once():
    with pytest.raises(ValueError) as error:
        proxlin.check_loss(NoStepsize(), OUTPUTS, ROWS)
    lines = str(error.value).splitlines()[1:]
    assert [line.split(":")[0] for line in lines] == [
        "- prox_conjugate for stepsize 0.1",
        "- prox_conjugate for stepsize 10.0",
    ]


def test_a_wide_tolerance_lets_a_broken_loss_pass():
    proxlin.check_loss(NoHalf(), OUTPUTS, ROWS, tolerance=100.0)


@dataclasses.dataclass(frozen=True)
class NonNegativeL1(proxlin.Regularizer):
    strength: float
    where: object = None

    def leaf_value(self, leaf):
        return jnp.where(jnp.all(leaf >= 0), self.strength * jnp.sum(leaf), jnp.inf)

    def leaf_prox(self, leaf, stepsize):
        return jnp.maximum(leaf - self.strength * stepsize, 0)


GOOD_REGULARIZERS = {
    "zero": proxlin.Zero(),
    "l1": proxlin.L1(0.3),
    "where": proxlin.L1(0.3, where=lambda path: path == "w"),
    "squared": proxlin.SquaredL2(0.3),
    "squared, where": proxlin.SquaredL2(0.3, where=lambda path: path == "w"),
    "elastic": proxlin.ElasticNet(0.3, 0.2),
    "group": proxlin.GroupL2(0.3),
    "group, axis": proxlin.GroupL2(0.3, axis=0, where=lambda path: path == "w"),
    "constraint": NonNegativeL1(0.3),
}


@pytest.mark.parametrize("name", GOOD_REGULARIZERS)
def test_regularizers_of_the_library_pass(name):
    proxlin.check_regularizer(GOOD_REGULARIZERS[name], jax.tree.map(jnp.abs, PARAMS))


@pytest.mark.parametrize("name", ["elastic", "constraint"])
def test_regularizers_pass_in_single_precision(name):
    params = jax.tree.map(lambda w: jnp.abs(w).astype(jnp.float32), PARAMS)
    proxlin.check_regularizer(GOOD_REGULARIZERS[name], params)


class DoubleThreshold(proxlin.L1):
    def leaf_prox(self, leaf, stepsize):
        return super().leaf_prox(leaf, 2 * stepsize)


class NoStepsizeL1(proxlin.L1):
    def leaf_prox(self, leaf, stepsize):
        return super().leaf_prox(leaf, jnp.ones_like(stepsize))


class HardThreshold(proxlin.L1):
    def leaf_prox(self, leaf, stepsize):
        return jnp.where(jnp.abs(leaf) > self.strength * stepsize, leaf, 0)


class Concave(proxlin.L1):
    def leaf_value(self, leaf):
        return -super().leaf_value(leaf)


class TooConvex(proxlin.SquaredL2):
    @property
    def modulus(self):
        return 2 * self.strength


class OtherDtype(proxlin.L1):
    def leaf_prox(self, leaf, stepsize):
        return super().leaf_prox(leaf, stepsize).astype(jnp.float32)


class OtherShape(proxlin.L1):
    def leaf_prox(self, leaf, stepsize):
        return super().leaf_prox(leaf, stepsize).reshape(-1)


class NoStepsizeWithin(NonNegativeL1):
    def leaf_prox(self, leaf, stepsize):
        return jnp.maximum(leaf - self.strength, 0)


class LeavesTheDomain(NonNegativeL1):
    def leaf_prox(self, leaf, stepsize):
        return leaf - self.strength * stepsize


BROKEN_REGULARIZERS = [
    (DoubleThreshold(0.3), "prox for stepsize 0.1"),
    (NoStepsizeL1(0.3), "prox for stepsize 10.0"),
    (HardThreshold(0.3), "prox for stepsize 1.0"),
    (Concave(0.3), "convexity"),
    (TooConvex(0.3), "convexity, with the modulus"),
    (OtherDtype(0.3), "prox changes structure, shapes or dtypes"),
    (OtherShape(0.3), "prox changes structure, shapes or dtypes"),
    (NoStepsizeWithin(0.3), "prox for stepsize 0.1"),
    (NoStepsizeWithin(0.3), "prox for stepsize 10.0"),
    (LeavesTheDomain(0.3), "prox for stepsize 1.0"),
]


@pytest.mark.parametrize(
    ("regularizer", "what"), BROKEN_REGULARIZERS, ids=lambda x: type(x).__name__
)
def test_a_broken_regularizer_is_named(regularizer, what):
    with pytest.raises(ValueError) as error:
        proxlin.check_regularizer(regularizer, jax.tree.map(jnp.abs, PARAMS))
    assert what in str(error.value)


def test_only_what_is_wrong_with_a_regularizer_is_named():
    with pytest.raises(ValueError) as error:
        proxlin.check_regularizer(TooConvex(0.3), PARAMS)
    assert len(str(error.value).splitlines()) == 2


def test_parameters_off_the_constraint_are_rejected():
    with pytest.raises(ValueError, match="one finite number"):
        proxlin.check_regularizer(NonNegativeL1(0.3), PARAMS)
