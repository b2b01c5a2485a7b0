"""The phases of a run, in the words that `dps status` and messages show."""

from __future__ import annotations

GATHER = "gathering the ps"
OPEN = "waiting for a session"
CONFIGURE = "configuring the ps"
INITIALISE = "initialising"
RUN = "training"
SETTLE = "completing pushes for a ps that leaves"
HOLD = "saving for a ps that leaves"
TRAINS = RUN, SETTLE
"""The phases in which pushes are applied."""
END = "ending"
FAILED = "failed"
