"""The state of the run as a session knows it: the run epoch, the settings that all agreed on, and the step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from dps.actors.answers import Done, Failed, Waiting
from dps.actors.caller import UnreachedReport
from dps.actors.ref import Ref
from dps.actors.requests import Request
from dps.client.assembly import Whole, gather, pieces_of_parts
from dps.client.lanes import Lanes, PsPeer
from dps.errors import Aborted
from dps.messages.runs import Init, Initialised, OpenSession, SessionOpened
from dps.messages.sessions import PS, Enter, Token
from dps.process.telemetry import LogThrottle
from dps.transport.message import Message
from dps.transport.wire import Array
from dps.variables.plan import Plan, ShardLayout

if TYPE_CHECKING:
    from dps.client.connection import Connection
    from dps.client.modes import ClientMode


ModeOf = Callable[[dict[str, Any], int], "ClientMode"]
"""The update mode with these settings in a run of so many ps: `dps.client.modes.client_mode`."""


class Membership:
    """The session's membership in one run epoch. A new one is made when the session joins."""

    def __init__(self) -> None:
        """Of a session that has not joined yet."""
        self.epoch = self.restored = 0
        """`restored`: the step that the epoch began with."""
        self.left = 0, 0
        """The run epoch and the step at which the session last took part."""
        self.reached, self.certain = 0, True
        """The highest step since then, in epochs that are over, that the chief was told of, and whether it is certain
        that none was higher."""
        self.incarnation, self._last = 0, 0
        """`_last`: the last one before this under which the session took part."""
        self.kept: dict[int, tuple[int, list[int]]] = {}
        """What the values have of the pushes of the incarnation before: for each ps, the number of the last push with a
        result, and the last numbers that were not applied."""
        self.settles = False
        """Whether the session is to complete its pushes and join again, because a ps leaves."""
        self.over = self.entered = self.runs = False
        """`over`: a ps or the chief has said that the epoch or the incarnation has ended. The session has to join
        again. `entered`: the session takes part; before, it is only admitted, and after Ctrl-C or a deadline has to
        join again, too. `runs`: it takes part, and the epoch has not ended."""

    def next(self, opened: SessionOpened, step: int) -> Membership:
        """The membership after this one, in which the session has heard of `step`."""
        made = Membership()
        made.epoch, made.restored = opened.epoch, opened.step
        made.incarnation, made._last = opened.incarnation, self.took_part
        made.kept = {ps: (done, lacking) for ps, done, lacking in opened.kept}
        made.left, made.certain = (self.epoch, step), opened.certain
        made.reached = 0 if opened.epoch == self.epoch else opened.reached
        if not self.entered:  # nobody was told what the beginning of this one had undone
            made.left, made.reached, made.certain = self.left, max(made.reached, self.reached), False
        return made

    @property
    def took_part(self) -> int:
        """The last incarnation under which the session took part; 0: none."""
        return self.incarnation if self.entered else self._last

    def keeps(self, ps: int, number: int) -> bool:
        """Whether a ps has applied this push of the incarnation before, and the values have it."""
        done, lacking = self.kept.get(ps, (0, []))
        return number <= done and number not in lacking

    def begin(self) -> None:
        """The session takes part from here on. It has given up what was under way before."""
        self.entered, self.runs = True, not self.over

    def end(self) -> None:
        """The epoch, or the session's incarnation, has ended."""
        self.over, self.runs = True, False


class Agreed:
    """The settings on which all sessions and ps of a run epoch have agreed."""

    plan: Plan
    mode: ClientMode

    def __init__(self) -> None:
        """Of a session that does not know yet."""
        self.settings: dict[str, Any] = {}
        self.step_ps = -1

    @classmethod
    def of(cls, opened: SessionOpened, mode: ModeOf) -> Agreed:
        """What the chief says when it opens a session. `mode` makes the update mode out of its settings."""
        made = cls()
        made.plan, made.settings = Plan.from_wire(opened.plan), opened.settings
        made.step_ps, made.mode = made.plan.ps[0], mode(opened.settings["update"], len(made.plan.ps))
        return made


class Steps:
    """The highest global step that the session has heard of, which is the step of its pushes, too."""

    def __init__(self, step: int = 0) -> None:
        self.step = self.local_step = step
        """`local_step`: the step from whose values the next push is computed, as the ps shall count it."""
        self.least = 0
        """The lowest step whose values a read takes."""

    @classmethod
    def after(cls, before: Steps) -> Steps:
        """The steps of a session that knows its update mode now, and has counted with `before`."""
        return before if type(before) is cls else cls(before.step)

    def begin(self, step: int) -> None:
        """The session has joined at this step."""
        self.step = self.local_step = step

    def begin_numbers(self) -> None:
        """Pushes are numbered from 1 again, under a new incarnation."""

    def saw(self, step: int) -> None:
        """A ps has reached this step."""
        if step > self.step:
            self.step = self.local_step = step

    def pushed(self, push: int, step: int) -> None:
        """The push of this number has its result, and the step ps this step."""
        self.step = self.local_step = max(self.step, step)


class TokenSteps(Steps):
    """Steps in sync. A push's result is a token: its value is the step of the next push, the local step, and the lowest
    that the session reads."""

    def __init__(self, step: int = 0) -> None:
        super().__init__(step)
        self.least, self._token_of = step, 0

    def begin(self, step: int) -> None:
        self.step = self.local_step = self.least = step

    def begin_numbers(self) -> None:
        self._token_of = 0

    def saw(self, step: int) -> None:
        self.step = max(self.step, step)

    def pushed(self, push: int, step: int) -> None:
        self.step = max(self.step, step)
        if push > self._token_of:  # else a later push had its token before
            self._token_of, self.local_step, self.least = push, step, step


class Joining:
    """Joins the run, and again after each rollback, with what the session brings: its plan, settings, first values."""

    def __init__(self, connection: Connection, lanes: Lanes, mode: ModeOf) -> None:
        self._connection, self._caller = connection, connection.caller
        self._lanes, self._mode = lanes, mode
        self._refs: dict[int, Ref] = {}
        self.unreached = UnreachedReport(self._caller, connection.home.name)
        self._plan: dict[str, Any] = {}
        self.averages = connection.home.job in ("worker", "chief")
        """Whether, in local mode, the session's copy is averaged. That of a program that drives workers is not."""
        self._settings: dict[str, Any] = {}
        self.first_values: Callable[[dict[str, Array]], dict[str, Array]] | None = None
        """Makes the first values out of those of params, if the chief asks this session for them."""
        self._values: dict[str, Array] = {}
        """First values; empty once the session has joined."""
        self.batch = 0
        """How many examples a push stands for; 0: unknown."""

    def open(self, plan: Plan | None, values: dict[str, Array], settings: dict[str, Any], deadline: float) -> None:
        """Join for the first time. A session with a plan may be asked for the first values. Blocks."""
        self._values, self._settings = values, settings
        self._plan = {} if plan is None else plan.to_wire()
        self.join(deadline)
        self._connection.membership.begin()
        self._values = {}

    def take_part(self, deadline: float) -> None:
        """Join again, as a session that trains: a reader takes the plan of the run as its own. Blocks."""
        self._plan, self.averages = self._connection.agreed.plan.to_wire(), True
        self.join(deadline)
        self._connection.membership.begin()

    def join(self, deadline: float) -> None:
        """Join the run; again if the run epoch ends meanwhile. The caller begins the membership. Blocks."""
        connection = self._connection
        while True:
            opened, agreed = self._opened(deadline)
            before, steps = connection.membership, agreed.mode.steps.after(connection.steps)
            membership, enters = before.next(opened, steps.step), agreed.mode.enters(bool(self._plan), self.averages)
            if enters or opened.epoch != before.epoch:
                steps = agreed.mode.steps(opened.step)
            peers = self._peers(membership, agreed.plan)
            # One statement: Ctrl-C comes before it, and nothing has changed, or after it, and the session joins again.
            connection.membership, connection.agreed, connection.steps, connection.peers, self._caller.incarnation = (
                membership, agreed, steps, peers, opened.incarnation,
            )  # fmt: skip
            connection.home.joined(opened.epoch)
            try:
                if enters:
                    self._enter(deadline)
                return
            except Aborted:
                continue

    def _peers(self, membership: Membership, plan: Plan) -> dict[int, PsPeer]:
        layouts, least = plan.layouts, max(1, self._connection.home.runtime.tuning.shard_nbytes)
        lanes = self._lanes.open(
            self._refs, membership.epoch, lambda ps: layouts[ps].nbytes >= least or bool(layouts[ps].tables)
        )
        return {
            ps: PsPeer(self._caller, ps, self._refs[ps], layout, lanes[ps], membership.end)
            for ps, layout in layouts.items()
        }

    def _enter(self, deadline: float) -> None:
        """Learn the current step from the step ps. In sync, take part from there on: nobody enters during a step."""
        connection, ps = self._connection, self._connection.agreed.step_ps
        answer = connection.ask(Enter(connection.membership.epoch), deadline, f"ps:{ps}", self._refs[ps])
        assert isinstance(answer, Token)
        connection.steps.begin(answer.step)

    def _opened(self, deadline: float) -> tuple[SessionOpened, Agreed]:
        """Open the session. The chief admits it, or asks it for first values before, once for each run epoch."""
        connection, home, caller = self._connection, self._connection.home, self._caller
        waits_for, asked_in, patience, answers = "the chief has not answered", 0, LogThrottle(), list[Message]()

        def feed(answer: Message) -> bool:
            nonlocal waits_for, asked_in
            if isinstance(answer, Waiting):
                waits_for = answer.reason
                return False
            if isinstance(answer, SessionOpened) and answer.initialise:
                if answer.epoch > asked_in:
                    asked_in = answer.epoch
                    answers.append(answer)
                return False
            answers.append(answer)
            return True

        def late() -> str:
            return f"could not join the run at {connection.chief.address}: {str(self.unreached) or waits_for}"

        def tell() -> None:
            if "waits for" in waits_for:
                connection.tell(patience, waits_for)

        message = OpenSession(
            connection.number, home.job, home.task, home.process, home.address, connection.membership.epoch,
            self._plan, self._settings, connection.steps.step, caller.incarnation, self.batch,
            connection.membership.took_part,
        )  # fmt: skip
        request = caller.start(connection.chief, message, feed)
        while True:
            connection.wait([request], deadline, late, tell, lambda: bool(answers))
            answer = answers[-1]
            answers.clear()
            if isinstance(answer, Failed):
                raise answer.exception()
            assert isinstance(answer, SessionOpened)
            agreed = Agreed.of(answer, self._mode)
            self._connect(answer)
            if not answer.initialise:
                return answer, agreed
            self._send_first_values(answer, agreed.plan, deadline, lambda: bool(answers))

    def _connect(self, opened: SessionOpened) -> None:
        """Connect to the ps of the run, and to no others."""
        refs = {int(task): Ref(str(address), PS) for task, address in opened.addresses}
        for ref in refs.values():
            self._caller.expect(ref.address, PS)
        for task, ref in self._refs.items():
            if refs.get(task) != ref:
                self._caller.disconnect(ref.address)
        for ref in refs.values():
            self._caller.connect(ref.address, self._connection.home.ticket)
        self._refs = refs
        self.unreached.tasks = {f"ps:{task}": ref.address for task, ref in refs.items()}

    def _send_first_values(
        self, asked: SessionOpened, plan: Plan, deadline: float, over: Callable[[], bool]
    ) -> None:  # fmt: skip
        """Send all parts of all shards in pieces, but those that the ps make, then tell the chief. Stops when `over()`
        is true."""
        connection, caller = self._connection, self._caller
        requests: list[Request] = []
        errors: list[Exception] = []

        def feed(answer: Message) -> bool:
            if isinstance(answer, Failed):
                errors.append(answer.exception())
            return isinstance(answer, Done | Failed)

        if self.first_values is not None:
            self._values = self.first_values(self._values)
        tuning, ahead = connection.home.runtime.tuning, 0  # bytes that have to leave until a piece has left
        for ps, layout in plan.layouts.items():
            for offsets, arrays in self._first_pieces(plan, layout, tuning.piece_nbytes):
                message = Init(asked.epoch, layout.nbytes, offsets, asked.opener, arrays)
                ahead += sum(map(len, arrays))
                resend_s = 1.0 + ahead / tuning.nodes.least_nbytes_s
                requests.append(caller.start(self._refs[ps], message, feed, resend_s=resend_s))

        def stop() -> bool:
            return bool(errors) or over()

        self._wait_all(requests, errors, deadline, "the ps", stop)
        if not stop():
            done = caller.start(connection.chief, Initialised(asked.epoch, connection.number), feed)
            self._wait_all([done], errors, deadline, "the chief", stop)

    def _first_pieces(
        self, plan: Plan, layout: ShardLayout, most: int
    ) -> Iterator[tuple[list[int], tuple[Array, ...]]]:
        """The first values of a shard as offsets and bytes, each time about `most` bytes."""
        import mmap

        if any(spec.init is not None for spec in plan.variables):
            yield from pieces_of_parts(plan, layout, self._values, most)
            return
        values = Whole([self._values[spec.name] for spec in plan.variables])
        # mmap: the memory is zeroed, and goes back to the system. In malloc's heap it would leave a hole.
        run = np.frombuffer(mmap.mmap(-1, max(1, layout.nbytes)), np.uint8, layout.nbytes)
        gather(plan, layout, values, layout.flats(run), trained_only=False)
        for piece in layout.pieces(most):
            yield [offset for offset, _ in piece], tuple(run[offset : offset + n] for offset, n in piece)

    def _wait_all(
        self, requests: list[Request], errors: list[Exception], deadline: float, whom: str, stop: Callable[[], bool]
    ) -> None:

        def late() -> str:
            return str(self.unreached) or f"{whom} did not take the first values"

        self._connection.wait(requests, deadline, late, None, stop)
        for request in requests:
            self._caller.drop(request)
        for error in errors:
            if not isinstance(error, Aborted):
                raise error
