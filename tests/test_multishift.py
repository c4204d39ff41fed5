"""Conjugate gradients for a grid of gammas, for the products of one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import proxlin
from tests.cases import LOSSES, SUBPROBLEMS, flat, network, problem, relative_error
from tests.test_counts import OUTPUTS, PARAMS, count_products, data, linear

GRID = jnp.array([1e-3, 0.1, 1.0, 30.0])


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
@pytest.mark.parametrize("subproblem", SUBPROBLEMS)
@pytest.mark.parametrize("name", ["squared", "logistic"])
def test_all_gammas_have_the_iterates_of_conjugate_gradients(name, subproblem, steps):
    batch = problem(name, jnp.float64)
    make = lambda solver: proxlin.value_and_direction(
        network, LOSSES[name], subproblem=SUBPROBLEMS[subproblem], solver=solver
    )
    both = [make(solver(steps)) for solver in (proxlin.CG, proxlin.MultiShiftCG)]
    (_, infos), grid = jax.vmap(lambda gamma: both[1](*batch, gamma=gamma))(GRID)
    for i, gamma in enumerate(GRID):
        (_, info), d = both[0](*batch, gamma=gamma)
        mine = jax.tree.map(lambda x, i=i: x[i], grid)
        assert relative_error(flat(mine), flat(d)) < 1e-9
        assert float(infos.residual[i]) == pytest.approx(float(info.residual), rel=1e-6)
        for key in ("jvps", "vjps", "status"):
            assert int(getattr(infos, key)[i]) == int(getattr(info, key))
        assert int(infos.steps[i]) >= int(info.steps)  # which stops where nothing is left
        if subproblem == "primal":
            np.testing.assert_allclose(infos.predicted[i], info.predicted, rtol=1e-8)


@pytest.mark.parametrize("subproblem", SUBPROBLEMS)
def test_a_grid_costs_the_products_of_one_direction(subproblem):
    tau = 3
    fn = proxlin.value_and_direction(
        linear,
        proxlin.Logistic(),
        subproblem=SUBPROBLEMS[subproblem],
        solver=proxlin.MultiShiftCG(tau),
    )
    arguments = data(proxlin.Logistic())
    grid = lambda batch, gammas: jax.vmap(lambda gamma: fn(*batch, gamma=gamma)[1])(gammas)
    compiled = jax.jit(grid).lower(arguments, GRID.astype(jnp.float32)).compile()
    outside, inside = count_products(compiled, others=["f32[4,1]"])  # slopes
    assert outside[OUTPUTS] - 1 == tau  # one is the forward pass
    assert outside[PARAMS] == (tau + 1 if subproblem == "dual" else tau)
    assert not inside


def test_an_exhausted_space_is_no_source_of_noise():
    """Two examples of one output span two directions; five steps find no third."""
    params, inputs, targets = problem("squared", jnp.float64, m=2)
    one = lambda w, x: network(w, x)[:, :1]
    make = lambda solver: proxlin.value_and_direction(one, proxlin.Squared(), solver=solver)
    (_, info), d = make(proxlin.MultiShiftCG(5))(params, inputs, targets[:, :1], gamma=10.0)
    _, exact = make(proxlin.Cholesky())(params, inputs, targets[:, :1], gamma=10.0)
    assert info.status == proxlin.Status.OK
    assert relative_error(flat(d), flat(exact)) < 1e-9


def test_a_critical_point_has_no_direction():
    x = jnp.eye(2)
    fn = proxlin.value_and_direction(
        lambda w, x: x @ w, proxlin.Squared(), solver=proxlin.MultiShiftCG(2)
    )
    (_, info), d = fn(jnp.ones((2, 1)), x, jnp.ones((2, 1)))
    assert not flat(d).any() and info.status == proxlin.Status.OK


@pytest.mark.parametrize("steps", [-1, 11, 2.0])
@pytest.mark.usefixtures("unchecked")
def test_bad_numbers_of_steps(steps):
    with pytest.raises(ValueError, match="give an integer from 0 to 10"):
        proxlin.MultiShiftCG(steps)
