"""Checkers of pieces of your own, against the identities that the library relies on."""

from proxlin.testing.linear_solvers import check_linear_solver as check_linear_solver
from proxlin.testing.losses import check_loss as check_loss
from proxlin.testing.metrics import check_metric as check_metric
from proxlin.testing.regularizers import check_regularizer as check_regularizer
from proxlin.testing.step_rules import check_step_rule as check_step_rule
