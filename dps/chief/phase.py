"""What the run is doing now, in the words that people see in `dps status` and in messages."""

from __future__ import annotations

GATHER = "gathering the ps"
OPEN = "waiting for a session"
CONFIGURE = "configuring the ps"
INITIALISE = "initialising"
RUN = "training"
END = "ending"
FAILED = "failed"
