"""A checker for losses of your own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from proxlin.arrays import as_floats, as_targets
from proxlin.checks import require
from proxlin.losses import Loss
from proxlin.testing.findings import Findings


def check_loss(loss: Loss, outputs: Any, targets: Any, *, tolerance: float | None = None) -> None:
    r"""Tests a loss against the identities that the library relies on.

    At the outputs that are given and around them: the value is finite, concerns each example
    alone, and is not negative where the loss says so; it is convex; the gradient is its
    derivative; the Hessian is positive semidefinite, the derivative of the gradient, and :math:`B
    B^\top`; :math:`\ell(f) + \ell^*(\alpha) \ge \langle f, \alpha \rangle`, with equality at the
    gradient; and :math:`\alpha = \operatorname{prox}_{\sigma \ell^*}(z)` satisfies :math:`\alpha
    \in \partial \ell((z - \alpha) / \sigma)`. What a loss says it does not have (a Hessian, a
    conjugate) is left out.

    Args:
        loss: the loss.
        outputs: outputs of shape ``(*n, k)``, away from points where the loss is not smooth.
        targets: targets that fit.
        tolerance: relative; the cube root of the rounding error when None, because derivatives
            are compared with finite differences.

    Raises:
        ValueError: that names every identity that does not hold, and by how much.

    Example:
        >>> import jax.numpy as jnp
        >>> from proxlin import Logistic
        >>> check_loss(Logistic(), jnp.array([[0.1, -0.4, 2.0]]), jnp.array([1]))
    """
    outputs, targets = as_floats("outputs", outputs), as_targets(targets)
    loss.check(outputs, targets)
    require(
        lambda y: loss.valid(outputs, y),
        lambda y: f"some targets are not allowed; {loss} takes {loss.allowed(outputs)}",
        targets,
    )
    check = _Check(loss, outputs, targets, tolerance)
    check.values()
    check.derivatives()
    if loss.twice_differentiable:
        check.hessian()
    if loss.has_conjugate:
        check.conjugate()
    check.prox()
    check.conclude(loss, "loss")


class _Check(Findings):
    def __init__(self, loss: Loss, outputs: Any, targets: Any, tolerance: float | None):
        self.loss, self.f, self.y = loss, outputs, targets
        eps = float(jnp.finfo(outputs.dtype).eps)
        self.step = eps ** (1 / 3)
        super().__init__(10 * self.step if tolerance is None else tolerance)
        rng = np.random.default_rng(0)
        self.draw = lambda: jnp.asarray(rng.normal(size=outputs.shape), outputs.dtype)

    def values(self) -> None:
        value = self.loss.value(self.f, self.y)
        if value.shape != self.f.shape[:-1]:
            raise ValueError(  # nothing else can be looked at
                f"{self.loss}: value has shape {value.shape}; one number for each example is "
                f"{self.f.shape[:-1]}"
            )
        if not bool(jnp.all(jnp.isfinite(value))):
            self.note("value", "not finite at the given outputs")
        for name, part in (("first", slice(1)), ("last", slice(-1, None))):
            f, y = jax.tree.map(lambda leaf, part=part: leaf[part], (self.f, self.y))
            self.near(f"value of the {name} example alone", self.loss.value(f, y), value[part])
        if self.loss.nonnegative:
            self.least("value >= 0, as nonnegative says", value)
        u = self.draw()
        ends = self.loss.value(self.f + u, self.y) + self.loss.value(self.f - u, self.y)
        self.least("convexity, (l(f+u) + l(f-u))/2 >= l(f)", 0.5 * ends - value)

    def derivatives(self) -> None:
        u, t = self.draw(), self.step
        up, down = (self.loss.value(self.f + s * t * u, self.y) for s in (1, -1))
        slope = jnp.sum(self.loss.grad(self.f, self.y) * u, axis=-1)
        self.near("grad against differences of value", slope, (up - down) / (2 * t))

    def hessian(self) -> None:
        u, v, t = self.draw(), self.draw(), self.step
        up, down = (self.loss.grad(self.f + s * t * u, self.y) for s in (1, -1))
        product = self.loss.hvp(self.f, self.y, u)
        self.near("hvp against differences of grad", product, (up - down) / (2 * t))
        self.least("positive semidefinite Hessian", jnp.sum(u * product, axis=-1))
        factor = self.loss.hessian_factor(self.f, self.y)
        self.near("B B^T u against hvp", factor.mv(factor.rmv(u)), product)
        self.near(
            "<B v, u> = <v, B^T u>",
            jnp.sum(factor.mv(v) * u, axis=-1),
            jnp.sum(v * factor.rmv(u), axis=-1),
        )
        if factor.preimage is not None:
            self.near(
                "B preimage = grad", factor.mv(factor.preimage), self.loss.grad(self.f, self.y)
            )

    def conjugate(self) -> None:
        a = self.loss.grad(self.f, self.y)
        conjugate = self.loss.conjugate(a, self.y)
        equal = self.loss.value(self.f, self.y) + conjugate - jnp.sum(self.f * a, axis=-1)
        self.near("Fenchel-Young equality at the gradient", equal, jnp.zeros_like(equal))
        # Around the gradient too, with far outputs: a conjugate must be infinite off its domain.
        for b, far in ((a, 1), (a + self.draw(), 1), (a + self.draw(), 30)):
            f = self.f + far * self.draw()
            slack = self.loss.value(f, self.y) + self.loss.conjugate(b, self.y)
            self.least("Fenchel-Young inequality", slack - jnp.sum(f * b, axis=-1))

    def prox(self) -> None:
        solve = jax.jit(self.loss.prox_conjugate)  # compiled once for all stepsizes
        for sigma in (0.1, 1.0, 10.0):
            z = self.f + self.draw()
            a = solve(z, self.y, jnp.asarray(sigma, z.dtype))
            f = (z - a) / sigma
            # a in the subdifferential at f: no other point beats the tangent there
            tangent = self.loss.value(f, self.y)
            for _ in range(5):
                u = self.draw()
                slack = self.loss.value(f + u, self.y) - tangent - jnp.sum(a * u, axis=-1)
                self.least(f"prox_conjugate for stepsize {sigma}", slack)
