"""The phases of a run, in the words that `dps status` and messages show."""

from __future__ import annotations

GATHER = "gathering the ps"
OPEN = "waiting for a session"
CONFIGURE = "configuring the ps"
INITIALISE = "initialising"
RUN = "training"
HOLD = "saving for a ps that leaves"
END = "ending"
FAILED = "failed"
