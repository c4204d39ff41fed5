"""Arrays of any kind: the numbers of plain floats, or an error that says what to give instead."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import proxlin
from proxlin.batch import make_batch

M, D, K = 6, 4, 3
rng = np.random.default_rng(0)
X, W = rng.normal(size=(M, D)), rng.normal(size=(D, K))
F = rng.normal(size=(M, K))
YES = rng.integers(0, 2, size=(M, K))
SOME = np.array([1, 0, 1, 1, 0, 1])
ROWS = np.eye(K, dtype=int)[[2, 0, 1, 1, 0, 2]]
linear = lambda w, x: x @ w

SQUARED, BINARY, LOGISTIC = proxlin.Squared(), proxlin.BinaryLogistic(), proxlin.Logistic()


class Table:
    """What a data frame is to NumPy, and nothing else."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype)


class Column(Table):
    """A column of a data frame: JAX does not take it, but asks it for its shape and dtype."""

    def __init__(self, values):
        super().__init__(values)
        self.dtype, self.shape, self.ndim = values.dtype, values.shape, values.ndim


@pytest.fixture
def kinds(tmp_path):
    """Name -> a function that puts an array of zeros and ones into that kind."""

    def mapped(x):
        x.tofile(tmp_path / "numbers")
        return np.memmap(tmp_path / "numbers", x.dtype, "r", shape=x.shape)

    def read_only(x):
        x = x.copy()
        x.flags.writeable = False
        return x

    return {
        "list": lambda x: x.tolist(),
        "list of booleans": lambda x: x.astype(bool).tolist(),
        "memory map": mapped,
        "read-only": read_only,
        "table": Table,
        "column": Column,
    }


COUNTING = ["bool", "int8", "uint8", "uint64"]
FLOATING = ["float16", "bfloat16", "longdouble", "list of floats"]
CONTAINERS = ["list", "list of booleans", "memory map", "table", "column"]
DTYPES = {"bfloat16": ml_dtypes.bfloat16}


def put(kinds, kind, x):
    if kind == "list of floats":
        return x.astype(float).tolist()
    if kind in kinds:
        return kinds[kind](x)
    return x.astype(DTYPES.get(kind, kind))


@functools.cache
def direction(loss):
    return proxlin.value_and_direction(linear, loss, solver=proxlin.CG(1))


def same(got, want):
    """Value and direction, to rounding, in the same dtypes."""
    for a, b in zip((got[0][0], got[1]), (want[0][0], want[1]), strict=True):
        assert a.dtype == b.dtype
        tolerance = 1e-12 if a.dtype == jnp.float64 else 1e-6
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
    assert got[0][1].status == want[0][1].status == proxlin.Status.OK


TARGETS = {  # loss, targets, the same in plain numbers, kinds
    "squared": (SQUARED, YES, YES.astype(float), COUNTING + FLOATING + CONTAINERS),
    "binary": (BINARY, YES, YES.astype(float), COUNTING + FLOATING + CONTAINERS),
    "rows": (LOGISTIC, ROWS, ROWS.astype(float), COUNTING + FLOATING + CONTAINERS),
    "labels": (LOGISTIC, SOME, SOME, COUNTING + CONTAINERS),
}
CASES = [(name, kind) for name, (*_, allowed) in TARGETS.items() for kind in allowed]


@pytest.mark.parametrize("name,kind", CASES)
def test_targets(kinds, name, kind):
    loss, targets, plain, _ = TARGETS[name]
    fn = direction(loss)
    same(fn(W, X, put(kinds, kind, targets)), fn(W, X, plain))


@pytest.mark.parametrize("name,kind", [case for case in CASES if case[0] in ("squared", "labels")])
def test_targets_in_single_precision(kinds, name, kind):
    """Without 64 bits, where JAX truncates what NumPy has by default."""
    loss, targets, plain, _ = TARGETS[name]
    plain = plain.astype(np.int32 if name == "labels" else np.float32)
    w, x = W.astype(np.float32), X.astype(np.float32)
    fn = direction(loss)
    with jax.enable_x64(False):
        same(fn(w, x, put(kinds, kind, targets)), fn(w, x, plain))


@pytest.mark.parametrize("kind", ["bool", "uint8", "longdouble", "list", "table"])
def test_targets_under_jit(kinds, kind):
    """As constants, and those that jax.jit takes as arguments too."""
    fn = direction(BINARY)
    want = fn(W, X, YES.astype(float))
    given = put(kinds, kind, YES)
    same(jax.jit(lambda w: fn(w, X, given))(W), want)
    if kind in ("bool", "uint8", "list"):
        same(jax.jit(fn)(W, X, given), want)


@pytest.mark.parametrize("kind", COUNTING + FLOATING + CONTAINERS)
@pytest.mark.parametrize("x64", [True, False])
def test_weights(kinds, kind, x64):
    fn = direction(LOGISTIC)
    labels = ROWS.argmax(axis=1)
    with jax.enable_x64(x64):
        dtype = np.float64 if x64 else np.float32
        w, x = W.astype(dtype), X.astype(dtype)
        want = fn(w, x, labels, weights=SOME.astype(dtype))
        same(fn(w, x, labels, weights=put(kinds, kind, SOME)), want)


def test_large_weights_are_not_cut_off():
    with jax.enable_x64(False):
        w, x = W.astype(np.float32), X.astype(np.float32)
        fn = direction(SQUARED)
        want = fn(w, x, YES, weights=SOME)
        same(fn(w, x, YES, weights=SOME * 2**40), want)
        same(fn(w, x, YES, weights=SOME.astype(np.uint64) * 2**40), want)


@pytest.mark.parametrize("loss", [LOGISTIC, proxlin.Hinge(), proxlin.Sparsemax()], ids=str)
@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint8, np.uint64])
@pytest.mark.parametrize("k", [256, 300])
def test_labels_in_few_bits(loss, dtype, k):
    """Their number of classes does not fit the dtype, but the labels do."""
    labels = SOME.copy() if dtype is bool else np.array([0, 1, 44, 100, 127, 7])
    f = jnp.asarray(np.random.default_rng(1).normal(size=(M, k)))
    given = labels.astype(dtype)
    batch = make_batch(loss, f, None, given, None)
    assert batch.good
    for y in (batch.targets, jnp.asarray(given), given):
        np.testing.assert_array_equal(loss.value(f, y), loss.value(f, labels))
        np.testing.assert_array_equal(loss.grad(f, y), loss.grad(f, labels))
        np.testing.assert_array_equal(loss.valid(f, y), True)
    a = loss.grad(f, labels)
    np.testing.assert_array_equal(loss.conjugate(a, given), loss.conjugate(a, labels))


@pytest.mark.parametrize("loss", [LOGISTIC, proxlin.Hinge(), proxlin.Sparsemax()], ids=str)
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int64])
def test_labels_out_of_range_in_few_bits(loss, dtype):
    labels = np.array([0, 3, 2, 1, 0, 1])
    with pytest.raises(ValueError, match=r"targets\[1\] is 3; allowed are labels 0\.\.2"):
        make_batch(loss, jnp.asarray(F), None, labels.astype(dtype), None)
    fn = jax.jit(lambda y: make_batch(loss, jnp.asarray(F), None, y, None).good)
    assert not fn(labels.astype(dtype))
    assert fn(np.minimum(labels, 2).astype(dtype))


@pytest.mark.parametrize("kind", COUNTING + FLOATING + CONTAINERS)
@pytest.mark.parametrize("loss", [proxlin.Hinge(), proxlin.Sparsemax()], ids=str)
def test_rows_of_losses_on_the_simplex(kinds, loss, kind):
    f = jnp.asarray(F)
    batch = make_batch(loss, f, None, put(kinds, kind, ROWS), None)
    np.testing.assert_array_equal(loss.value(f, batch.targets), loss.value(f, ROWS.astype(float)))
    np.testing.assert_array_equal(loss.grad(f, batch.targets), loss.grad(f, ROWS.astype(float)))


def test_targets_with_structure():
    """Targets of a function of one's own keep structure and dtypes; lists of numbers are arrays."""
    seen = []

    def fn(f, y):
        seen.append(jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), y))
        return jnp.sum((f - y["row"].astype(f.dtype)) ** 2) * y["scale"][0].astype(f.dtype)

    run = direction(proxlin.FromFunction(fn))
    scale = np.arange(1, M + 1, dtype=np.uint8)
    want = run(W, X, {"row": YES.astype(float), "scale": (scale,)})
    seen.clear()
    same(run(W, X, {"row": YES.tolist(), "scale": (scale.tolist(),)}), want)
    assert seen[-1] == {"row": ((K,), "int64"), "scale": (((), "int64"),)}
    same(run(W, X, {"row": Table(YES), "scale": (Column(scale),)}), want)
    assert seen[-1] == {"row": ((K,), "int64"), "scale": (((), "uint8"),)}


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64])
@pytest.mark.parametrize("weights", [None, SOME])
def test_tokens_stay_integers(dtype, weights):
    tokens = np.array([0, 3, 1, 1, 2, 0])
    seen = set()

    def model(w, x):
        seen.add(str(x.dtype))
        return w[x]

    fn = proxlin.value_and_direction(model, LOGISTIC, solver=proxlin.CG(1))
    labels = ROWS.argmax(axis=1)
    want = direction(LOGISTIC)(W, np.eye(D)[tokens], labels, weights=weights)
    same(fn(W, tokens.astype(dtype), labels, weights=weights), want)
    assert seen == {np.dtype(dtype).name}


METHODS = {
    "prox_linear": proxlin.prox_linear,
    "spl": lambda model, loss: proxlin.spl(model, loss, gamma=1.0),
    "armijo_spl": proxlin.armijo_spl,
    "auto": proxlin.auto,
}


@pytest.mark.parametrize("method", METHODS)
def test_optimizers(method):
    """Booleans in a table as targets and integers in a list as weights; parameters of NumPy."""
    opt = METHODS[method](linear, BINARY)
    state = opt.init(W)
    step = lambda targets, weights: opt.update(
        None, state, W, inputs=X, targets=targets, weights=weights
    )
    got, got_state = step(Table(YES.astype(bool)), SOME.tolist())
    want, want_state = step(YES.astype(float), SOME.astype(float))
    assert np.any(np.asarray(want) != 0)
    np.testing.assert_allclose(got, want, rtol=1e-12)
    np.testing.assert_allclose(got_state.info.value, want_state.info.value, rtol=1e-12)


class Steep(proxlin.Squared):
    """Its gradient is a third too long."""

    def grad(self, outputs, targets):
        return 1.3 * super().grad(outputs, targets)

    def value(self, outputs, targets):
        return super().value(outputs, targets) / 1.69


@pytest.mark.parametrize("outputs", ["float16", "list"])
def test_check_loss_computes_in_floats(kinds, outputs):
    """Half precision would forgive any error of the gradient, and integers have no precision."""
    f = put(kinds, outputs, np.array([[1, -2, 3], [0, 2, 1]]))
    proxlin.check_loss(SQUARED, f, [[1, 0, 1], [True, 0, 0]])
    with pytest.raises(ValueError, match="grad against differences of value"):
        proxlin.check_loss(Steep(), f, np.zeros((2, 3), np.longdouble))


def test_check_loss_knows_what_is_allowed():
    with pytest.raises(ValueError, match=r"targets are not allowed; .*takes labels 0\.\.2"):
        proxlin.check_loss(LOGISTIC, F, np.full(M, 3))
    with pytest.raises(TypeError, match="outputs of dtype complex128: give real numbers"):
        proxlin.check_loss(LOGISTIC, F + 0j, SOME)


masked = np.ma.masked_array(YES, YES == 0)
BAD_TARGETS = {
    "complex": (YES + 1j, TypeError, "Squared: targets of dtype complex128: give real numbers"),
    "long complex": (YES.astype(np.clongdouble), TypeError, "complex128: give real numbers"),
    "objects": (YES.astype(object), TypeError, "ndarray and dtype object; give numbers"),
    "text": (YES.astype(str).tolist(), TypeError, r"type list and dtype <U1; give numbers"),
    "times": (YES.astype("m8[s]"), TypeError, r"dtype timedelta64\[s\]; give numbers"),
    "missing": ([[None] * K] * M, TypeError, "dtype object; give numbers"),
    "masked": (masked, ValueError, r"masked array, and the mask would be lost; .*\.filled"),
    "ragged": ([[1.0], [2.0, 3.0]], ValueError, "targets are not an array: .*rows of equal length"),
    "list of arrays": (list(YES), TypeError, "Squared: targets are of type list; give one array"),
    "tuple": (tuple(range(M)), TypeError, "Squared: targets are of type tuple; give one array"),
    "none": (None, TypeError, "Squared: targets are of type NoneType; give one array"),
    "flat list": (SOME.tolist(), ValueError, r"targets of shape \(6,\) .*nothing is broadcast"),
    "infinite": (YES + np.inf, ValueError, "allowed are finite numbers"),
}


@pytest.mark.parametrize("case", BAD_TARGETS)
def test_bad_targets(case):
    targets, error, message = BAD_TARGETS[case]
    with pytest.raises(error, match=message):
        direction(SQUARED)(W, X, targets)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.longdouble])
@pytest.mark.parametrize("jit", [False, True])
def test_labels_that_are_floats(dtype, jit):
    fn = lambda w: direction(LOGISTIC)(w, X, SOME.astype(dtype))
    with pytest.raises(
        ValueError, match=r"give integer labels.*; cast labels with \.astype\(int\)"
    ):
        (jax.jit(fn) if jit else fn)(W)


def test_numbers_that_do_not_fit():
    """Reported, instead of truncated silently."""
    w, x = W.astype(np.float32), X.astype(np.float32)
    with pytest.raises(ValueError, match=r"Squared: targets\[0\] is .*allowed are finite numbers"):
        direction(SQUARED)(w, x, 1e300 * (1.0 + YES))  # in float32, like the parameters
    with jax.enable_x64(False):
        large = "targets contain 4294967297, which does not fit int32; give floats or smaller"
        with pytest.raises(ValueError, match=large):
            direction(LOGISTIC)(w, x, SOME + 2**32)
        with pytest.raises(ValueError, match=large):
            direction(SQUARED)(w, x, YES + 2**32 + (1 - YES))
        with pytest.raises(ValueError, match="which does not fit uint32"):
            direction(LOGISTIC)(w, x, SOME.astype(np.uint64) + 2**63)
        with pytest.raises(ValueError, match="allowed are finite numbers"):
            direction(SQUARED)(w, x, 1e300 * (1.0 + YES))
        same(direction(SQUARED)(w, x, 2.0**33 * YES), direction(SQUARED)(w, x, YES * 2.0**33))


BAD_WEIGHTS = {
    "complex": (SOME + 0j, TypeError, "weights of dtype complex128: give real numbers"),
    "objects": (SOME.astype(object), TypeError, "weights are of type ndarray and dtype object"),
    "text": ("111111", TypeError, r"weights are of type str and dtype <U6; give numbers"),
    "masked": (np.ma.masked_array(SOME, SOME == 0), ValueError, r"weights are a masked array"),
    "ragged": ([[1], [1, 2]], ValueError, "weights are not an array"),
    "negative": (SOME - 1, ValueError, "non-negative; the smallest is -1"),
    "false": (SOME < 0, ValueError, "all weights are zero"),
}


@pytest.mark.parametrize("case", BAD_WEIGHTS)
def test_bad_weights(case):
    weights, error, message = BAD_WEIGHTS[case]
    with pytest.raises(error, match=message):
        direction(SQUARED)(W, X, YES, weights=weights)


def test_complex_weights_under_jit():
    fn = jax.jit(lambda weights: direction(SQUARED)(W, X, YES, weights=weights))
    with pytest.raises(TypeError, match="weights of dtype complex128: give real numbers"):
        fn(SOME + 0j)


BAD_PARAMS = {
    "integers": (W.astype(int), r"params\['w'\] has dtype int64; .*Cast .*\.astype\(float\)"),
    "booleans": (W > 0, r"params\['w'\] has dtype bool; .*Cast what is to be trained"),
    "complex": (W + 0j, "has dtype complex128; parameters must be real"),
    "long doubles": (W.astype(np.longdouble), r"dtype .*, which JAX does not accept; give a float"),
    "objects": (W.astype(object), "dtype object, which JAX does not accept"),
    "masked": (np.ma.masked_array(W), "type MaskedArray and dtype float64, which JAX does not"),
    "column": (Column(W), "type Column and dtype float64, which JAX does not accept"),
    "table": (
        Table(W),
        r"params\['w'\] is <.*Table.*>; .*Convert what is to be trained with jnp\.asarray",
    ),
    "list": (
        W.tolist(),
        r"params\['w'\]\[0\]\[0\] is .*; .*Convert what is to be trained with jnp\.asarray",
    ),
    "number": (
        1.0,
        r"params\['w'\] is 1\.0; .*Convert what is to be trained with jnp\.asarray",
    ),
}


@pytest.mark.parametrize("case", BAD_PARAMS)
def test_bad_params(case):
    params, message = BAD_PARAMS[case]
    model = lambda p, x: linear(p["w"], x)
    with pytest.raises(TypeError, match=message):
        proxlin.value_and_direction(model, SQUARED)({"w": params}, X, YES)
    with pytest.raises(TypeError, match=message):
        proxlin.linearize(model, {"w": params}, X)
    with pytest.raises(TypeError, match=message):
        proxlin.prox_linear(model, SQUARED).init({"w": params})
    with pytest.raises(TypeError, match=message):
        proxlin.check_regularizer(proxlin.L1(0.1), {"w": params})


def test_integer_params_without_64_bits_are_named_as_given():
    with jax.enable_x64(False), pytest.raises(TypeError, match="params has dtype int64"):
        direction(SQUARED)(W.astype(np.int64), X, YES)


def test_params_of_numpy(kinds):
    """Read-only and memory-mapped ones too, which a step does not change."""
    want = direction(SQUARED)(jnp.asarray(W), X, YES)
    for kind in ("memory map", "read-only", "float64"):
        given = put(kinds, kind, W)
        same(direction(SQUARED)(given, X, YES), want)
        np.testing.assert_array_equal(given, W)


def test_params_of_numpy_without_64_bits():
    """In single precision, without a warning."""
    opt = proxlin.prox_linear(linear, SQUARED, momentum=0.5)
    with jax.enable_x64(False):
        w, x = W.astype(np.float32), X.astype(np.float32)
        same(direction(SQUARED)(W, X, YES), direction(SQUARED)(w, x, YES))
        got, _ = opt.update(None, opt.init(W), W, inputs=X, targets=YES)
        want, _ = opt.update(None, opt.init(w), w, inputs=x, targets=YES)
        np.testing.assert_array_equal(got, want)
        proxlin.check_regularizer(proxlin.L1(0.1), W)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(
    "regularizer", [proxlin.L1(0.1), proxlin.SquaredL2(0.1), proxlin.GroupL2(0.1)], ids=str
)
def test_check_regularizer_in_half_precision(regularizer, dtype):
    """Whose rounding is no error of the regularizer."""
    proxlin.check_regularizer(regularizer, W.astype(dtype))


BAD_INPUTS = {
    "long doubles": (X.astype(np.longdouble), "inputs contain ndarray of dtype .*give arrays"),
    "table": (Table(X), "inputs contain Table of dtype None, which JAX does not accept"),
    "column": (Column(X), "inputs contain Column of dtype float64, which JAX does not accept"),
    "objects": (X.astype(object), "inputs contain ndarray of dtype object"),
    "masked": (np.ma.masked_array(X), "inputs contain MaskedArray of dtype float64"),
}


@pytest.mark.parametrize("case", BAD_INPUTS)
def test_bad_inputs(case):
    inputs, message = BAD_INPUTS[case]
    with pytest.raises(TypeError, match=message):
        direction(SQUARED)(W, {"x": inputs}, YES)


@pytest.mark.parametrize("gamma", [np.longdouble(1), True, np.int8(1), np.float16(1)])
def test_gamma(gamma):
    same(direction(SQUARED)(W, X, YES, gamma=gamma), direction(SQUARED)(W, X, YES, gamma=1.0))


@pytest.mark.parametrize("gamma", [1 + 0j, "1", None, np.array(1, object)])
def test_bad_gamma(gamma):
    with pytest.raises(TypeError, match=r"gamma .*give (real )?numbers"):
        direction(SQUARED)(W, X, YES, gamma=gamma)


def test_pandas():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"label": SOME, "weight": SOME + 1.0}, index=range(M, 0, -1))
    fn = direction(LOGISTIC)
    want = fn(W, X, SOME, weights=SOME + 1.0)
    same(fn(W, X, frame["label"], weights=frame["weight"]), want)
    for dtype in ("category", "Int64", bool):
        same(fn(W, X, frame["label"].astype(dtype), weights=frame["weight"]), want)
    same(fn(W, X, pandas.DataFrame(ROWS)), fn(W, X, ROWS.astype(float)))
    with pytest.raises(TypeError, match="give numbers"):
        fn(W, X, frame["label"].map({0: "no", 1: "yes"}))
