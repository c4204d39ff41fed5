"""From parameters and a batch to a prox-linear direction and its report."""

from proxlin.direction.function import value_and_direction as value_and_direction
from proxlin.direction.oracle import Oracle as Oracle
from proxlin.direction.result import Direction as Direction
from proxlin.direction.result import Info as Info
