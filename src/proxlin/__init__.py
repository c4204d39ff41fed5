"""Prox-linear (modified Gauss-Newton) directions for training neural networks."""

from proxlin.direction import Info as Info
from proxlin.direction import value_and_direction as value_and_direction
from proxlin.linearize import Linearization as Linearization
from proxlin.linearize import linearize as linearize
from proxlin.losses import BinaryLogistic as BinaryLogistic
from proxlin.losses import Factor as Factor
from proxlin.losses import FromFunction as FromFunction
from proxlin.losses import Hinge as Hinge
from proxlin.losses import Logistic as Logistic
from proxlin.losses import Loss as Loss
from proxlin.losses import Sparsemax as Sparsemax
from proxlin.losses import Squared as Squared
from proxlin.losses import check_loss as check_loss
from proxlin.optimizer import ProxLinearState as ProxLinearState
from proxlin.optimizer import StepInfo as StepInfo
from proxlin.optimizer import armijo_spl as armijo_spl
from proxlin.optimizer import direction_as_gradient as direction_as_gradient
from proxlin.optimizer import prox_linear as prox_linear
from proxlin.optimizer import spl as spl
from proxlin.regularizers import L1 as L1
from proxlin.regularizers import ElasticNet as ElasticNet
from proxlin.regularizers import GroupL2 as GroupL2
from proxlin.regularizers import Regularizer as Regularizer
from proxlin.regularizers import SquaredL2 as SquaredL2
from proxlin.regularizers import Zero as Zero
from proxlin.regularizers import check_regularizer as check_regularizer
from proxlin.sdca import SDCAInfo as SDCAInfo
from proxlin.sdca import sdca as sdca
from proxlin.solvers import CG as CG
from proxlin.solvers import LBFGS as LBFGS
from proxlin.solvers import Cholesky as Cholesky
from proxlin.solvers import NormalSystem as NormalSystem
from proxlin.solvers import ProximalGradient as ProximalGradient
from proxlin.solvers import Status as Status
from proxlin.steps import Armijo as Armijo
from proxlin.steps import Fixed as Fixed
from proxlin.steps import ModelStep as ModelStep
from proxlin.steps import TrustRegion as TrustRegion
from proxlin.subproblems import dual_convex as dual_convex
from proxlin.subproblems import dual_quadratic as dual_quadratic
from proxlin.subproblems import primal_convex as primal_convex
from proxlin.subproblems import primal_quadratic as primal_quadratic
from proxlin.terms import Sum as Sum
from proxlin.terms import Term as Term

__version__ = "0.1.0"
