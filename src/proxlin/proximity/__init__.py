"""The proximity term, which keeps a direction short: its formulas, and its state."""

from proxlin.proximity.state import ProximityState as ProximityState
from proxlin.proximity.state import check_momentum as check_momentum
from proxlin.proximity.state import has_momentum as has_momentum
from proxlin.proximity.term import Proximity as Proximity
