"""One shard in one run epoch: its store, the sessions' ledgers, what they read, and the update mode."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from dps.actors.node import Node
from dps.actors.ref import Ref, Sender
from dps.errors import Aborted
from dps.messages.runs import Members
from dps.messages.sessions import APPLIED, CUT, Pushed
from dps.ps.intake.borrowed import Borrowed
from dps.ps.intake.credit import Credits
from dps.ps.intake.ledger import Ledger
from dps.ps.modes.counting import StepCounts
from dps.ps.modes.mode import Mode
from dps.ps.modes.whole_pushes import WholePushes
from dps.ps.serving.gate import Gate
from dps.ps.serving.reading import ShardReads
from dps.ps.serving.saving import Saving
from dps.ps.store.store import Store
from dps.variables.plan import Plan, ShardLayout

if TYPE_CHECKING:
    from dps.ps.serving.published import PublishedVersions

DIGEST = (1 << 63) - 1
"""The bits of a digest of pushes that travel."""


def digest_of(incarnation: int, number: int) -> int:
    """What an applied push adds to the digest of its shard. The same on all machines: only numbers are hashed."""
    # Hashes of consecutive numbers have nearly equal distances, so pushes 2 and 4 would add what 1 and 5 do.
    mixed = hash((incarnation, number))
    return hash((mixed ^ mixed >> 29, number))


class Shard:
    """The state of a ps between two Configure messages. All methods run on the node's thread.

    More than 12 attributes: the rooms of a ps meet here, and each has a part of its own.
    """

    def __init__(
        self, node: Node, epoch: int, plan: Plan, ps: int, addresses: dict[int, str], settings: dict[str, Any],
        device: str = "", threads: int = 1,
    ) -> None:  # fmt: skip
        """`device`, `threads`: as of `Store`, which may raise ConfigError for the device."""
        self.node, self.epoch, self.plan, self.ps = node, epoch, plan, ps
        self.step_ps = plan.ps[0]
        """The task of the ps that counts the steps."""
        self.is_step_ps = ps == self.step_ps
        self.store = Store(plan.layouts[ps], node.runtime, device, threads)
        self.gate = self._gate()
        """Through it leaves what tells of versions, or brings them."""
        self.layout: ShardLayout = self.store.layout
        """The order of the shard's parts in a run of bytes."""
        self.peers = {task: Ref(address, "ps") for task, address in addresses.items()}
        for address in addresses.values():
            node.expect(address, "ps")
        self.ledgers: dict[int, Ledger] = {}
        self.members: Members | None = None
        """The newest list of sessions; None while the shard has no first values."""
        self.settles = False
        """Whether sessions are to complete their pushes and join again."""
        self.saving = Saving(self)
        self._outcomes: dict[int, tuple[int, list[Any]]] = {}
        """What became of the pushes of sessions that have ended, and under which version of the members."""
        self.checks_finite = bool(settings.get("check_finite", True))
        self.is_small = bool(self.layout.trained) and self.layout.nbytes <= node.runtime.tuning.small_nbytes
        """Whether something of the shard is trained, and it has at most `small_nbytes`."""
        self.ended = False
        """Whether a newer run epoch has replaced this shard. Answers to its requests are then ignored."""
        self.mode: Mode
        self.step_counts = StepCounts()
        self._digest = 0
        """The sum of `digest_of` all pushes that were applied."""
        self.counts = {"applied": 0, "dropped": 0, "refused": 0, "pulls": 0, "copied_pulls": 0, "aborted": 0}
        self.credits = Credits(self.layout.gradient_nbytes, node.runtime.tuning)
        self.reading = ShardReads(self)
        self.pushes = WholePushes(self)
        self._versions: PublishedVersions | None = None

    def _gate(self) -> Gate:
        return self.node

    @property
    def versions(self) -> PublishedVersions:
        """The published versions of the shard."""
        if self._versions is None:
            from dps.ps.serving.published import PublishedVersions  # here: few runs publish, and a start is short

            self._versions = PublishedVersions(self)
        return self._versions

    def perform_cut(self, cut: str) -> None:
        """Copy the shard as it is now: for a published version, or for a checkpoint."""
        if cut.startswith(CUT):
            self.versions.perform_cut(cut)
        else:
            self.saving.perform_cut(cut)

    def notes(self) -> dict[str, Any]:
        """What the chief told to keep, with the published versions that are kept."""
        notes = {} if self.members is None else self.members.notes
        return notes if self._versions is None else {**notes, "versions": self._versions.notes()}

    @property
    def counted(self) -> int:
        """The steps that this shard counts. On the step ps: the one that the run epoch began with, and the pushes (in
        sync the steps) that it has applied; on another ps the pushes that count there. All shards together have the
        global step."""
        own = self.step_counts
        return self.store.step - own.taken if self.is_step_ps else own.counted

    @property
    def is_ready(self) -> bool:
        """Whether sessions may use the shard."""
        return self.members is not None

    @property
    def saves_memory(self) -> bool:
        """Whether pushes come one after the other, to save memory."""
        return self.store.is_large and self.mode.frees

    # -- sessions ---------------------------------------------------------------------------------------------

    def ledger(self, sender: Sender) -> Ledger:
        """The ledger of the session that sent a message of this run epoch. Raises Aborted for an incarnation that is
        not admitted."""
        if self.members is None:
            self.counts["aborted"] += 1
            raise Aborted(f"{self.node.name} has no members in run epoch {self.epoch} yet; {sender.name} is too early")
        found = self.ledgers.get(sender.incarnation)
        if found is None:
            self.counts["aborted"] += 1
            raise Aborted(f"{self.node.name} has not admitted incarnation {sender.incarnation} of {sender.name}")
        return found

    def set_members(self, message: Members) -> None:
        """Admit new sessions. The mode forgets those that have ended, when it may."""
        if self.members is not None and message.version <= self.members.version:
            return
        self.members, self.settles = message, message.settles
        self.node.tickets.admit("sessions", message.tickets)
        for incarnation, name, task, _ in message.live:
            if incarnation not in self.ledgers:
                memory = Borrowed(self.node.runtime, partial(self.node.tickets.is_near, incarnation))
                self.ledgers[incarnation] = Ledger(task, incarnation, name, memory)
        live = {member[0] for member in message.live}
        ended = {incarnation: ledger for incarnation, ledger in self.ledgers.items() if incarnation not in live}
        self.mode.set_members(message)
        self._outcomes = {
            i: (version, became) for i, (version, became) in self._outcomes.items() if version > message.known
        }
        self._outcomes |= {incarnation: (message.version, ledger.outcome()) for incarnation, ledger in ended.items()}
        self.reading.answer_waiting()

    def outcomes(self) -> list[list[Any]]:
        """What became of the pushes of sessions that have ended, as in MembersKnown."""
        return [[incarnation, *became] for incarnation, (_, became) in self._outcomes.items() if became[0]]

    def forget_session(self, incarnation: int) -> None:
        """Drop a session that has ended: its staged pushes, its results, its waiting reads."""
        ledger = self.ledgers.pop(incarnation, None)
        if ledger is not None:
            ledger.discard_all()
        self.reading.forget_session(incarnation)

    def results(self) -> tuple[list[list[int]], int]:
        """The number of each session's last push up to which all have results, and the digest of all applied pushes: as
        `pushes` and `digest` of ShardCut."""
        done = sorted([incarnation, ledger.done] for incarnation, ledger in self.ledgers.items() if ledger.done)
        return done, self._digest & DIGEST

    def commit_push(self, ledger: Ledger, result: Pushed) -> Pushed:
        """Record a push's result on this shard."""
        ledger.record_result(result)
        self.counts[result.status] += 1
        if result.status == APPLIED:  # the sum does not depend on the order
            self._digest += digest_of(ledger.incarnation, result.number)
        return result

    def commit_values(self, ledger: Ledger, result: Pushed) -> None:
        """Record the result of a push that has set values on this shard, which no count has."""
        ledger.record_result(result)
        self._digest += digest_of(ledger.incarnation, result.number)
