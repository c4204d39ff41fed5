"""Training by one call: what it computes, resuming, stopping, and what it refuses."""

from __future__ import annotations

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import proxlin
from proxlin.training.data import batches
from tests.cases import network, problem
from tests.test_contract import as_dicts

LOSS = proxlin.Logistic()
PARAMS, X, Y = problem("logistic", jnp.float32, m=22)
SPL = functools.partial(proxlin.spl, gamma=0.5)
fit = functools.partial(proxlin.fit, network, LOSS, PARAMS, batch_size=5, report=None)


def same(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


def test_it_is_the_loop_that_one_would_write():
    """The same batches in the order of the data, with and without an average of parameters."""
    split = [(X[i : i + 11], Y[i : i + 11]) for i in (0, 11)]
    for method in (SPL, proxlin.auto):
        opt = method(network, LOSS)
        update = jax.jit(opt.update)
        params, state = PARAMS, opt.init(PARAMS)
        for x, y in 3 * split:
            updates, state = update(None, state, params, inputs=x, targets=y)
            params = optax.apply_updates(params, updates)
        fitted = proxlin.fit(network, LOSS, PARAMS, split, epochs=3, method=method, report=None)
        close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7)
        jax.tree.map(close, fitted.training.params, params)
        jax.tree.map(close, fitted.params, proxlin.eval_params(state, params))
        assert int(fitted.training.steps) == 6 == len(fitted.history) * 2


def test_each_epoch_shuffles_all_examples_and_the_rest_waits():
    numbered = (np.arange(22), np.asarray(Y))
    orders = []
    for epoch in range(5):
        found = list(batches(numbered, 5, seed=3, epoch=epoch))
        assert [len(rows) for rows, _ in found] == [5, 5, 5, 5]
        assert all(np.array_equal(labels, numbered[1][rows]) for rows, labels in found)
        orders.append(np.concatenate([rows for rows, _ in found]).tolist())
    assert all(len(set(order)) == 20 for order in orders)
    assert orders[0] != orders[1] and {row for order in orders for row in order} == {*range(22)}
    assert len(list(batches(numbered, 128, seed=0, epoch=0))) == 1  # fewer than a batch


def test_a_resumed_training_is_that_which_was_not_interrupted():
    """Also from what a checkpoint makes of it, and with a model that takes keys and has aux."""

    def model(params, inputs, aux, key):
        kept = jax.random.bernoulli(key, 0.9, inputs.shape).astype(inputs.dtype)
        return network(params, inputs * kept), 0.9 * aux + jnp.mean(inputs)

    saved = []
    train = functools.partial(
        proxlin.fit, model, LOSS, PARAMS, (X, Y), batch_size=5, method=proxlin.auto, report=None
    )
    options: dict[str, Any] = dict(init_aux=jnp.zeros((), jnp.float32), dropout=True, patience=9)
    options["evaluate"] = lambda params, aux: {"loss": jnp.mean(params["w1"] ** 2) + 0 * aux}
    whole = train(epochs=3, callback=lambda epoch: saved.append(epoch.training), **options)
    before = jax.tree.map(np.array, saved[0])
    again = train(epochs=3, resume=proxlin.Training(**as_dicts(saved[0])), **options)
    same(again.training, whole.training)
    same(again.params, whole.params)
    same(saved[0], before)  # which was not changed by going on
    assert again.history[-1]["loss"] == whole.history[-1]["loss"] and len(again.history) == 2
    # Nothing is left to do.
    assert train(epochs=3, resume=whole.training, **options).history == []
    with pytest.raises(TypeError, match="resume is not a training of this model and method"):
        fit((X, Y), epochs=3, method=SPL, resume=whole.training)


def test_parameters_are_neither_changed_nor_taken():
    first = jax.tree.map(np.array, PARAMS)
    fitted = fit((X, Y), epochs=1, method=SPL)
    same(PARAMS, first)
    assert not any(w.is_deleted() for w in jax.tree.leaves(PARAMS))
    assert not any(w.is_deleted() for w in jax.tree.leaves((fitted.params, fitted.training)))


def test_patience_returns_the_best_epoch():
    losses = iter([3.0, 1.0, 2.0, 2.0, 0.0])
    predictors = []

    def evaluate(params, aux):
        predictors.append(jax.tree.map(np.array, params))
        return {"loss": next(losses)}

    fitted = fit((X, Y), epochs=5, method=SPL, evaluate=evaluate, patience=2)
    assert fitted.ended == "the loss has not improved for 2 epochs, after epoch 4"
    same(fitted.params, predictors[1])
    assert [scores["loss"] for scores in fitted.history] == [3.0, 1.0, 2.0, 2.0]


def test_scores_of_the_validation_are_those_of_all_its_examples(monkeypatch):
    """In parts of unequal size, with the parameters to predict with."""
    monkeypatch.setattr("proxlin.training.data._EVALUATION_BATCH", 9)
    fitted = fit((X, Y), epochs=2, method=proxlin.auto, validation=(X, Y))
    outputs = network(fitted.params, X)
    scores = fitted.history[-1]
    assert scores["loss"] == pytest.approx(float(jnp.mean(LOSS.value(outputs, Y))), rel=1e-5)
    assert scores["accuracy"] == pytest.approx(np.mean(np.argmax(outputs, axis=1) == Y))
    # A loss of yes or no has an accuracy, too; a regression has none; so has a sum.
    labels = jnp.asarray(np.arange(66).reshape(22, 3) % 2, jnp.float32)
    yes = proxlin.fit(
        network, proxlin.BinaryLogistic(), PARAMS, (X, labels), epochs=1, method=SPL,
        validation=(X, labels), report=None,
    )  # fmt: skip
    right = (np.asarray(network(yes.params, X)) > 0) == np.asarray(labels)
    assert yes.history[0]["accuracy"] == pytest.approx(np.mean(right))
    both = proxlin.Sum(proxlin.Term(network, LOSS), proxlin.Term(network, proxlin.Squared()))
    pairs = [((X, X), (Y, labels))]
    total = proxlin.fit(
        both, None, PARAMS, pairs, epochs=1, method=SPL, validation=pairs, report=None
    )
    value, _ = proxlin.value_and_direction(both)(total.params, *pairs[0])
    assert total.history[0]["loss"] == pytest.approx(float(value[0]), rel=1e-5)
    assert "accuracy" not in total.history[0]


def test_callbacks_and_lines(capsys):
    numbers = []

    def callback(epoch):
        numbers.append(epoch.number)
        assert epoch.scores["train_loss"] > 0
        return epoch.number == 2

    fitted = proxlin.fit(network, LOSS, PARAMS, (X, Y), epochs=9, method=SPL, callback=callback)
    assert numbers == [1, 2] and fitted.ended == "the callback said so, after epoch 2"
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    line = r"epoch 1/9: train_loss 1\.\d+, gamma 0.5, rejected 0, \d+ s"
    assert re.fullmatch(line, lines[0])


def test_training_that_goes_nowhere_stops_and_says_why():
    with pytest.warns(RuntimeWarning, match=r"The last step was rejected \(NON_FINITE\)"):
        fitted = fit((X * jnp.nan, Y), epochs=5, method=SPL)
    assert fitted.ended == "every step was rejected, after epoch 1"
    same(fitted.params, PARAMS)


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "epochs": (dict(epochs=0), ValueError, r"fit\(epochs=0\): give an integer of at least 1"),
    "batch size": (dict(batch_size=2.5), ValueError, r"fit\(batch_size=2.5\): give an integer"),
    "patience": (dict(patience=2), TypeError, "patience needs a loss to watch"),
    "two evaluations": (
        dict(validation=(X, Y), evaluate=lambda p, a: {}),
        TypeError,
        "validation or evaluate, not both",
    ),
    "dropout": (
        dict(validation=(X, Y), dropout=True),
        TypeError,
        r"give evaluate\(params, aux\)",
    ),
    "lengths": (dict(data=(X, Y[:-1])), ValueError, r"arrays of lengths \[\(21,\), \(22,\)\]"),
    "three": (dict(data=(X, Y, Y)), ValueError, r"tuple of 3: give \(inputs, targets\)"),
    "generator": (
        dict(data=((X, Y) for _ in range(3))),
        TypeError,
        "data is a generator, which can be read only once",
    ),
    "no batches": (dict(data=[]), ValueError, "data has no batch"),
    "no loss": (
        dict(evaluate=lambda p, a: {"error": 1.0}, patience=1),
        ValueError,
        r"patience watches the score 'loss', and the scores are \['error', 'gamma'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.usefixtures("unchecked")
def test_refused(name):
    given, error, words = REFUSED[name]
    options: dict[str, Any] = {"epochs": 1, "data": (X, Y), "method": SPL, **given}
    with pytest.raises(error, match=words):
        fit(options.pop("data"), **options)
