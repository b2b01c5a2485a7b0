"""A node with an actor in one simulated process, and whoever writes to it in another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dps.actors.actor import Actor
from dps.actors.answers import Waiting
from dps.actors.caller import Caller
from dps.actors.node import Node
from dps.actors.ref import Ref, Sender
from dps.messages.runs import AskState, AskStats, Init, Stats
from dps.messages.sessions import Credit, Enter, Token
from dps.transport.current import runtime
from dps.transport.sim import Network, World
from dps.transport.sim.world import Fault

ADDRESS = "127.0.0.1:5000"
ECHO = Ref(ADDRESS, "echo")


class Echo(Actor):
    """Answers Enter(n) with Token(n); counts; fails, waits and keeps what it is told to."""

    def __init__(self) -> None:
        self.entered: list[int] = []
        self.events: list[str] = []
        self.kept: list[Sender] = []

    def started(self) -> None:
        self.events.append("started")

    def stopping(self) -> None:
        self.events.append("stopping")

    def lost(self, address: str, silent_s: float) -> None:
        self.events.append(f"lost {address} after {silent_s:.1f}")

    def back(self, address: str) -> None:
        self.events.append(f"back {address}")

    def on_Enter(self, message: Enter, sender: Sender) -> None:
        self.entered.append(message.epoch)
        self.node.answer(sender, Token(message.epoch))

    def on_Credit(self, message: Credit, sender: Sender) -> None:
        """Answered with Done in half a second."""
        self.node.answer(sender, Waiting("waits a while"))
        self.node.after(0.5, lambda: self.node.answer(sender))

    def on_AskState(self, message: AskState, sender: Sender) -> None:
        raise {1: ValueError("one is refused"), 2: KeyError("two")}[message.session]

    def on_AskStats(self, message: AskStats, sender: Sender) -> None:
        """Never answered while the node lives."""
        self.kept.append(sender)

    def on_Init(self, message: Init, sender: Sender) -> None:
        self.node.answer(sender, Stats({"sum": int(sum(int(a.sum()) for a in message.arrays))}))


def serve(echo: Echo, name: str = "ps:0", address: str = ADDRESS) -> Node:
    """A started node that hosts the actor."""
    node = Node(runtime(), address, name)
    node.host("echo", echo)
    node.start()
    return node


def with_echo(
    use: Callable[[Caller, World], object], echo: Echo | None = None, network: Network | None = None,
    faults: Sequence[Fault] = (), restarts: int = 0, seed: int = 0,
) -> World:  # fmt: skip
    """A world where ps:0 serves an Echo and worker:0 runs `use` with a Caller; worker:0 must end well."""
    world = World(seed, network=network, faults=faults)

    def main() -> None:
        serve(echo or Echo()).join()

    def body() -> None:
        caller = Caller(runtime(), "worker:0")
        use(caller, world)
        caller.close()

    world.process("ps:0", main, restarts=restarts)
    worker = world.process("worker:0", body)
    with world:
        world.run(stop=lambda: worker.state == "ended")
        problems: list[Any] = [worker.error, *worker.task_errors]
        for problem in problems:
            if problem is not None:
                raise problem
        assert worker.state == "ended"
    return world
