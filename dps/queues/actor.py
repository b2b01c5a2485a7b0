"""The queues of a run as an actor on the chief's node."""

from __future__ import annotations

from dps.actors.actor import Actor
from dps.actors.answers import Waiting
from dps.actors.ref import Sender
from dps.errors import Aborted, ConfigError, QueueClosed
from dps.queues.messages import (
    LONGEST_NAME,
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
from dps.queues.state import MISSING, REFUSED, Action, Client, Ended, Given, QueueState, check_capacity

GRACE_S = 1.0
"""How long a client's node may be disconnected before what it has not acknowledged goes to others."""
CAPACITY = 100


class QueuesActor(Actor):
    """All queues of the run, by name."""

    def __init__(self) -> None:
        self.queues: dict[str, QueueState] = {}
        self._put_at: dict[str, float] = {}
        self._got_at: dict[str, float] = {}

    # -- clients -----------------------------------------------------------------------------------------------

    def on_OpenQueue(self, message: OpenQueue, sender: Sender) -> None:
        queue = self.queues.get(message.queue)
        if queue is None:
            if not 0 < len(message.queue) <= LONGEST_NAME:
                raise ConfigError(f"queue: got a name of {len(message.queue)} characters, wanted 1 to {LONGEST_NAME}")
            if message.capacity < 0:
                raise ConfigError(f"queue {message.queue!r}: got capacity {message.capacity}, wanted 1 or more")
            queue = self.queues[message.queue] = QueueState(message.queue, message.capacity or CAPACITY)
        check_capacity(queue, message.capacity)
        client = sender.client(message.client)
        queue.add_client(client, message.name, self.node.dial_address(message.address))
        self._watch_client(message.queue, client)
        self.node.answer(sender, QueueOpened(queue.capacity))

    def on_LeaveQueue(self, message: LeaveQueue, sender: Sender) -> None:
        self._carry_out_actions(
            message.queue, self._find_queue(message.queue).remove_client(sender.client(message.client))
        )
        self.node.answer(sender)

    def lost(self, address: str, silent_s: float) -> None:
        for name, queue in self.queues.items():
            self._carry_out_actions(name, queue.drop_node(address))
        self.node.unwatch(address)

    def _find_queue(self, name: str) -> QueueState:
        queue = self.queues.get(name)
        if queue is None:
            raise Aborted(f"queue {name!r} is not there any more: the chief was started again, and the items are lost")
        return queue

    def _watch_client(self, name: str, client: Client) -> QueueState:
        """The queue that a client's message names. The client's node is watched from then on, because it may have been
        lost before."""
        queue = self._find_queue(name)
        if client in queue.clients:
            self.node.watch(queue.clients[client].address, GRACE_S)
        return queue

    # -- puts --------------------------------------------------------------------------------------------------

    def on_Put(self, message: Put, sender: Sender) -> None:
        client = sender.client(message.client)
        queue, value = self._watch_client(message.queue, client), (message.form, message.arrays)
        self._carry_out_actions(message.queue, queue.put(client, message.number, value, sender))
        self._tell_put_waiting(queue, client, message.number, sender)

    def on_AskPut(self, message: AskPut, sender: Sender) -> None:
        client = sender.client(message.client)
        queue = self._watch_client(message.queue, client)
        self._carry_out_actions(message.queue, queue.find_put_result(client, message.number, sender))
        self._tell_put_waiting(queue, client, message.number, sender)

    def _tell_put_waiting(self, queue: QueueState, client: Client, number: int, sender: Sender) -> None:
        if queue.is_put_waiting(client, number):
            self.node.answer(sender, Waiting(self._full_text(queue)))

    def on_Withdraw(self, message: Withdraw, sender: Sender) -> None:
        queue, client = self._find_queue(message.queue), sender.client(message.client)
        accepted = bool(message.put) and queue.withdraw_put(client, message.put)
        if message.get:
            self._carry_out_actions(message.queue, queue.drop_gets(client, message.get))
        self.node.answer(sender, Withdrawn(accepted))

    # -- gets --------------------------------------------------------------------------------------------------

    def on_Get(self, message: Get, sender: Sender) -> None:
        client = sender.client(message.client)
        queue = self._watch_client(message.queue, client)
        self._carry_out_actions(message.queue, queue.get(client, message.number, message.floor, sender))
        if queue.is_get_waiting(client, message.number):
            self.node.answer(sender, Waiting(self._empty_text(queue)))

    def on_FinishGet(self, message: FinishGet, sender: Sender) -> None:
        yours, actions = self._find_queue(message.queue).finish_get(sender.client(message.client), message.number)
        self._carry_out_actions(message.queue, actions)
        self.node.answer(sender, Finished(yours))

    # -- all ---------------------------------------------------------------------------------------------------

    def on_AskSize(self, message: AskSize, sender: Sender) -> None:
        self.node.answer(sender, SizeIs(len(self._find_queue(message.queue).items)))

    def on_CloseQueue(self, message: CloseQueue, sender: Sender) -> None:
        self._carry_out_actions(message.queue, self._find_queue(message.queue).close())
        self.node.answer(sender)

    def _carry_out_actions(self, name: str, actions: list[Action]) -> None:
        now = self.node.now()
        for action in actions:
            if isinstance(action, Given):
                self._got_at[name] = now
                form, arrays = action.value
                self.node.answer(action.asker, Item(action.number, form, arrays))
            elif isinstance(action, Ended):
                self.node.answer(action.asker, QueueClosed(f"queue {name!r} is closed and empty"))
            elif action.result == REFUSED:
                self.node.answer(action.asker, QueueClosed(f"queue {name!r} is closed; the item was not put"))
            elif action.result == MISSING:
                self.node.answer(action.asker, PutMissing(action.number))
            else:
                self._put_at[name] = now
                self.node.answer(action.asker)

    def _full_text(self, queue: QueueState) -> str:
        text = f"queue {queue.name!r} is full ({len(queue.items)} of {queue.capacity} items); "
        if not queue.last_got:
            return f"{text}nobody has got one yet"
        return f"{text}the last one was got by {queue.last_got} {self.node.now() - self._got_at[queue.name]:.0f} s ago"

    def _empty_text(self, queue: QueueState) -> str:
        if not queue.last_put:
            return f"queue {queue.name!r} is empty; nobody has put anything yet"
        ago = self.node.now() - self._put_at[queue.name]
        return f"queue {queue.name!r} is empty; the last item was put by {queue.last_put} {ago:.0f} s ago"
