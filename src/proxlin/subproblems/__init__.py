"""Primal and dual subproblems, quadratic and convex; each declares what it accepts."""

from proxlin.subproblems.base import Subproblem as Subproblem
from proxlin.subproblems.base import Subsolution as Subsolution
from proxlin.subproblems.base import as_subproblem as as_subproblem
from proxlin.subproblems.convex import DualConvex as DualConvex
from proxlin.subproblems.convex import PrimalConvex as PrimalConvex
from proxlin.subproblems.convex import dual_convex as dual_convex
from proxlin.subproblems.convex import primal_convex as primal_convex
from proxlin.subproblems.model import ConvexModel as ConvexModel
from proxlin.subproblems.model import Factors as Factors
from proxlin.subproblems.model import vjp as vjp
from proxlin.subproblems.quadratic import DualQuadratic as DualQuadratic
from proxlin.subproblems.quadratic import PrimalQuadratic as PrimalQuadratic
from proxlin.subproblems.quadratic import dual_quadratic as dual_quadratic
from proxlin.subproblems.quadratic import primal_quadratic as primal_quadratic
