"""Solvers of the subproblems; they know nothing about networks or losses."""

from proxlin.solvers.cg import CG as CG
from proxlin.solvers.cholesky import Cholesky as Cholesky
from proxlin.solvers.composite import CompositeProblem as CompositeProblem
from proxlin.solvers.composite import CompositeSolution as CompositeSolution
from proxlin.solvers.composite import CompositeSolver as CompositeSolver
from proxlin.solvers.composite import ProximalGradient as ProximalGradient
from proxlin.solvers.lbfgs import LBFGS as LBFGS
from proxlin.solvers.lbfgs import SmoothSolution as SmoothSolution
from proxlin.solvers.lbfgs import SmoothSolver as SmoothSolver
from proxlin.solvers.multishift import MultiShiftCG as MultiShiftCG
from proxlin.solvers.orthogonal import QR as QR
from proxlin.solvers.orthogonal import SVD as SVD
from proxlin.solvers.system import Again as Again
from proxlin.solvers.system import Cost as Cost
from proxlin.solvers.system import LinearSolver as LinearSolver
from proxlin.solvers.system import NormalSystem as NormalSystem
from proxlin.solvers.system import Rows as Rows
from proxlin.solvers.system import Solution as Solution
from proxlin.solvers.system import Status as Status
from proxlin.solvers.system import TermRows as TermRows
from proxlin.solvers.system import matrix_of_terms as matrix_of_terms
