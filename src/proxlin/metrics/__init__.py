r"""Metrics of the proximity term, learned from gradients or from the Jacobian.

In a metric :math:`P` a prox-linear direction minimizes the model of the objective plus
:math:`\tfrac{1}{2 \gamma} \langle d, P d \rangle`. Without inner steps it is :math:`\gamma P^{-1}
\nabla h`: a step of Adam or Shampoo, if :math:`P` is theirs.
"""

from proxlin.metrics.base import Diagonal as Diagonal
from proxlin.metrics.base import DiagonalMetric as DiagonalMetric
from proxlin.metrics.base import Euclidean as Euclidean
from proxlin.metrics.base import Inverse as Inverse
from proxlin.metrics.base import Metric as Metric
from proxlin.metrics.kronecker import Kronecker as Kronecker
from proxlin.metrics.kronecker import KroneckerState as KroneckerState
from proxlin.metrics.leaf import apply_roots as apply_roots
from proxlin.metrics.leaf import inverse_roots as inverse_roots
from proxlin.metrics.leaf import second_moments as second_moments
from proxlin.metrics.marquardt import Marquardt as Marquardt
from proxlin.metrics.space import Space as Space
from proxlin.metrics.stacks import axes_of as axes_of
