"""Step rules: how far to go along a direction, and which gamma to use for the next one."""

from proxlin.steps.rule import ScalarOrSchedule as ScalarOrSchedule
from proxlin.steps.rule import Step as Step
from proxlin.steps.rule import StepRule as StepRule
from proxlin.steps.searches import Armijo as Armijo
from proxlin.steps.searches import Fixed as Fixed
from proxlin.steps.searches import ModelStep as ModelStep
from proxlin.steps.stochastic_trust_region import SlopeState as SlopeState
from proxlin.steps.stochastic_trust_region import StochasticTrustRegion as StochasticTrustRegion
from proxlin.steps.trust_region import TrustRegion as TrustRegion
