"""The batches of one dataset task in one pass: requested, received, in use and finished."""

from __future__ import annotations

from dps.actors.answers import Failed, Waiting, is_last
from dps.actors.caller import Caller
from dps.actors.ref import Ref
from dps.actors.requests import Question, Request
from dps.data.messages import Batch, EpochEnded, FeedIs, FinishBatches, JoinFeed, LeaveFeed, Want
from dps.task.server import Server
from dps.transport.message import Message


class Numbers:
    """The numbers of the batches of a stream, from 1: taken, and finished."""

    def __init__(self, window: int) -> None:
        self.window, self.floor = window, 1
        """`floor`: all lower numbers are finished."""
        self.finished: set[int] = set()
        """The numbers from the floor on that are finished."""
        self._next = 1

    def take_number(self) -> int:
        """The next number."""
        number, self._next = self._next, self._next + 1
        return number

    def finish_number(self, number: int) -> None:
        """The batch of a number is finished."""
        self.finished.add(number)
        while self.floor in self.finished:
            self.finished.discard(self.floor)
            self.floor += 1


class Stream:
    """The batches of one task in one pass: requested, received, in use and finished."""

    def __init__(self, caller: Caller, to: Ref, server: Server, window: int) -> None:
        self.to, self._caller, self._server = to, caller, server
        self._numbers = Numbers(window)
        self.reason, self.ended = "", False
        self.error: Exception | None = None
        self.open: dict[int, Request] = {}

    def join_epoch(self, timeout_s: float, epoch: int) -> bool:
        """Begin an epoch, or that of a task that was started again and is not as far. Blocks. Returns whether the epoch
        is over already."""
        self._client = self._server.runtime.random.getrandbits(61)
        self._caller.connect(self.to.address, self._server.home().ticket)  # it knows the client by it
        joined = JoinFeed(self._client, self._server.name, self._server.address)
        answer = self._caller.ask(self.to, joined, timeout_s)
        assert isinstance(answer, FeedIs), answer
        self.epoch, self.task = min(epoch, answer.epoch), answer.task
        self._numbers = Numbers(self._numbers.window)
        for request in self.open.values():
            self._caller.drop(request)
        self.open.clear()
        self.came: dict[int, Batch] = {}
        self.error = None
        for _ in range(self._numbers.window):
            self.request_batch()
        return answer.epoch > epoch

    def request_batch(self) -> None:
        """Ask for another batch, and tell what is finished."""
        epoch, client, numbers = self.epoch, self._client, self._numbers
        number = numbers.take_number()

        def message() -> Message:
            return Want(client, epoch, number, numbers.floor, sorted(numbers.finished))

        def feed(answer: Message) -> bool:
            if client == self._client:
                self._take_answer(number, answer)
            return not isinstance(answer, Waiting)

        self.open[number] = self._caller.start(self.to, message(), feed, message)

    def _take_answer(self, number: int, answer: Message) -> None:
        if isinstance(answer, Waiting):
            self.reason = answer.reason
            return
        self.open.pop(number, None)
        if isinstance(answer, Batch):
            self.came[number] = answer
        elif isinstance(answer, EpochEnded):
            self.ended = True
        elif isinstance(answer, Failed):
            self.error = answer.exception()

    def take_batch(self) -> tuple[int, Batch] | None:
        """The first batch that is here, if one is."""
        if not self.came:
            return None
        number = min(self.came)
        return number, self.came.pop(number)

    def finish_batch(self, number: int) -> None:
        """The batch is finished; another one takes its place under the credit."""
        self._numbers.finish_number(number)
        if not self.ended:
            self.request_batch()

    def confirm_batch(self, number: int) -> Request:
        """As `finish_batch`. The request is complete when the task knows that the batch is finished."""
        epoch, client, numbers = self.epoch, self._client, self._numbers
        numbers.finish_number(number)

        def message() -> Message:
            return FinishBatches(client, epoch, numbers.floor, sorted(numbers.finished))

        told = Question(is_last, message, lambda: None)
        self._caller.open(self.to, message(), told)
        self.request_batch()  # both leave together
        return told

    def end_stream(self) -> LeaveFeed:
        """The message that ends the stream."""
        for request in self.open.values():
            self._caller.drop(request)
        return LeaveFeed(self._client, self.epoch, self._numbers.floor, sorted(self._numbers.finished))
