"""SDCA against scikit-learn, its duality gap, the generic dual solver, and features of any kind."""

import functools

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import scipy.sparse
from hypothesis import example, given
from scipy.special import logsumexp
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import LinearSVC

import proxlin
from proxlin.sdca import _block_step, _rows

N, D, K = 24, 6, 3


def data(seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N, D))
    scores = x @ rng.normal(size=(D, K)) + 0.5 * rng.normal(size=(N, K))
    return x, scores.argmax(axis=1), scores


def objective(weights, x, y, loss, strength):
    values = loss.value(jnp.asarray(x) @ weights.T, jnp.asarray(y))
    return float(values.mean() + 0.5 * strength * (weights**2).sum())


def reference(name, x, labels, scores, strength):
    n = len(x)
    if name == "squared":
        return Ridge(alpha=n * strength, fit_intercept=False, tol=1e-12).fit(x, scores).coef_
    if name == "hinge":
        model = LinearSVC(
            C=1 / (strength * n),
            multi_class="crammer_singer",
            fit_intercept=False,
            tol=1e-9,
            max_iter=1_000_000,
        )
        return model.fit(x, labels).coef_
    model = LogisticRegression(
        C=1 / (strength * n), fit_intercept=False, tol=1e-12, max_iter=10_000
    )
    return model.fit(x, labels).coef_


def plain_objective(name, weights, x, y, strength):
    """The objective in double precision, without the library."""
    x, weights = np.asarray(x, np.float64), np.asarray(weights, np.float64)
    f, rows = x @ weights.T, np.arange(len(x))
    if name == "squared":
        values = 0.5 * ((f - y) ** 2).sum(axis=1)
    elif name == "logistic":
        values = logsumexp(f, axis=1) - f[rows, y]
    else:
        margins = f + 1
        margins[rows, y] -= 1
        values = margins.max(axis=1) - f[rows, y]
    return values.mean() + 0.5 * strength * (weights**2).sum()


def check_bounds(info, optimum, rounding, inexact=1e-6):
    """After every epoch the minimum lies between dual and primal, so that the gap is a bound.

    ``optimum`` is the objective somewhere, and so not below the minimum, but maybe above it.
    """
    primal, dual, gap = (np.asarray(x, np.float64) for x in (info.primal, info.dual, info.gap))
    np.testing.assert_array_less(-gap, rounding)
    np.testing.assert_array_less(dual, optimum + rounding)
    np.testing.assert_array_less(primal - optimum, gap + rounding)
    np.testing.assert_array_less(optimum - inexact, primal)


LOSSES = {
    "squared": proxlin.Squared(),
    "hinge": proxlin.Hinge(),
    "logistic": proxlin.Logistic(),
    "sparsemax": proxlin.Sparsemax(),
}
EPOCHS = {"squared": 100, "hinge": 400, "logistic": 25, "sparsemax": 100}


@pytest.mark.parametrize("block_size", [1, 5])
@pytest.mark.parametrize("name", list(LOSSES))
def test_reaches_the_minimum(name, block_size):
    """The gap certifies the minimum; scikit-learn's solution has the same objective."""
    x, labels, scores = data()
    strength, loss = 0.05, LOSSES[name]
    targets = scores if name == "squared" else labels
    weights, info = proxlin.sdca(
        x,
        targets,
        loss,
        strength=strength,
        epochs=EPOCHS[name],
        key=jax.random.key(0),
        block_size=block_size,
    )
    got = objective(weights, x, targets, loss, strength)
    assert abs(float(info.primal[-1]) - got) <= 1e-12 * abs(got)
    check_bounds(info, got, 1e-12, 1e-8)
    assert float(info.gap[-1]) <= 1e-8
    # the dual never falls from one epoch to the next
    assert np.all(np.diff(info.dual) >= -1e-9)
    if name != "sparsemax":  # which scikit-learn does not have
        coefficients = jnp.asarray(reference(name, x, labels, scores, strength))
        want = objective(coefficients, x, targets, loss, strength)
        assert got - want <= 1e-6
        check_bounds(info, want, 1e-12)


def test_smallest_strength_of_the_hinge_loss():
    x, labels, _ = data(1)
    _, info = proxlin.sdca(
        x, labels, proxlin.Hinge(), strength=1e-2, epochs=2000, key=jax.random.key(1)
    )
    assert float(info.gap[-1]) <= 1e-8


@pytest.mark.parametrize("name,block_size", [("squared", 4), ("logistic", 1)])
def test_sparse_features_give_the_same(name, block_size):
    x, labels, scores = data(2)
    x = np.where(np.random.default_rng(0).uniform(size=x.shape) < 0.5, x, 0.0)
    x[3] = 0.0  # an empty row
    targets = scores if name == "squared" else labels
    run = lambda features: proxlin.sdca(
        features,
        targets,
        LOSSES[name],
        strength=0.1,
        epochs=5,
        key=jax.random.key(0),
        block_size=block_size,
    )
    dense, info = run(x)
    sparse, sparse_info = run(scipy.sparse.csr_matrix(x))
    np.testing.assert_allclose(sparse, dense, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(sparse_info.gap, info.gap, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("name", ["squared", "hinge", "logistic", "sparsemax"])
@pytest.mark.parametrize("block_size", [1, 5])
def test_a_block_step_is_a_dual_subproblem(name, block_size):
    """At W without the block's own contribution, with gamma = m / (strength n)."""
    x, labels, scores = data(3)
    loss, strength = LOSSES[name], 0.1
    targets = jnp.asarray(scores if name == "squared" else labels)
    rows, c = _rows(x), 1 / (strength * N)
    duals = loss.grad(jnp.zeros((N, K)), targets)
    weights = -c * duals.T @ jnp.asarray(x)
    block = jnp.arange(block_size) + 4
    step = jax.jit(lambda w, a: _block_step(rows, targets, loss, c, w, a, block))
    new_weights, new_duals = step(weights, duals)

    chosen = jnp.asarray(x)[block]
    without = weights + c * duals[block].T @ chosen
    fn = proxlin.value_and_direction(
        lambda w, z: z @ w.T,
        loss,
        subproblem=proxlin.dual_convex,
        solver=proxlin.ProximalGradient(20_000, gap=1e-15),
    )
    _, d = jax.jit(fn)(without, chosen, targets[block], gamma=c * block_size)
    np.testing.assert_allclose(new_weights, without - d, atol=1e-7)
    np.testing.assert_allclose(new_weights, without - c * new_duals[block].T @ chosen, atol=1e-12)


FORMS = {
    "csr": lambda x: scipy.sparse.csr_matrix(x.astype(np.float64)),
    "csc integers": scipy.sparse.csc_array,
    "integers": lambda x: x,
    "float32": lambda x: x.astype(np.float32),
}


@functools.cache
def integer_problem(name):
    """Features that are the same numbers in every dtype, targets, and scikit-learn's minimum."""
    rng = np.random.default_rng(4)
    x = rng.integers(-2, 3, size=(N, D))
    x[5] = 0
    scores = x @ rng.normal(size=(D, K)) + rng.normal(size=(N, K))
    y = scores if name == "squared" else scores.argmax(axis=1)
    best = reference(name, x.astype(np.float64), scores.argmax(axis=1), scores, 0.1)
    return x, y, plain_objective(name, best, x, y, 0.1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["squared", "hinge", "logistic"])
def test_every_form_of_features_against_scikit_learn(name, form):
    x, y, optimum = integer_problem(name)
    weights, info = proxlin.sdca(
        FORMS[form](x),
        y,
        LOSSES[name],
        strength=0.1,
        epochs=EPOCHS[name],
        key=jax.random.key(0),
    )
    single = form == "float32"
    assert weights.dtype == (jnp.float32 if single else jnp.float64)
    check_bounds(info, optimum, 1e-5 if single else 1e-12, 1e-5 if single else 1e-6)
    assert float(info.gap[-1]) <= (1e-5 if single else 1e-8)
    assert abs(plain_objective(name, weights, x, y, 0.1) - optimum) <= (2e-5 if single else 1e-6)


SMALL = 8


@functools.cache
def compiled(name, block_size):
    """One compilation for all data: features and targets are traced."""
    return jax.jit(
        lambda x, y, key: proxlin.sdca(
            x, y, LOSSES[name], strength=0.1, epochs=3, key=key, block_size=block_size, outputs=K
        )
    )


numbers = st.floats(-3, 3, allow_subnormal=False, width=32)
MATRICES = hnp.arrays(np.float64, (SMALL, 2), elements=numbers)
LABELS = hnp.arrays(np.int64, SMALL - K, elements=st.integers(0, K - 1))


@pytest.mark.parametrize(
    "name,block_size",
    [("squared", 1), ("squared", 3), ("hinge", 1), ("hinge", 3), ("logistic", 1)],
)
@given(x=MATRICES, labels=LABELS, size=st.sampled_from([0.01, 1.0, 10.0]), seed=st.integers(0, 9))
@example(x=np.zeros((SMALL, 2)), labels=np.zeros(SMALL - K, int), size=1.0, seed=0)
def test_the_gap_is_a_bound_in_every_epoch(name, block_size, x, labels, size, seed):
    """For any data, also where few epochs are far from the solution."""
    x = size * x
    labels = np.concatenate([np.arange(K), labels])  # scikit-learn wants every class
    y = np.eye(K)[labels] if name == "squared" else labels
    weights, info = compiled(name, block_size)(x, y, jax.random.key(seed))
    start = plain_objective(name, np.zeros((K, 2)), x, y, 0.1)
    best = reference(name, x, labels, np.eye(K)[labels], 0.1)
    optimum = plain_objective(name, best, x, y, 0.1)
    check_bounds(info, optimum, 1e-12 * (1 + start), 1e-6 * (1 + start))
    np.testing.assert_allclose(
        float(info.primal[-1]), plain_objective(name, weights, x, y, 0.1), rtol=1e-9
    )


def with_duplicates(x, kind):
    """Every entry in two parts, next to each other in a row, in CSR."""
    rows, columns = np.nonzero(x)
    parts = np.stack([x[rows, columns] - 1, np.ones(len(rows))], axis=1).ravel().astype(x.dtype)
    pointers = 2 * np.concatenate([[0], np.cumsum(np.count_nonzero(x, axis=1))])
    return kind((parts, np.repeat(columns, 2), pointers), shape=x.shape)


def backwards(x):
    """CSR with the columns of each row in descending order."""
    matrix = scipy.sparse.csr_matrix(x[:, ::-1])
    matrix = scipy.sparse.csr_matrix(
        (matrix.data, x.shape[1] - 1 - matrix.indices, matrix.indptr), shape=x.shape
    )
    assert not matrix.has_sorted_indices
    return matrix


def explicit_zeros(x):
    matrix = scipy.sparse.csr_matrix(np.ones(x.shape, x.dtype))
    matrix.data = x.ravel().copy()
    return matrix


def wide_indices(x):
    matrix = scipy.sparse.csr_matrix(x)
    matrix.indices, matrix.indptr = matrix.indices.astype(np.int64), matrix.indptr.astype(np.int64)
    return matrix


SPARSE = {
    **{
        name: getattr(scipy.sparse, name)
        for name in """
            csr_matrix csc_matrix coo_matrix lil_matrix dok_matrix bsr_matrix
            csr_array csc_array coo_array lil_array dok_array bsr_array
        """.split()
    },
    "duplicates": lambda x: with_duplicates(x, scipy.sparse.csr_matrix),
    "duplicates array": lambda x: with_duplicates(x, scipy.sparse.csr_array),
    "duplicates in triplets": lambda x: scipy.sparse.coo_matrix(
        (np.tile(x.ravel(), 2), np.tile(np.indices(x.shape).reshape(2, -1), 2)), shape=x.shape
    ),
    "backwards": backwards,
    "explicit zeros": explicit_zeros,
    "wide indices": wide_indices,
}


@pytest.mark.parametrize("dtype", [bool, np.int8, np.float64, np.longdouble])
@pytest.mark.parametrize("form", SPARSE)
def test_sparse_rows_are_those_of_the_matrix(form, dtype):
    """In any format, with what SciPy makes of it, and without a change of what was given."""
    x = np.random.default_rng(0).integers(-2, 3, size=(5, 4))
    x[2] = 0
    matrix = SPARSE[form](x.astype(dtype))
    assert matrix.dtype == dtype
    stored, want = matrix.nnz, matrix.toarray().astype(np.float64)
    rows = _rows(matrix)
    np.testing.assert_array_equal(rows.dense(jnp.arange(6)), np.vstack([want, np.zeros((1, 4))]))
    assert matrix.nnz == stored


def test_duplicates_of_narrow_integers():
    """A sum in eight bits wraps around, for SciPy and so for us; that of two booleans is one."""
    make = lambda data: scipy.sparse.csr_matrix((data, np.array([0, 0]), np.array([0, 2])))
    for data in (np.array([100, 100], np.int8), np.array([True, True])):
        np.testing.assert_array_equal(
            _rows(make(data)).dense(jnp.arange(1)), make(data).toarray().astype(float)
        )


@pytest.mark.parametrize("x64", [True, False])
@pytest.mark.parametrize(
    "dtype,doubles",
    [
        (bool, True),
        (np.uint8, True),
        (np.int64, True),
        (np.float16, False),
        (ml_dtypes.bfloat16, False),
        (np.float32, False),
        (np.float64, True),
        (np.longdouble, True),
    ],
)
def test_precision_of_the_features(dtype, doubles, x64):
    """Integers in the default precision, float32 at the least, and what JAX has at the most."""
    x = np.arange(6).reshape(3, 2).astype(dtype)
    with jax.enable_x64(x64):
        rows = _rows(x)
        assert rows.dtype == (np.float64 if doubles and x64 else np.float32)
        np.testing.assert_array_equal(rows.values, x.astype(np.float64))
        if dtype not in (np.float16, ml_dtypes.bfloat16):  # which SciPy does not have
            sparse = _rows(scipy.sparse.csr_matrix(x))
            assert sparse.dtype == rows.dtype
            np.testing.assert_array_equal(sparse.dense(jnp.arange(3)), rows.values)


def test_half_precision_computes_in_single():
    x, y, _ = integer_problem("squared")
    run = lambda features: proxlin.sdca(
        features, y, proxlin.Squared(), strength=np.float64(0.1), epochs=3, key=jax.random.key(0)
    )
    weights, info = run(x.astype(np.float16))
    want, want_info = run(x.astype(np.float32))
    assert weights.dtype == jnp.float32
    np.testing.assert_array_equal(weights, want)
    np.testing.assert_array_equal(info.gap, want_info.gap)


def test_labels_of_any_integers():
    """Booleans are labels 0 and 1, and a uint8 can number 256 classes."""
    x = np.random.default_rng(0).normal(size=(4, 2))
    run = lambda y: proxlin.sdca(
        x, y, proxlin.Hinge(), strength=0.1, epochs=1, key=jax.random.key(0)
    )[0]
    np.testing.assert_array_equal(run([True, False, True, True]), run(np.array([1, 0, 1, 1])))
    many = np.array([255, 0, 17, 255])
    got = run(many.astype(np.uint8))
    assert got.shape == (256, 2)
    np.testing.assert_array_equal(got, run(many))


HUGE = scipy.sparse.csr_matrix(([1.0], [2**31], [0, 1]), shape=(1, 2**31 + 1))
BAD_FEATURES = {
    "complex": (lambda x: x + 0j, TypeError, "features of dtype complex128: give real numbers"),
    "sparse complex": (
        lambda x: scipy.sparse.csr_matrix(x + 0j),
        TypeError,
        "features of dtype complex128: give real numbers",
    ),
    "objects": (lambda x: x.astype(object), TypeError, "ndarray and dtype object; give numbers"),
    "text": (lambda x: x.astype(str), TypeError, r"dtype <U\d+; give numbers"),
    "masked": (np.ma.masked_array, ValueError, r"masked array.*\.filled"),
    "nan": (lambda x: np.where(x > 1, np.nan, x), ValueError, "not finite.*leave out or fill"),
    "infinite": (lambda x: np.where(x > 1, np.inf, x), ValueError, "not finite.*in float64"),
    "sparse nan": (
        lambda x: scipy.sparse.csc_matrix(np.where(x > 1, np.nan, x)),
        ValueError,
        "not finite",
    ),
    "too large": (lambda x: 1e200 * x, ValueError, "whose squares are not.*scale"),
    "too large for float32": (lambda x: (1e30 * x).astype(np.float32), ValueError, "in float32"),
    "no examples": (lambda x: x[:0], ValueError, r"not of shape \(0, 6\)"),
    "no features": (lambda x: x[:, :0], ValueError, r"not of shape \(24, 0\)"),
    "one sparse row": (
        lambda x: scipy.sparse.coo_array(x[0]),
        ValueError,
        r"matrix \(n, d\).*not of shape \(6,\)",
    ),
    "too many columns": (lambda x: HUGE, ValueError, "columns are numbered in 32 bits"),
    "ragged": (
        lambda x: [[1.0], [2.0, 3.0]],
        ValueError,
        "features are not an array.*equal length",
    ),
}


@pytest.mark.parametrize("case", BAD_FEATURES)
def test_bad_features(case):
    change, error, message = BAD_FEATURES[case]
    x, labels, _ = data()
    with pytest.raises(error, match=message):
        proxlin.sdca(
            change(x), labels, proxlin.Logistic(), strength=0.1, epochs=1, key=jax.random.key(0)
        )


@pytest.mark.usefixtures("unchecked")
def test_bad_input():
    x, labels, _ = data()
    run = lambda *a, **k: proxlin.sdca(
        *a, **{"strength": 0.1, "epochs": 1, "key": jax.random.key(0), **k}
    )
    with pytest.raises(ValueError, match="strength=0"):
        run(x, labels, proxlin.Logistic(), strength=0)
    with pytest.raises(ValueError, match="epochs=0"):
        run(x, labels, proxlin.Logistic(), epochs=0)
    with pytest.raises(ValueError, match="matrix"):
        run(x[0], labels, proxlin.Logistic())
    with pytest.raises(ValueError, match=r"targets of shape \(23,\)"):
        run(x, labels[1:], proxlin.Logistic())
    with pytest.raises(ValueError, match=r"labels 0\.\.1"):
        run(x, labels, proxlin.Logistic(), outputs=2)
    with pytest.raises(ValueError, match=r"have one class"):
        run(x, np.full_like(labels, -1), proxlin.Logistic())
    with pytest.raises(ValueError, match=r"float64 for 24 examples.* \.astype\(int\)"):
        run(x, labels.astype(float), proxlin.Logistic())
    with pytest.raises(ValueError, match=r"dtype float64 .*cast labels with \.astype\(int\)"):
        run(x, labels.astype(float), proxlin.Logistic(), outputs=3)
    with pytest.raises(TypeError, match="Squared: targets of dtype complex128"):
        run(x, x + 0j, proxlin.Squared())
    for name in ("epochs", "block_size", "outputs"):
        with pytest.raises(ValueError, match=rf"{name}=2\.0: give a positive integer"):
            run(x, labels, proxlin.Logistic(), **{name: 2.0})
    with pytest.raises(ValueError, match="strength=inf"):
        run(x, labels, proxlin.Logistic(), strength=np.inf)
    with pytest.raises(TypeError, match="conjugate"):
        run(x, labels, proxlin.FromFunction(lambda f, y: jnp.sum(f)), outputs=3)
