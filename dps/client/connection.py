"""A session's connection to its run: what it knows of chief and ps, and the questions that it asks them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dps.actors.answers import Failed, Waiting
from dps.actors.caller import Caller
from dps.actors.ref import Ref, is_local
from dps.actors.requests import Request
from dps.actors.standing import Home, error_of
from dps.client.lanes import Lanes, PsPeer
from dps.client.membership import Agreed, Joining, Membership, ModeOf, Steps
from dps.errors import Aborted, DeadlineExceeded, DpsError
from dps.messages.runs import CHIEF, AskCluster, AskState, AskStats, CloseSession, ClusterIs, RunState, Stats
from dps.process.telemetry import LogThrottle, log
from dps.transport.message import Message
from dps.variables.rowlists import RowLists

if TYPE_CHECKING:
    from dps.client.compressing import Compression


FINISHED_S = 45.0
"""How long the session of a worker that has finished waits for the chief, whose machine may be suspended meanwhile."""


class EpochPoll:
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
            if isinstance(answer, RunState):
                self.leads = answer.leads
                if not answer.running or answer.epoch != membership.epoch:
                    membership.end()
            return True

        return connection.caller.start(connection.chief, AskState(connection.number), feed)


class Connection:
    """The state that the parts of a session share. It belongs to the user's thread.

    Who writes what: `Joining` sets membership, agreed, steps and peers; steps and membership have methods for who
    learns more.
    """

    def __init__(
        self, home: Home, mode: ModeOf, compression: Compression | None, shared_memory: bool, reads: bool
    ) -> None:
        """`mode`: as of `Agreed`. `compression`: how gradients and values travel; None: as they are. `reads`: the
        session only reads, now and then."""
        self.home = home
        self.caller = Caller(home.runtime, home.name, home.keys)
        self.chief = Ref(home.chief, CHIEF)
        self.number = home.runtime.random.getrandbits(61) + 1
        """The number by which the chief knows the session."""
        self.steps, self.membership, self.agreed = Steps(), Membership(), Agreed()
        self.peers: dict[int, PsPeer] = {}
        """The ps on which variables lie, in the order of the plan; made anew with each incarnation."""
        self.compression = compression
        self.row_lists = RowLists(home.runtime.tuning.rows)
        self.lookout = EpochPoll(self)
        self.joining = Joining(self, Lanes(home.runtime, self.caller, shared_memory, reads), mode)
        self.caller.connect(home.chief, home.ticket)

    def cluster(self, deadline: float, lacks: Callable[[ClusterIs], str]) -> ClusterIs:
        """The tasks of the cluster, once nothing is missing: `lacks` says what is waited for, or "". Blocks until the
        deadline."""
        patience, pause_s = LogThrottle(), self.home.runtime.tuning.client.ask_again_s
        while True:
            found = self.ask(AskCluster(), deadline, "the chief")
            assert isinstance(found, ClusterIs)
            if not (text := lacks(found)):
                return found
            if self.caller.now() >= deadline - 2 * pause_s:  # a later answer could come too late to say why
                raise DeadlineExceeded(f"{self.home.name}: {text}")
            self.tell(patience, text)
            self.home.runtime.sleep(pause_s)

    def tell(self, patience: LogThrottle, text: str) -> None:
        """Log for whom the chief waits, unless people read the chief's own log in the same place."""
        told = self.home.runtime.shares_log or is_local(self.home.runtime, self.chief.address, CHIEF)
        if not told and patience.is_due(self.caller.now()):
            log.warning("%s: %s", self.home.name, text)

    def ask(
        self, message: Message, deadline: float, whom: str, ref: Ref | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> Message:  # fmt: skip
        """Ask the chief until the deadline, or until `stop()`, minding this node's own end. A `ref`, of a ps or of the
        chief, is asked in this run epoch: Aborted when that is over."""
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
            return (ref and str(self.joining.unreached)) or text[0]

        request = self.caller.start(ref or self.chief, message, feed)
        self.wait([request], deadline, late, look, stop)
        if not answers:
            self.caller.drop(request)
            raise DeadlineExceeded(f"{self.home.name}: {late()}")
        if isinstance(answers[0], Failed):
            raise answers[0].exception()
        return answers[0]

    def wait(
        self, requests: Sequence[Request], deadline: float, late: Callable[[], str],
        meanwhile: Callable[[], None] | None = None, stop: Callable[[], bool] | None = None,
    ) -> None:  # fmt: skip
        """As `wait_open`; requests whose wait has failed are dropped."""
        try:
            self.wait_open(requests, deadline, late, meanwhile, stop)
        except BaseException:
            for request in requests:
                self.caller.drop(request)
            raise

    def wait_open(
        self, requests: Sequence[Request], deadline: float, late: Callable[[], str],
        meanwhile: Callable[[], None] | None = None, stop: Callable[[], bool] | None = None,
    ) -> None:  # fmt: skip
        """Pump until the requests are complete or `stop()` is true. Raises DeadlineExceeded with the text of `late()`,
        and what `check_node` raises; the requests stay open. `meanwhile` is called twice a second."""
        slice_s = self.home.runtime.tuning.client.slice_s
        while not self.caller.wait(requests, min(slice_s, max(0.0, deadline - self.caller.now())), stop):
            self.check_node()
            self.joining.unreached.log_unreached()
            if stop is not None and stop():
                return
            if meanwhile is not None:
                meanwhile()
            if self.caller.now() >= deadline:
                raise DeadlineExceeded(f"{self.home.name}: {late()}")

    def check_node(self) -> None:
        """Raise what `error_of` says when this node was told to end while the session still works."""
        over = self.home.exit_state()
        if over is not None:
            raise error_of(*over)

    def silent(self) -> str:
        """Which ps are disconnected, and since when, for error messages."""
        now = self.caller.now()
        away = self.caller.away
        refs = {f"ps:{ps}": peer.ref.address for ps, peer in self.peers.items()}
        names = [f"{name} (away for {now - away[at]:.0f} s)" for name, at in refs.items() if at in away]
        if self.chief.address in away:
            names.append(f"the chief (away for {now - away[self.chief.address]:.0f} s)")
        return ", ".join(names) or str(self.joining.unreached)

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
        self.home.track(self.number, None)
        try:
            if self.home.exit_state() is None:
                checkpoint_dir = str(self.agreed.settings.get("checkpoint_dir") or "")
                about = self.home.job, self.home.task, checkpoint_dir, self.steps.step, self.membership.epoch
                self._say_goodbye(CloseSession(self.number, error, *about), timeout_s)
        except DpsError as problem:
            log.debug("%s: could not say goodbye: %s", self.home.name, problem)
        finally:
            self.caller.close()

    def _say_goodbye(self, message: CloseSession, timeout_s: float) -> None:
        """Tell the chief of the session's end. A worker that has finished waits longer for a chief that was stopped or
        is started again, because a run without any finished worker has failed."""
        began, farewell_s = self.caller.now(), self.home.runtime.tuning.client.farewell_s
        try:
            self.caller.ask(self.chief, message, min(farewell_s, timeout_s))
        except DeadlineExceeded:
            deadline = began + min(FINISHED_S, timeout_s)
            if message.error or self.home.job != "worker" or self.caller.now() >= deadline:
                raise
            text = "%s: has finished, and waits up to %.0f s until the chief at %s knows"
            log.warning(text, self.home.name, deadline - self.caller.now(), self.chief.address)
            self.ask(message, deadline, "the chief")
