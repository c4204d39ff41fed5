"""A training loop for those who do not want to write one."""

from proxlin.training.fit import Epoch as Epoch
from proxlin.training.fit import Fitted as Fitted
from proxlin.training.fit import fit as fit
from proxlin.training.loop import Training as Training
