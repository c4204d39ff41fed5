"""The walk from parameters and a batch to a prox-linear direction, and what is found at its end."""

from proxlin.direction.found import Direction as Direction
from proxlin.direction.found import Info as Info
from proxlin.direction.found import Memory as Memory
from proxlin.direction.oracle import Oracle as Oracle
from proxlin.direction.oracle import value_and_direction as value_and_direction
