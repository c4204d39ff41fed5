"""Solvers of the subproblems; they know nothing of networks or losses."""

from proxlin.solvers.cg import CG as CG
from proxlin.solvers.cholesky import Cholesky as Cholesky
from proxlin.solvers.system import LinearSolver as LinearSolver
from proxlin.solvers.system import NormalSystem as NormalSystem
from proxlin.solvers.system import Rows as Rows
from proxlin.solvers.system import Solution as Solution
from proxlin.solvers.system import Status as Status
