"""Nonlinear least squares: a function of parameters, from a first guess to a stopping rule."""

from proxlin.least_squares.driver import least_squares as least_squares
from proxlin.least_squares.result import Ending as Ending
from proxlin.least_squares.result import History as History
from proxlin.least_squares.result import LeastSquaresResult as LeastSquaresResult
