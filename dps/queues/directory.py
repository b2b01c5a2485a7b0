"""The directory of what tasks serve under a name, such as a dataset: an actor on the chief's node."""

from __future__ import annotations

from dps.actors.actor import Actor
from dps.actors.ref import Ref, Sender
from dps.messages.runs import AGENT, StopTask
from dps.transport.message import ANSWER, NODES, TASKS, Message

DIRECTORY = "directory"
"""The actor's name, on the chief's node."""
ANNOUNCE_S = 2.0
"""How often a task announces itself anew, so that a restarted chief learns of it."""
GRACE_S = 1.0
"""How long a task may be disconnected before it is taken out."""


NONE: list[str] = []
"""An empty default."""


class Announce(Message, kind=95, roles=TASKS):
    """Announces that the node at an address serves something under a name. Answered with Done."""

    name: str
    address: str
    tasks: int = 0
    """The number of tasks that serve under this name; 0: unknown."""


class Find(Message, kind=96, roles=NODES):
    """Answered with Found."""

    name: str


class FoundAddresses(Message, kind=97, roles=ANSWER):
    """The addresses under a name, sorted."""

    addresses: list[str]
    keys: list[str] = NONE
    """The owner of each one's key, as in `Accepted.user`; empty without keys."""
    tasks: int = 0
    """The number of tasks that there are to be, as they report it; 0: unknown."""


class Announcer(Actor):
    """Announces its node under a name as long as it runs, so that the node is told of the run's end."""

    def __init__(self, name: str, chief: str) -> None:
        self._name, self._chief = name, Ref(chief, DIRECTORY)

    def started(self) -> None:
        self.node.ask(self._chief, Announce(self._name, self.node.address), ANNOUNCE_S, lambda answer: None)
        self.node.after(ANNOUNCE_S, self.started)


class Directory(Actor):
    """The served names and their addresses, while their nodes are there. Those nodes end with the run."""

    def __init__(self) -> None:
        self._addresses: dict[str, dict[str, tuple[str, str, int]]] = {}
        """For each task that serves, by name: the address that this node dials, the address that others are told, the
        owner of its key, and how many tasks it says that there are."""

    def on_Announce(self, message: Announce, sender: Sender) -> None:
        address = self.node.dial_address(message.address)
        self._addresses.setdefault(message.name, {})[address] = message.address, self.node.user, message.tasks
        self.node.watch(address, GRACE_S)
        self.node.answer(sender)

    def on_Find(self, message: Find, sender: Sender) -> None:
        found = sorted(self._addresses.get(message.name, {}).values())
        tasks = max((tasks for _, _, tasks in found), default=0)
        self.node.answer(sender, FoundAddresses([told for told, _, _ in found], [user for _, user, _ in found], tasks))

    def lost(self, address: str, silent_s: float) -> None:
        for addresses in self._addresses.values():
            addresses.pop(address, None)
        self.node.unwatch(address)

    def stopping(self) -> None:
        for address in sorted({address for served in self._addresses.values() for address in served}):
            self.node.tell(Ref(address, AGENT), StopTask(0, "the run has ended"))
