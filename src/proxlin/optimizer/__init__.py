r"""Prox-linear methods as Optax transformations."""

from proxlin.optimizer.auto import auto as auto
from proxlin.optimizer.evaluation import eval_params as eval_params
from proxlin.optimizer.explanation import explain as explain
from proxlin.optimizer.explanation import warn_if_rejected as warn_if_rejected
from proxlin.optimizer.levenberg_marquardt import levenberg_marquardt as levenberg_marquardt
from proxlin.optimizer.methods import armijo_spl as armijo_spl
from proxlin.optimizer.methods import direction_as_gradient as direction_as_gradient
from proxlin.optimizer.methods import prox_linear as prox_linear
from proxlin.optimizer.methods import spl as spl
from proxlin.optimizer.shardings import state_shardings as state_shardings
from proxlin.optimizer.transformation import ProxLinearState as ProxLinearState
from proxlin.optimizer.transformation import StepInfo as StepInfo
