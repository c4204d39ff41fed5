"""Training by one call, for any optimizer of the library."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import PyTree

from proxlin.linearize import Model
from proxlin.losses import Loss
from proxlin.objective import Sum
from proxlin.optimizer import auto, eval_params
from proxlin.training.loop import Loop, Training, last_aux


class Epoch(NamedTuple):
    """What a callback is told after an epoch.

    Attributes:
        number: of the epoch, counted from one.
        scores: numbers by name: ``train_loss``, the mean over the batches of the epoch, each before
            its step; ``gamma``; ``rejected``, the share of steps that were; those of the
            evaluation; and ``seconds`` since the call.
        params: the parameters to predict with, :func:`proxlin.eval_params`.
        training: what to save in order to resume.
    """

    number: int
    scores: dict[str, float]
    params: PyTree
    training: Training


class Fitted(NamedTuple):
    """What training has led to.

    Attributes:
        params: the parameters to predict with: their average, and with ``patience`` that of the
            best epoch.
        aux: the auxiliary output of the model at the last step; None without ``init_aux``.
        history: the scores of each epoch.
        ended: why training ended, in words.
        training: what to pass as ``resume`` in order to go on.
    """

    params: PyTree
    aux: Any
    history: list[dict[str, float]]
    ended: str
    training: Training


def fit(
    model: Model | Sum,
    loss: Loss | None,
    params: PyTree,
    data: Any,
    *,
    epochs: int,
    method: Callable[..., optax.GradientTransformation] = auto,
    batch_size: int = 128,
    validation: Any = None,
    evaluate: Callable[[PyTree, Any], Mapping[str, Any]] | None = None,
    patience: int | None = None,
    callback: Callable[[Epoch], Any] | None = None,
    report: Callable[[str], Any] | None = print,
    init_aux: Any = None,
    dropout: bool = False,
    seed: int = 0,
    resume: Training | None = None,
) -> Fitted:
    r"""Trains a model, without a loop of your own.

    Args:
        model: ``model(params, inputs) -> outputs``; with ``init_aux`` it also gets the last aux and
            returns ``(outputs, aux)``, and with ``dropout`` it gets a random key as last argument.
        loss: a convex loss; None for a sum, whose terms have their own.
        params: the first parameters; they are not changed.
        data: ``(inputs, targets)``, a tuple of arrays or trees of them with the examples first,
            which are shuffled; or batches ``(inputs, targets)``, a list or loader that is read once
            in each epoch. For a :class:`proxlin.Sum`, whose terms have inputs of their own, give
            batches.
        epochs: passes through the data, those before ``resume`` included.
        method: makes the optimizer, ``method(model, loss)``: a function such as
            :func:`proxlin.auto`, or ``functools.partial(proxlin.spl, gamma=1.0)``. With
            ``init_aux`` it is also given ``has_aux`` and ``init_aux``.
        batch_size: how many examples a step takes, if ``data`` is arrays.
        validation: data to evaluate on after each epoch, as ``loss`` and, for classes,
            ``accuracy``; for models without ``init_aux`` and ``dropout``.
        evaluate: ``evaluate(params, aux) -> scores`` in place of ``validation``, for any other
            model or score.
        patience: stop after this many epochs without a lower ``loss`` of the evaluation, and
            return the parameters of the best one.
        callback: is called with an :class:`Epoch` after each; returns True to stop.
        report: is called with a line of text after each epoch; None for silence.
        init_aux: the first auxiliary output, such as the statistics of BatchNorm.
        dropout: whether the model takes a random key.
        seed: of the order of examples and the random keys.
        resume: where to go on, :attr:`Fitted.training` or what was saved of it; the steps are those
            of a training that was not interrupted.

    Returns:
        The parameters to predict with, the history, and what is needed to go on.

    Raises:
        TypeError, ValueError: for options that are not allowed, before any work is done.

    Example:
        >>> import jax.numpy as jnp
        >>> from proxlin import Logistic
        >>> x, labels = jnp.array([[0.0], [1.0], [2.0], [3.0]]), jnp.array([0, 0, 1, 1])
        >>> model = lambda w, x: x @ w["slope"] + w["bias"]
        >>> w = {"slope": jnp.zeros((1, 2)), "bias": jnp.zeros(2)}
        >>> fitted = fit(model, Logistic(), w, (x, labels), epochs=60, report=None)
        >>> jnp.argmax(model(fitted.params, x), axis=1)
        Array([0, 0, 1, 1], dtype=int32)
    """
    loop = Loop(
        epochs=epochs,
        batch_size=batch_size,
        validation=validation,
        evaluate=evaluate,
        patience=patience,
        has_aux=init_aux is not None,
        dropout=dropout,
        seed=seed,
    )
    loop.check(data)
    scores_of = loop.scores(model, loss)
    aux = {} if init_aux is None else {"has_aux": True, "init_aux": init_aux}
    opt = optax.with_extra_args_support(method(model, loss, **aux))
    training = loop.start(opt, params, resume)
    step = jax.jit(loop.step(opt), donate_argnums=(0, 1))

    began = time.perf_counter()
    history: list[dict[str, float]] = []
    ended = f"all {epochs} epochs are done"
    for number in range(int(training.epochs) + 1, epochs + 1):
        training, scores = loop.epoch(step, training, data)
        predictor = eval_params(training.state, training.params)
        scores |= scores_of(predictor, last_aux(training))
        scores["seconds"] = time.perf_counter() - began
        training = loop.judged(training, predictor, scores)
        history.append(scores)
        if report is not None:
            report(_line(number, epochs, scores))
        trouble = loop.trouble(training, scores)
        if callback is not None:
            saved = jax.tree.map(jnp.copy, training)  # the next step reuses its memory
            told = Epoch(number=number, scores=dict(scores), params=predictor, training=saved)
            if callback(told):
                trouble = trouble or "the callback said so"
        if trouble is not None:
            ended = f"{trouble}, after epoch {number}"
            break
    best = training.best_params if patience is not None else None
    return Fitted(
        params=eval_params(training.state, training.params) if best is None else best,
        aux=last_aux(training),
        history=history,
        ended=ended,
        training=training,
    )


def _line(number: int, epochs: int, scores: Mapping[str, float]) -> str:
    """The scores of an epoch in a line."""
    words = [f"{name} {value:.4g}" for name, value in scores.items() if name != "seconds"]
    return f"epoch {number}/{epochs}: {', '.join(words)}, {scores['seconds']:.0f} s"
