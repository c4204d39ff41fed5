r"""KFAC (Martens and Grosse, 2015) by kfac-jax, the implementation that the paper compares with."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

import proxlin
from proxlin.bench.errors import UsageError
from proxlin.bench.models import Network
from proxlin.bench.models.network import Images

_HOW = "run `make rivals`, then this command with .venv-rivals/bin/python"


@dataclasses.dataclass(frozen=True)
class KFAC:
    """KFAC for one network; made by :func:`kfac`.

    Attributes:
        optimizer: of kfac-jax. It compiles itself: ``step`` must not be jitted.
        shape: of one input.
        stepsize: the learning rate, fixed.
        momentum: of the heavy ball, fixed.
        damping: what is added to the curvature, fixed.
        seed: of the random vectors that the curvature is estimated with.
    """

    optimizer: Any
    shape: tuple[int, ...]
    stepsize: float
    momentum: float
    damping: float
    seed: int

    def init(self, params: PyTree[Array], stats: PyTree[Array] = ()) -> PyTree[Array]:
        """The state of kfac-jax: a pytree of arrays."""
        # Only the shapes matter, and batches of another size are traced again.
        batch = (jnp.zeros((2, *self.shape), jnp.float32), jnp.zeros(2, jnp.int32))
        return self.optimizer.init(params, jax.random.key(self.seed), batch)

    def step(
        self,
        params: PyTree[Array],
        stats: PyTree[Array],
        state: PyTree[Array],
        inputs: Float[Array, "m *shape"],
        targets: Int[Array, " m"],
    ) -> tuple[PyTree[Array], PyTree[Array], PyTree[Array], dict[str, Array]]:
        """One step, a pure function of its arguments.

        Returns:
            Parameters, statistics, state, and the objective before the step as ``"value"``.

        Raises:
            UsageError: for targets that are not integer labels.
        """
        if not jnp.issubdtype(targets.dtype, jnp.integer):
            raise UsageError(
                f"kfac with targets of dtype {targets.dtype}: it takes integer labels only; "
                "choose another method for this task"
            )
        # Derived from the state, so that a resumed run draws the same vectors.
        key = jax.random.fold_in(jax.random.key(self.seed), state.step_counter)
        # kfac-jax donates its arguments; a pure function must not.
        params, state = jax.tree.map(jnp.copy, (params, state))
        params, state, info = self.optimizer.step(
            params,
            state,
            key,
            batch=(inputs, targets),
            learning_rate=self.stepsize,
            momentum=self.momentum,
            damping=self.damping,
        )
        return params, stats, state, {"value": info["loss"]}


def kfac(
    network: Network,
    loss: proxlin.Loss,
    shape: tuple[int, ...],
    stepsize: float,
    *,
    momentum: float = 0.9,
    damping: float = 1e-3,
    seed: int = 0,
) -> KFAC:
    """KFAC with fixed stepsize, momentum and damping, as in the paper's Appendix F.

    All else is the default of kfac-jax, except for the burn-in, which would use more batches than
    the other methods: the curvature is averaged from the first step on, and its factors are
    inverted every fifth step.

    Args:
        network: one without statistics.
        loss: :class:`proxlin.Logistic`.
        shape: of one input.
        stepsize: the learning rate.
        momentum: of the heavy ball.
        damping: what is added to the curvature.
        seed: of the random vectors that the curvature is estimated with.

    Returns:
        An optimizer with ``init`` and ``step``.

    Raises:
        UsageError: without kfac-jax, or for other losses or networks.
    """
    if not isinstance(loss, proxlin.Logistic):
        raise UsageError(f"kfac with {loss!r}: it takes Logistic() only; choose another method")
    params, stats = jax.eval_shape(network.init, jax.random.key(0))
    inputs = jax.ShapeDtypeStruct((2, *shape), jnp.float32)
    outputs, _ = jax.eval_shape(network.apply, params, inputs, stats)
    if outputs.ndim != 2:
        raise UsageError(
            f"kfac for outputs of shape {outputs.shape}: it takes networks with one label for each "
            "example; choose another method"
        )
    if jax.tree.leaves(stats):
        raise UsageError(
            "kfac for a network with BatchNorm: it takes networks without statistics only; choose "
            "another method, or a network such as convnet"
        )
    kfac_jax = _kfac_jax()

    def objective(params: PyTree[Array], batch: tuple[Array, Array]) -> Float[Array, ""]:
        inputs, targets = batch
        outputs = network.predict(params, inputs)
        kfac_jax.register_softmax_cross_entropy_loss(outputs, targets)
        return jnp.mean(loss.value(outputs, targets))

    optimizer = kfac_jax.Optimizer(
        jax.value_and_grad(objective),
        l2_reg=0.0,
        num_burnin_steps=0,
        layer_tag_to_block_ctor={"conv2d": _convolution_block(kfac_jax)},
    )
    return KFAC(optimizer, shape, stepsize, momentum, damping, seed)


def _kfac_jax() -> Any:
    """The package, if it is installed and works with this JAX."""
    try:
        package = importlib.import_module("kfac_jax")
    except ImportError as error:
        raise UsageError(f"kfac needs kfac-jax, which cannot be imported here: {_HOW}") from error
    if jax.__version_info__ >= (0, 10):
        raise UsageError(f"kfac-jax does not work with JAX {jax.__version__}: {_HOW}")
    return package


def _convolution_block(kfac_jax: Any) -> Any:
    """The blocks of kfac-jax for convolutions, with a faster computation of their curvature."""
    block = kfac_jax.Conv2DTwoKroneckerFactored
    return type("ConvolutionBlock", (block,), {"compute_inputs_stats": _compute_inputs_stats})


def _compute_inputs_stats(block: Any, inputs: Images, weighting_array: None = None) -> Array:
    """Second moments of the patches that a convolution sees, by one product of matrices.

    kfac-jax sums over shifts of the images in a loop of convolutions, which are slow on XLA:CPU
    (https://github.com/jax-ml/jax/issues/12868). The result is the same.
    """
    _, height, width, _ = inputs.shape
    size, _ = block.weights_spatial_shape
    if block.num_locations != height * width:
        raise UsageError(
            "kfac for a convolution that changes the size of its images: it takes those that keep "
            "the size, as in convnet and cnn; choose another method"
        )
    reach = (size // 2, size // 2)
    x = jnp.pad(inputs, [(0, 0), reach, reach, (0, 0)])
    shifts = [x[:, i : i + height, j : j + width] for i in range(size) for j in range(size)]
    if block.number_of_parameters == 2:  # with biases
        shifts.append(jnp.ones_like(inputs[..., :1]))
    patches = jnp.concatenate(shifts, axis=-1)
    patches = patches.reshape(-1, patches.shape[-1])
    return patches.T @ patches / len(patches)
