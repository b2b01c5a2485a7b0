"""A session's connection to its run: what it knows of chief and ps, and the questions that it asks them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dps import config
from dps.actors.caller import Caller
from dps.actors.local import local_actor
from dps.actors.messages import Failed, Waiting
from dps.actors.patience import Patience
from dps.actors.ref import Ref
from dps.actors.requests import Request
from dps.client.lanes import Lanes, Peer
from dps.client.membership import Agreed, Membership, Steps
from dps.errors import CANCELLED, Aborted, Cancelled, DeadlineExceeded, DpsError, NotAuthenticated, TaskLost
from dps.run_protocol import CHIEF, AskCluster, AskState, AskStats, CloseSession, ClusterIs, State, Stats
from dps.standing import Home
from dps.transport.message import Message
from dps.variables.rowlists import RowLists

if TYPE_CHECKING:
    from dps.client.compressing import Compression

log = logging.getLogger("dps")


class Lookout:
    """Asks the chief from time to time, without waiting, whether the run epoch still runs and who leads."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.leads = False
        """Whether this session leads, as far as the chief has said."""
        self._asked: Request | None = None
        """The question that is not answered yet."""
        self._asked_at = 0.0

    def look(self) -> None:
        """Ask, unless that was less than half a second ago."""
        caller = self._connection.caller
        now = caller.now()
        if now - self._asked_at < caller.runtime.tuning.client.slice_s:
            return
        self._asked_at = now
        if self._asked is not None:
            caller.drop(self._asked)
        self._asked = self._ask()

    def asks_leads(self, timeout_s: float) -> bool:
        """Whether this session leads now; the last known answer if the chief is away or has not answered since it was
        asked before. Blocks up to `timeout_s`."""
        caller, chief = self._connection.caller, self._connection.chief
        caller.poll()  # the chief may have answered, or come back, just now
        if self._asked is None:
            self._asked = asked = self._ask()
            caller.wait([asked], timeout_s, lambda: chief.address in caller.away)
        return self.leads

    def _ask(self) -> Request:
        connection, membership = self._connection, self._connection.membership

        def feed(answer: Message) -> bool:
            if isinstance(answer, Waiting):
                return False
            self._asked = None
            if isinstance(answer, State):
                self.leads = answer.leads
                if not answer.running or answer.epoch != membership.epoch:
                    membership.end()
            return True

        return connection.caller.start(connection.chief, AskState(connection.number), feed)


class Connection:
    """What the parts of a session share. It belongs to the user's thread.

    Who writes what: `Joining` sets membership, agreed and peers; steps and membership have methods for who learns more.
    """

    def __init__(
        self, home: Home, compression: Compression | None = None, shared_memory: bool = True, reads: bool = False
    ) -> None:
        """`compression`: how gradients and values travel; None: as they are. `reads`: the session only reads, now and
        then."""
        self.home = home
        self.caller = Caller(home.runtime, home.name, home.keys)
        self.chief = Ref(home.chief, CHIEF)
        self.number = home.runtime.random.getrandbits(61) + 1
        """By which the chief knows the session."""
        self.steps, self.membership, self.agreed = Steps(), Membership(), Agreed()
        self.peers: dict[int, Peer] = {}
        """The ps on which variables lie, in the order of the plan; made anew with each incarnation."""
        self.compression = compression
        self.row_lists = RowLists(home.runtime.tuning.rows)
        self.lookout = Lookout(self)
        from dps.client.joining import Joining  # here: `import dps` stays quick

        self.joining = Joining(self, Lanes(home.runtime, self.caller, shared_memory, reads))
        self.caller.connect(home.chief, home.ticket)

    def ps_tasks(self, deadline: float) -> list[int]:
        """The ps tasks of the cluster, once the chief knows all of them. Blocks until the deadline."""
        patience, pause_s = Patience(), self.home.runtime.tuning.client.ask_again_s
        while True:
            answer = self.ask(AskCluster(), deadline, "the chief")
            assert isinstance(answer, ClusterIs)
            if answer.complete:
                return sorted(int(task) for task in answer.cluster["ps"])
            if self.caller.now() >= deadline - 2 * pause_s:  # a later answer could come too late to say why
                raise DeadlineExceeded(f"{self.home.name}: {answer.text}")
            self.tell(patience, answer.text)
            self.home.runtime.sleep(pause_s)

    def tell(self, patience: Patience, text: str) -> None:
        """Say whom the chief waits for, unless the chief's own log comes to the same eyes."""
        told = config.launched.is_set() or self.home.runtime.simulated  # all tasks of a simulation write to one log
        told = told or local_actor(self.home.runtime, self.chief.address, CHIEF) is not None
        if not told and patience.due(self.caller.now()):
            log.warning("%s: %s", self.home.name, text)

    def ask(self, message: Message, deadline: float, whom: str, ref: Ref | None = None) -> Message:
        """Ask the chief (or a ps) until the deadline, minding this node's own end and new epochs."""
        answers: list[Message] = []
        text = [f"{whom} has not answered"]

        def feed(answer: Message) -> bool:
            if isinstance(answer, Waiting):
                text[0] = answer.reason
                return False
            answers.append(answer)
            return True

        def look() -> None:
            if ref is not None:
                self.lookout.look()
                if self.membership.over:
                    raise Aborted(f"run epoch {self.membership.epoch} is over")

        def late() -> str:
            return (ref and self.unreached({whom: ref.address})) or text[0]

        request = self.caller.start(ref or self.chief, message, feed)
        self.wait([request], deadline, late, look)
        if isinstance(answers[0], Failed):
            raise answers[0].exception()
        return answers[0]

    def wait(
        self, requests: Sequence[Request], deadline: float, late: Callable[[], str],
        meanwhile: Callable[[], None] | None = None, stop: Callable[[], bool] | None = None,
    ) -> None:  # fmt: skip
        """Pump until the requests are complete or `stop()` is true. Raises DeadlineExceeded with the text of `late()`,
        and what `check_node` raises. `meanwhile` is called twice a second."""
        slice_s = self.home.runtime.tuning.client.slice_s
        try:
            while not self.caller.wait(requests, min(slice_s, max(0.0, deadline - self.caller.now())), stop):
                self.check_node()
                if stop is not None and stop():
                    return
                if meanwhile is not None:
                    meanwhile()
                if self.caller.now() >= deadline:
                    raise DeadlineExceeded(f"{self.home.name}: {late()}")
        except BaseException:
            for request in requests:
                self.caller.drop(request)
            raise

    def check_node(self) -> None:
        """Raise TaskLost when this node was told to end while the session still works, Cancelled from this process."""
        over = self.home.over()
        if over is not None:
            code, reason = over
            if code == CANCELLED:
                raise Cancelled(reason)
            if code == NotAuthenticated.exit_code:
                raise NotAuthenticated(reason)
            raise TaskLost(reason or "the run has ended") if code in (0, 3) else DpsError(reason)

    def silent(self) -> str:
        """Which ps are disconnected, and since when, for error messages."""
        now = self.caller.now()
        away = self.caller.away
        refs = {f"ps:{ps}": peer.ref.address for ps, peer in self.peers.items()}
        names = [f"{name} (away for {now - away[at]:.0f} s)" for name, at in refs.items() if at in away]
        if self.chief.address in away:
            names.append(f"the chief (away for {now - away[self.chief.address]:.0f} s)")
        return ", ".join(names) or self.unreached(refs)

    def unreached(self, tasks: Mapping[str, str]) -> str:
        """The first of these tasks, by name and address, with which there never was a connection, and what to try."""
        found = next((task for task in tasks.items() if task[1] not in self.caller.reached), None)
        if found is None:
            return ""
        name, at = found
        return (
            f"cannot reach {name}: nobody answers at {at}, where it told the chief that it is; "
            f"open port {at.rpartition(':')[2]} in the firewall of {name}'s machine, or start {name} with another "
            "--advertise"
        )

    def stats(self, deadline: float) -> dict[str, Any]:
        """Counters of the chief and of every ps, by task name. Blocks."""
        refs = {"chief": self.chief, **{f"ps:{ps}": peer.ref for ps, peer in self.peers.items()}}
        found: dict[str, Any] = {}
        for name, ref in refs.items():
            answer = self.ask(AskStats(), deadline, name, None if ref is self.chief else ref)
            assert isinstance(answer, Stats)
            found[name] = answer.values
        return found

    def close(self, error: str, timeout_s: float) -> None:
        """Leave the run. A chief that does not answer is left alone."""
        try:
            if self.home.over() is None:
                checkpoint_dir = str(self.agreed.settings.get("checkpoint_dir") or "")
                message = CloseSession(
                    self.number,
                    error,
                    self.home.job,
                    self.home.task,
                    checkpoint_dir,
                    self.steps.step,
                    self.membership.epoch,
                )
                self.caller.ask(self.chief, message, timeout_s)
        except DpsError as problem:
            log.debug("%s: could not say goodbye: %s", self.home.name, problem)
        finally:
            self.caller.close()
