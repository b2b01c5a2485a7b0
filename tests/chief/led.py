"""A whole chief at a desk: what comes in is a call, what it asks and answers is looked at; races are lists of calls."""

from __future__ import annotations

from typing import Any

import numpy as np

from dps.actors.authorization import STRANGER, Peer
from dps.actors.ref import Sender
from dps.checkpoint import write_shard
from dps.chief.server import ChiefActor
from dps.errors import DpsError
from dps.messages.runs import (
    CloseSession,
    Configure,
    Configured,
    CutShard,
    Initialised,
    Members,
    OpenSession,
    Register,
    SaveShard,
    SessionOpened,
    ShardCut,
    ShardSaved,
)
from dps.transport.message import Message
from dps.variables.plan import VariableSpec, make_plan
from tests.chief.desk import Desk, Question
from tests.variables.models import SGD

SPECS = [VariableSpec("a", (2,), "<f4", SGD), VariableSpec("b", (2,), "<f4", SGD)]


def plan(ps: int, *holders: int) -> dict[str, Any]:
    """Two variables, on the ps that `holders` says, or one after the other, of a cluster of `ps`."""
    places = iter(holders or (0, 1 % ps))
    return make_plan(SPECS, tuple(range(ps)), lambda *_: next(places), None).to_wire()


class Led:
    """Two ps and two workers unless it is said otherwise; session n is worker n's."""

    def __init__(
        self, ps: int = 2, workers: int = 2, checkpoint_dir: str = "", storage: Any = None, **chief: Any
    ) -> None:
        self.desk, self.ended = Desk(storage), list[tuple[int, str]]()
        self.settings = {"checkpoint_dir": checkpoint_dir} if checkpoint_dir else {}
        self._ps = ps
        self._peers: dict[int, Peer] = {}
        self._requests: dict[Any, int] = {}
        """The number of the request that comes by each route: what comes by one route is one that is sent again."""
        self.chief = ChiefActor(
            range(ps), range(workers), None, lambda code, reason: self.ended.append((code, reason)), **chief
        )
        node: Any = self.desk
        self.chief.node = node
        self.chief.started()

    def killed(self) -> Any:
        """The chief's process is gone, and with it what it had claimed; its storage."""
        self.desk.storage._claims.clear()
        return self.desk.storage

    def tell(self, message: Message, route: Any, process: int = 1) -> Message | Exception | None:
        """A message as the node delivers it, from a process that has presented a ticket unless it is the first of its
        task; the last answer to this sender."""
        peer = STRANGER if process == 1 else self._peers.setdefault(process, Peer(str(process)))
        request = self._requests.setdefault(route, len(self._requests) + 1)
        sender = Sender(route, request, str(route), 0, peer)
        try:
            self.chief.handle(message, sender)
        except (DpsError, ValueError) as error:
            self.desk.answer(sender, error)
        return self.answered(route)

    def answered(self, route: Any) -> Message | Exception | None:
        return next((answer for to, answer in reversed(self.desk.answers) if to == route), None)

    # -- what comes in ------------------------------------------------------------------------------------------

    def register(self, job: str, task: int, process: int = 1) -> None:
        self.tell(Register(job, task, f"{job}:{task}", process, 0, {}), f"{job}:{task}", process)

    def gather(self) -> Led:
        for task in range(self._ps):
            self.register("ps", task)
        for task in range(2):
            self.register("worker", task)
        return self

    def open(self, session: int, incarnation: int = 0, epoch: int = 0, **other: Any) -> Message | Exception | None:
        """Worker `session` asks to be let in, with the plan and the settings of all unless others are said."""
        wanted = {"plan": plan(max(self._ps, 1)), "settings": self.settings, "job": "worker", "process": 1, **other}
        address = f"{wanted['job']}:{session}"
        message = OpenSession(
            session, wanted["job"], session, wanted["process"], address, epoch, wanted["plan"], wanted["settings"],
            0, incarnation,
        )  # fmt: skip
        return self.tell(message, session, wanted["process"])

    def close(self, session: int, error: str = "", process: int = 1) -> None:
        self.tell(CloseSession(session, error, "worker", session, ""), ("close", session), process)

    def lose(self, job: str, task: int) -> None:
        self.chief.lost(f"{job}:{task}", 1.0)

    # -- what the ps do -----------------------------------------------------------------------------------------

    def configure(self, *tasks: int) -> list[int]:
        """The ps that were asked take the epoch, or those of them that are named; who was asked."""
        asked = self.desk.take(Configure)
        for question in asked:
            message = question.message
            assert isinstance(message, Configure)
            if not tasks or message.shard in tasks:
                question.answer(Configured(message.epoch, 0))
        return [q.message.shard for q in asked if isinstance(q.message, Configure)]

    def initialise(self, session: int) -> None:
        self.tell(Initialised(self.chief.epochs.number, session), ("init", session))

    def save(self, step: int = 0, error: Exception | None = None) -> None:
        """All ps copy their shards and write them, or cannot."""
        run = self.chief.epochs.run
        for question in self.desk.take(CutShard):
            parts = [part for part in run.plan.parts if f"ps:{part.ps}" == question.to.address] if run else []
            counted = step if run is not None and question.to.address == f"ps:{run.plan.ps[0]}" else 0
            question.answer(ShardCut(step, step, [step] * len(parts), counted=counted))
        for question in self.desk.take(SaveShard):
            question.answer(error or self._written(question))

    def _written(self, question: Question) -> ShardSaved:
        order, run = question.message, self.chief.epochs.run
        assert isinstance(order, SaveShard) and run is not None
        ps = int(question.to.address.partition(":")[2])
        values = {part.name: np.zeros(part.shape, np.float32) for part in run.plan.parts if part.ps == ps}
        folder, index = f"{order.checkpoint_dir}/{order.name}", run.plan.ps.index(ps)
        file = write_shard(self.desk.storage, folder, index, len(run.plan.ps), values, {})
        return ShardSaved(file.file, file.nbytes, file.digest)

    def know(self) -> None:
        """All ps learn who takes part."""
        while asked := self.desk.take(Members):
            for question in asked:
                question.answer()

    def train(self, *sessions: int) -> Led:
        """From nothing to training, with these sessions; the first brings the values."""
        self.gather()
        for session in sessions:
            self.open(session)
        self.configure()
        self.initialise(sessions[0])
        self.save()
        self.know()
        return self

    def incarnations(self, *sessions: int) -> list[int]:
        """What sessions were told last; 0 for none."""
        answers = [self.answered(session) for session in sessions]
        return [a.incarnation if isinstance(a, SessionOpened) else 0 for a in answers]
