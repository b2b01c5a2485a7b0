"""A queue that the tasks of a run share by name, as one of them uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from dps.actors.answers import Done, Failed, Waiting
from dps.actors.caller import Caller
from dps.actors.ref import Ref
from dps.actors.requests import Request
from dps.errors import ConfigError, DeadlineExceeded, QueueClosed, TaskLost, checked_seconds, positive_seconds
from dps.hooks.scalars import is_name
from dps.process.telemetry import log
from dps.queues.messages import (
    QUEUES,
    AskPut,
    AskSize,
    CloseQueue,
    Finished,
    FinishGet,
    Get,
    Item,
    LeaveQueue,
    OpenQueue,
    Put,
    PutMissing,
    QueueOpened,
    SizeIs,
    Withdraw,
    Withdrawn,
)  # fmt: skip
from dps.task.server import Server
from dps.training.definition import whole_number
from dps.transport.message import Message
from dps.variables.items import pack, unpack

REPORT_S = 10.0
"""How often a long wait is logged."""
MOST_ITEMS = 1 << 31
"""The largest capacity."""
WITHDRAW_S = 2.0
"""How long a call whose time is over waits to hear that its request is void."""

_Answer = TypeVar("_Answer", bound=Message)


class Queue:
    """A bounded queue of nested arrays that tasks share by name: first in, first out.

    It lives on the chief's node, and ends with it. Each item that was put is got once, also when messages are lost or
    a task that gets dies. One thread at a time uses a `Queue`; make one for each thread.

    Made by `dps.data.queue`.

    Args:
        server: The task that uses it.
        name: The name that tasks share.
        capacity: How many items it holds. None: as it was made, 100 at first.
        timeout: Seconds that a call waits at most, unless it says otherwise. `dps.FOREVER`: no limit.

    Example:
        ```pycon
        >>> queue = dps.data.queue(server, "results", capacity=10)
        >>> queue.put({"worker": 3, "loss": np.ones(2)})
        >>> queue.size(), queue.get()["loss"]
        (1, array([1., 1.]))
        ```
    """

    def __init__(self, server: Server, name: str, capacity: int | None = None, timeout: float = 60.0) -> None:
        self.name, self._server, self._timeout = name, server, timeout
        runtime = server.runtime
        home = server.home()
        self._caller = Caller(runtime, server.name, home.keys)
        self._caller.connect(server.target, home.ticket)
        self._to = Ref(server.target, QUEUES)
        self._client = runtime.random.getrandbits(61)
        self._puts = self._gets = 0
        self._came: Item | None = None
        """An item of the last get. It is not known yet whether it is this client's."""
        self._busy = False
        self._reason = ""
        opening = OpenQueue(name, capacity or 0, self._client, server.name, server.address)
        self.capacity: int = self._ask(opening, QueueOpened, "opening", timeout).capacity
        """How many items it holds."""

    def put(self, value: Any, timeout: float | None = None) -> None:
        """Put an item at the end. Blocks while the queue is full.

        Args:
            value: Arrays, numbers, text and bytes, in lists, tuples and dicts. It may be changed after the call.
            timeout: Seconds; None: as of the queue.

        Raises:
            QueueClosed: Somebody has closed the queue; the item was not put.
            DeadlineExceeded: There was no room in time. The item was not put, or the message says that it may be.
            TypeError: A value that cannot travel.
        """
        form, arrays = pack(value)
        self._puts += 1
        number = self._puts
        whole = Put(self.name, self._client, number, form, tuple(array.copy() for array in arrays))
        light = AskPut(self.name, self._client, number)
        missing = [True]
        """Whether the next message has to carry the item, because it has not arrived as far as is known."""

        def resend() -> Message:
            return whole if missing[0] else light

        def took(answer: Message) -> bool:
            missing[0] = isinstance(answer, PutMissing)
            return not isinstance(answer, Waiting | PutMissing)

        try:
            self._ask(whole, Done, "put", checked_seconds(timeout, self._timeout), resend, took)
        except DeadlineExceeded as error:
            if not self._withdraw(number, 0, error, "the item may still be put"):
                raise

    def get(self, timeout: float | None = None) -> Any:
        """Take the first item. Blocks while the queue is empty.

        Args:
            timeout: Seconds; None: as of the queue. 0: an item that is there now.

        Returns:
            The item; its arrays are the caller's own.

        Raises:
            QueueClosed: The queue is closed, and nothing is left in it.
            DeadlineExceeded: No item came in time; says who put the last one.
        """
        seconds = checked_seconds(timeout, self._timeout)
        deadline = self._caller.now() + seconds
        while True:
            if self._came is None:
                self._gets += 1
                asked = Get(self.name, self._client, self._gets, self._gets)
                try:
                    self._came = self._ask(asked, Item, "get", deadline - self._caller.now())
                except DeadlineExceeded as error:
                    self._withdraw(0, self._gets, error, "")
                    raise
            finish = FinishGet(self.name, self._client, self._came.number)
            yours = self._ask(finish, Finished, "get", max(deadline - self._caller.now(), WITHDRAW_S)).yours
            item, self._came = self._came, None
            if yours:
                return unpack(item.form, item.arrays)

    def size(self) -> int:
        """The number of items that can be got now. Blocks until the chief answers.

        Returns:
            The number, which others may change at any time.

        Raises:
            DeadlineExceeded: The chief did not answer within the queue's timeout.
            Aborted: The chief was started again, and the items are lost.
            TaskLost: The run has ended.
        """
        return self._ask(AskSize(self.name, self._client), SizeIs, "size", self._timeout).items

    def close(self) -> None:
        """Close the queue for all tasks: no more items can be put, and those in it can still be got. Blocks.

        Every call that waits with an item to put, or for an item that will not come, raises `QueueClosed`.

        Raises:
            DeadlineExceeded: The chief did not answer within the queue's timeout.
            Aborted: The chief was started again, and the items are lost.
            TaskLost: The run has ended.
        """
        self._ask(CloseQueue(self.name, self._client), Done, "close", self._timeout)

    def leave(self) -> None:
        """Free the sockets of this `Queue`, and its place at the queue. Others use the queue as before.

        Blocks until the chief answers, for a short time at most. Raises nothing.
        """
        if self._client:
            try:
                self._ask(LeaveQueue(self.name, self._client), Done, "leave", WITHDRAW_S)
            except Exception as error:  # it is forgotten with its task
                log.debug("%s: leaving queue %r: %s", self._server.name, self.name, error)
            self._client = 0
            self._caller.close()

    def __iter__(self) -> Iterator[Any]:
        """Get items until the queue is closed and empty."""
        while True:
            try:
                yield self.get()
            except QueueClosed:
                return

    def _withdraw(self, put: int, get: int, late: DeadlineExceeded, unknown: str) -> bool:
        """Withdraw a request. Returns True if a put was accepted in the last moment."""
        try:
            return self._ask(Withdraw(self.name, self._client, put, get), Withdrawn, "withdrawing", WITHDRAW_S).accepted
        except DeadlineExceeded:
            if unknown:
                raise DeadlineExceeded(f"{late}; {unknown}") from None
            return False

    def _ask(
        self,
        message: Message,
        wanted: type[_Answer],
        what: str,
        seconds: float,
        resend: Callable[[], Message] | None = None,
        took: Callable[[Message], bool] = lambda answer: not isinstance(answer, Waiting),
    ) -> _Answer:
        """Send until the answer comes and return it, or raise what it carries."""
        answers: list[Message] = []
        self._reason = ""

        def feed(answer: Message) -> bool:
            if isinstance(answer, Waiting):
                self._reason = answer.reason
            if not took(answer):
                return False
            answers.append(answer)
            return True

        if self._busy or not self._client:
            why = "another thread uses it; make one for each" if self._busy else "it was left; make another one"
            raise ConfigError(f"queue {self.name!r}: {why}")
        self._busy = True
        request = self._caller.start(self._to, message, feed, resend)
        try:
            self._wait_for_answer(request, what, seconds)
        finally:
            self._caller.drop(request)
            self._busy = False
        answer = answers[0]
        if isinstance(answer, Failed):
            raise answer.exception()
        assert isinstance(answer, wanted), answer
        return answer

    def _wait_for_answer(self, request: Request, what: str, seconds: float) -> None:
        """Wait for the answer, and for a first one a short time also where the call has none left. Raises
        DeadlineExceeded, which says why it is not there, or TaskLost."""
        now = self._caller.now
        began = now()

        def stops() -> bool:
            return self._is_over() or (bool(self._reason) and now() - began >= seconds)

        while True:
            waited_s = now() - began
            left_s = (seconds if waited_s < seconds else max(seconds, WITHDRAW_S)) - waited_s
            if self._caller.wait([request], max(0.0, min(left_s, REPORT_S)), stops):
                return
            if self._server.exit_code is not None:
                raise TaskLost(f"queue {self.name!r}: {self._server.reason or 'the run has ended'}")
            waited_s = now() - began
            text = f"{what}: {self._reason or f'the chief at {self._to.address} does not answer'}"
            if stops() or waited_s >= max(seconds, WITHDRAW_S):
                raise DeadlineExceeded(f"{self._server.name}: {text}; waited {waited_s:.1f} s")
            if waited_s < seconds:
                log.warning("%s: %s; has waited %.0f s", self._server.name, text, waited_s)

    def _is_over(self) -> bool:
        return self._server.exit_code is not None


def queue(server: Server, name: str, capacity: int | None = None, timeout: float = 60.0) -> Queue:
    """A queue that all tasks of the run share by this name. It is made by the first one that asks for it.

    Args:
        server: The task that uses it.
        name: The name, 1 to 200 characters.
        capacity: How many items it holds; the same in all tasks, or None. None at first: 100.
        timeout: Seconds that a call waits at most, unless it says otherwise. `dps.FOREVER`: no limit.

    Returns:
        The queue, for one thread of this task.

    Raises:
        ConfigError: The queue is there with another capacity, or an argument makes no sense.
        ValueError: A timeout that is no number of seconds.
        DeadlineExceeded: The chief does not answer.

    Example:
        ```pycon
        >>> steps = dps.data.queue(server, "steps", capacity=4)
        >>> for step in range(3):
        ...     steps.put(step)
        >>> steps.close()
        >>> list(steps)
        [0, 1, 2]
        ```
    """
    if not isinstance(server, Server) or not isinstance(name, str) or (name and not is_name(name)):
        raise ConfigError(f"queue: got {server!r:.60} and {name!r:.60}, wanted this process's dps.Server and a name")
    if capacity is not None:
        capacity = whole_number(f"queue {name!r}: got capacity ", capacity, 1)
        if capacity > MOST_ITEMS:
            raise ConfigError(f"queue {name!r}: got capacity {capacity:.3g}, wanted at most {MOST_ITEMS}")
    return Queue(server, name, capacity, positive_seconds(f"queue {name!r}: got timeout ", timeout, 60.0))
