"""The factor of sampled labels, by which the benchmark judges label sampling."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from pieces import SampledLabels

import proxlin

OUTPUTS = 2 * jax.random.normal(jax.random.key(0), (3, 5))
TARGETS = jnp.array([0, 1, 2])


def test_factor_of_many_sampled_labels_is_a_factor_of_the_hessian():
    factor = SampledLabels(labels=20_000).hessian_factor(OUTPUTS, TARGETS)
    columns = [factor.mv(factor.rmv(jnp.broadcast_to(e, OUTPUTS.shape))) for e in jnp.eye(5)]
    hessian = proxlin.Logistic().hessian(OUTPUTS, TARGETS)
    # the error of a mean of 20,000 is about 0.005 of what is averaged, which is below 1
    np.testing.assert_allclose(jnp.stack(columns, -1), hessian, atol=0.02)


def test_factor_of_sampled_labels_has_its_adjoint():
    factor = SampledLabels(labels=2).hessian_factor(OUTPUTS, TARGETS)
    u = jax.random.normal(jax.random.key(1), (3, 2))
    v = jax.random.normal(jax.random.key(2), (3, 5))
    np.testing.assert_allclose(jnp.vdot(factor.mv(u), v), jnp.vdot(u, factor.rmv(v)), rtol=1e-5)


def test_labels_are_drawn_anew_for_other_outputs_only():
    v = jax.random.normal(jax.random.key(2), (3, 5))
    seen = lambda f: SampledLabels(labels=2).hessian_factor(f, TARGETS).rmv(v)
    np.testing.assert_array_equal(seen(OUTPUTS), seen(OUTPUTS + 0))
    # a shift leaves the softmax as it is, so that a difference is one of labels
    assert not np.allclose(seen(OUTPUTS), seen(OUTPUTS + 1), atol=1e-3)
