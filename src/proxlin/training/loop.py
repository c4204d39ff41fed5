"""The parts of the loop: its start, its step, its epoch, and when it ends."""

from __future__ import annotations

import dataclasses
import numbers
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PyTree

from proxlin.linearize import Model
from proxlin.losses import Loss
from proxlin.objective import Sum
from proxlin.optimizer import explain
from proxlin.optimizer.contract import placed
from proxlin.optimizer.evaluation import method_state
from proxlin.training.data import batches, check_data, evaluator


class Training(NamedTuple):
    """Where training stands: a plain pytree of arrays, which any checkpoint library can save.

    Attributes:
        params: the current parameters.
        state: the state of the optimizer.
        epochs: how many epochs are done.
        steps: how many steps are done, rejected ones among them.
        best_params: the parameters to predict with after the best epoch; empty without patience.
        best_loss: the loss of their evaluation.
        best_epoch: the epoch.
    """

    params: PyTree
    state: Any
    epochs: Any
    steps: Any
    best_params: PyTree
    best_loss: Any
    best_epoch: Any


Step = Callable[..., tuple[PyTree, Any, Any]]


def last_aux(training: Training) -> Any:
    """The auxiliary output of the last step that was taken."""
    return method_state(training.state, "fit").aux


@dataclasses.dataclass(frozen=True)
class Loop:
    """The options of :func:`proxlin.fit` that these parts need."""

    epochs: int
    batch_size: int
    validation: Any
    evaluate: Callable[[PyTree, Any], Mapping[str, Any]] | None
    patience: int | None
    has_aux: bool
    dropout: bool
    seed: int

    def check(self, data: Any) -> None:
        """Raises for data and options that do not work, or not together."""
        for name in ("epochs", "batch_size", "patience"):
            value = getattr(self, name)
            if name == "patience" and value is None:
                continue
            if not isinstance(value, numbers.Integral) or value < 1:
                raise ValueError(f"fit({name}={value!r}): give an integer of at least 1")
        check_data("data", data)
        if self.validation is not None:
            check_data("validation", self.validation)
            if self.evaluate is not None:
                raise TypeError("fit takes validation or evaluate, not both")
            if self.has_aux or self.dropout:
                raise TypeError(
                    "validation is for models that predict as they train, and those with init_aux "
                    "or dropout do not: give evaluate(params, aux) -> {'loss': ...} instead"
                )
        if self.patience is not None and self.validation is None and self.evaluate is None:
            raise TypeError("patience needs a loss to watch: give validation or evaluate, too")

    def scores(
        self, model: Model | Sum, loss: Loss | None
    ) -> Callable[[PyTree, Any], dict[str, float]]:
        """The evaluation, ``(params, aux) -> numbers by name``."""
        evaluate = self.evaluate
        if evaluate is not None:
            return lambda params, aux: {k: float(v) for k, v in evaluate(params, aux).items()}
        if self.validation is None:
            return lambda params, aux: {}
        own = evaluator(model, loss, self.validation)
        return lambda params, aux: own(params)

    def start(
        self, opt: optax.GradientTransformationExtraArgs, params: PyTree, resume: Training | None
    ) -> Training:
        """The first training, or the one to resume, in memory of its own."""
        watched = self.patience is not None
        first = Training(
            params=params,
            state=opt.init(params),
            epochs=np.int32(0),
            steps=np.int32(0),
            best_params=params if watched else (),
            best_loss=np.float32(np.inf),
            best_epoch=np.int32(0),
        )
        if resume is not None:
            found = placed(resume, first)
            if found is None:
                raise TypeError(
                    "resume is not a training of this model and method with the same options: "
                    "pass what Fitted.training or Epoch.training was"
                )
            like = lambda x, w: jnp.asarray(x, w.dtype) if hasattr(w, "dtype") else x
            first = jax.tree.map(like, found, first)
        return jax.tree.map(jnp.copy, first)

    def step(self, opt: optax.GradientTransformationExtraArgs) -> Step:
        """One step of training, and the loss of its batch before it."""

        def step(
            params: PyTree, state: Any, inputs: PyTree, targets: PyTree, number: Any
        ) -> tuple[PyTree, Any, Any]:
            args: tuple[Any, ...] = ()
            if self.has_aux:
                args = (method_state(state, "fit").aux,)
            if self.dropout:
                args = (*args, jax.random.fold_in(jax.random.key(self.seed), number))
            updates, state = opt.update(
                None, state, params, inputs=inputs, targets=targets, args=args
            )
            value = method_state(state, "fit").info.value
            return optax.apply_updates(params, updates), state, value

        return step

    def epoch(self, step: Step, training: Training, data: Any) -> tuple[Training, dict[str, float]]:
        """One pass through the data, and the mean of the losses before its steps."""
        params, state = training.params, training.state
        values: list[Any] = []
        before, first = int(method_state(state, "fit").rejected), int(training.steps)
        for batch in batches(data, self.batch_size, self.seed, int(training.epochs)):
            params, state, value = step(params, state, *batch, np.int32(first + len(values)))
            values.append(value)
        if not values:
            raise ValueError("data has no batch")
        own = method_state(state, "fit")
        scores = {
            "train_loss": float(np.mean(jax.device_get(values))),
            "gamma": float(own.gamma),
            "rejected": (int(own.rejected) - before) / len(values),
        }
        steps = jnp.int32(first + len(values))
        epochs = training.epochs + 1
        return training._replace(params=params, state=state, epochs=epochs, steps=steps), scores

    def judged(
        self, training: Training, predictor: PyTree, scores: Mapping[str, float]
    ) -> Training:
        """The training with this epoch as its best one, if its loss is the least so far."""
        if self.patience is None:
            return training
        if "loss" not in scores:
            raise ValueError(
                f"patience watches the score 'loss', and the scores are {sorted(scores)}"
            )
        if not scores["loss"] < float(training.best_loss):
            return training
        return training._replace(
            best_params=jax.tree.map(jnp.copy, predictor),
            best_loss=jnp.float32(scores["loss"]),
            best_epoch=training.epochs,
        )

    def trouble(self, training: Training, scores: Mapping[str, float]) -> str | None:
        """Why training should not go on, or None; warns if no step was taken, and says why."""
        if scores["rejected"] == 1:
            warnings.warn(explain(training.state), RuntimeWarning, stacklevel=3)
            return "every step was rejected"
        if self.patience is not None:
            waited = int(training.epochs) - int(training.best_epoch)
            if waited >= self.patience:
                return f"the loss has not improved for {waited} epochs"
        return None
