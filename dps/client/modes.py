"""The update modes on a session's side: what each changes in how a session joins, pushes and reads.

`dps/ps/modes/` is the ps's side. Facts that a push or a pull needs are attributes: a call would cost more than they do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from dps.client.membership import Steps, TokenSteps
from dps.errors import ConfigError

if TYPE_CHECKING:
    from dps.client.training import PsTraining, SessionParts


class ClientMode:
    """What all modes have in common, and the mode async: each ps applies a push on arrival."""

    steps: ClassVar[type[Steps]] = Steps
    """How the session counts steps."""
    is_atomic = False
    """Whether a push is one for all ps: each of them gets it, and the step ps's result is that of all."""
    assigns_with_push = False
    """Whether assigned values go with the next push, and are no push of their own."""
    has_stable_values = False
    """Whether the values after a push stay the newest until the session's next push."""
    asks_step_ps_first = False
    """Whether a pull waits for the step ps's answer before it asks the other ps."""
    streams = True
    """Whether a ps may apply the pieces of a push one by one, and send finished parts meanwhile."""
    step_ps_gets_all = False
    """Whether the step ps gets each push with gradients, also one that has none for it: it decides with them who goes
    on. Else another ps counts such a push."""

    def __init__(self, settings: dict[str, Any], ps: int) -> None:
        """`settings`: those of the update mode, as on the wire; `ps`: how many there are."""
        self.pull_follows_push = True
        """Whether a pull may be sent right behind a push: not if the ps may let the session read before the push is
        applied."""
        self.push_lends_values = True
        """Whether a ps on this machine may lend values with the result of a push."""
        self.checks_finite = ps > 1 and not self.is_atomic
        """Whether the session looks for NaN before it pushes: a ps cannot refuse what another has applied."""

    def enters(self, brings_plan: bool, averages: bool) -> bool:
        """Whether a session asks the step ps for the step when it joins. `brings_plan`: it is no reader. `averages`:
        its copy would be averaged in local mode."""
        return True

    def check_prefetch(self) -> None:
        """Raise ConfigError if a loop may not read ahead."""

    def training(self, parts: SessionParts) -> PsTraining:
        """The calls of a session that trains."""
        from dps.client.training import PsTraining

        return PsTraining(parts)


class BoundedClientMode(ClientMode):
    """As async, but the step ps lets a session read only if it is not too far ahead of the slowest."""

    asks_step_ps_first = step_ps_gets_all = True
    streams = False

    def __init__(self, settings: dict[str, Any], ps: int) -> None:
        super().__init__(settings, ps)
        self.pull_follows_push, self.push_lends_values = ps == 1, False


class SyncClientMode(ClientMode):
    """A step is of the pushes of several workers, and the same on all ps. Its end gives each worker a token."""

    steps = TokenSteps
    is_atomic = assigns_with_push = has_stable_values = step_ps_gets_all = True
    streams = False

    def __init__(self, settings: dict[str, Any], ps: int) -> None:
        super().__init__(settings, ps)
        own_step = settings.get("replicas_to_aggregate") is None and not settings.get("initial_tokens")
        self.pull_follows_push = self.push_lends_values = own_step  # else a token may come before the step

    def enters(self, brings_plan: bool, averages: bool) -> bool:
        return brings_plan

    def check_prefetch(self) -> None:
        # A gradient belongs to the step that it was computed from.
        raise ConfigError("prefetch in sync mode would take gradients from the step before; use pull or step")


class LocalClientMode(SyncClientMode):
    """The session trains a copy of its own for a round, whose end is a synchronous step."""

    def __init__(self, settings: dict[str, Any], ps: int) -> None:
        super().__init__(settings, ps)
        self._round: int = settings["steps"]

    def enters(self, brings_plan: bool, averages: bool) -> bool:
        return brings_plan and averages

    def check_prefetch(self) -> None:
        raise ConfigError("prefetch in local mode: a worker's values are in its own copy already; use pull or step")

    def training(self, parts: SessionParts) -> PsTraining:
        from dps.client.local import DrivingTraining, LocalTraining

        return LocalTraining(parts, self._round) if parts.connection.joining.averages else DrivingTraining(parts)


MODES: dict[str, type[ClientMode]] = {
    "async": ClientMode, "bounded": BoundedClientMode, "sync": SyncClientMode, "local": LocalClientMode,
}  # fmt: skip


def client_mode(settings: dict[str, Any], ps: int) -> ClientMode:
    """The mode with these settings in a run of so many ps."""
    return MODES[settings["mode"]](settings, ps)
