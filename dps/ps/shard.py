"""One shard in one run epoch: its store, the sessions' ledgers, what they read, and the update mode."""

from __future__ import annotations

from typing import Any

from dps.actors.ref import Ref, Sender
from dps.actors.system import Node
from dps.errors import Aborted
from dps.protocol import Pushed
from dps.ps.intake.borrowed import Borrowed
from dps.ps.intake.credit import Credits
from dps.ps.intake.ledger import Ledger
from dps.ps.modes.mode import Mode
from dps.ps.serving.reading import Reading
from dps.ps.serving.saving import Saving
from dps.ps.store.store import Store
from dps.run_protocol import Members
from dps.variables.plan import Plan, ShardLayout


class Shard:
    """What a ps holds between two Configure messages. All methods run on the node's thread.

    More than 12 attributes: the rooms of a ps meet here, and each has a part of its own.
    """

    def __init__(
        self, node: Node, epoch: int, plan: Plan, ps: int, addresses: dict[int, str], settings: dict[str, Any],
        device: str = "", threads: int = 1,
    ) -> None:  # fmt: skip
        """`device`, `threads`: as of `Store`, which may raise ConfigError for the device."""
        self.node, self.epoch, self.plan, self.ps = node, epoch, plan, ps
        self.store = Store(plan.layouts[ps], node.runtime, device, threads)
        self.layout: ShardLayout = self.store.layout
        """How the shard's parts lie in a run of bytes."""
        self.peers = {task: Ref(address, "ps") for task, address in addresses.items()}
        for address in addresses.values():
            node.expect(address, "ps")
        self.ledgers: dict[int, Ledger] = {}
        self.members: Members | None = None
        """The newest; None while the shard has no first values."""
        self.saving = Saving(self.store, plan, ps, node, self._decided)
        self.checks_finite = bool(settings.get("check_finite", True))
        trained = len(self.layout.arenas) == 1 and bool(self.layout.trained)
        self.is_small = trained and self.layout.nbytes <= node.runtime.tuning.small_nbytes
        """Whether a push is one run of few bytes."""
        self.ended = False
        """A newer run epoch has replaced this shard; what it still asked for is moot."""
        self.mode: Mode
        self.counts = {"applied": 0, "dropped": 0, "refused": 0, "pulls": 0, "copied_pulls": 0, "aborted": 0}
        self.credits = Credits(self.layout.gradient_nbytes, node.runtime.tuning)
        self.reading = Reading(self)

    @property
    def ready(self) -> bool:
        """Whether sessions may use the shard."""
        return self.members is not None

    @property
    def step_ps(self) -> int:
        """The task of the ps that counts the steps."""
        return self.plan.ps[0]

    @property
    def is_step_ps(self) -> bool:
        return self.ps == self.step_ps

    @property
    def spares(self) -> bool:
        """Whether memory is worth that pushes come one after the other."""
        return self.store.is_large and self.mode.frees

    # -- sessions ---------------------------------------------------------------------------------------------

    def ledger(self, sender: Sender, epoch: int) -> Ledger:
        """The ledger of a message's session; Aborted for another epoch or an incarnation not admitted."""
        if epoch != self.epoch or self.members is None:
            self.counts["aborted"] += 1
            raise Aborted(f"run epoch {epoch} is not the one of {self.node.name}, which is {self.epoch}")
        found = self.ledgers.get(sender.incarnation)
        if found is None:
            self.counts["aborted"] += 1
            raise Aborted(f"{self.node.name} has not admitted incarnation {sender.incarnation} of {sender.name}")
        return found

    def set_members(self, message: Members) -> None:
        """Admit new sessions and, in its own time, the mode forgets those that ended."""
        if self.members is not None and message.version <= self.members.version:
            return
        self.members = message
        self.node.tickets.admit("sessions", message.tickets)
        for incarnation, name, task, _ in message.live:
            if incarnation not in self.ledgers:
                self.ledgers[incarnation] = Ledger(task, incarnation, name, Borrowed(self.node.runtime))
        self.mode.members(message)
        self.reading.wake()

    def forget(self, incarnation: int) -> None:
        """Drop a session that has ended: its staged pushes, its results, its waiting reads."""
        ledger = self.ledgers.pop(incarnation, None)
        if ledger is not None:
            ledger.clear()
        self.reading.forget(incarnation)

    def _decided(self) -> list[list[int]]:
        """Of each session the number of its last push that has a result, with all before it."""
        return sorted([incarnation, ledger.done] for incarnation, ledger in self.ledgers.items() if ledger.done)

    def decide(self, ledger: Ledger, result: Pushed) -> Pushed:
        """Record a push's result on this shard."""
        ledger.record(result)
        self.counts[result.status] += 1
        return result
