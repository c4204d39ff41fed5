"""The objective: a weighted sum of convex losses of networks, in one term or several."""

from proxlin.objective.decay import Decay as Decay
from proxlin.objective.objective import Objective as Objective
from proxlin.objective.objective import TermOutputs as TermOutputs
from proxlin.objective.terms import Sum as Sum
from proxlin.objective.terms import Term as Term
