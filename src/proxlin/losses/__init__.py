"""Convex losses: value, gradient, Hessian factor, conjugate and its proximity operator."""

from proxlin.losses.base import Factor as Factor
from proxlin.losses.base import Loss as Loss
from proxlin.losses.function import FromFunction as FromFunction
from proxlin.losses.logistic import BinaryLogistic as BinaryLogistic
from proxlin.losses.logistic import Logistic as Logistic
from proxlin.losses.simplex import Hinge as Hinge
from proxlin.losses.simplex import Sparsemax as Sparsemax
from proxlin.losses.squared import Squared as Squared
