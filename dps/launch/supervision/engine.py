"""The interface of engines: an engine starts the tasks of a run somewhere, and passes on their output and their ends.

dps's own supervision stays in charge: it says which task is started when, and an engine fills the places. An engine is
a module in `dps/launch/engines`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from dps.launch.supervision.plan import RunPlan
from dps.process.record import made, record


@record
class Order:
    """One task to start: `python -m dps.role ARGUMENTS`. `waits`: it reads the chief's address from stdin; `tell` of
    what was started writes it. `pass_fds`: descriptors of this process that the task inherits; an engine for other
    machines takes a pipe to the task and one from it, named in the task's DPS_RUN_FDS."""

    name: str
    arguments: Sequence[str]
    env: Mapping[str, str] = made(default_factory=dict)
    folder: str = ""
    waits: bool = False
    pass_fds: Sequence[int] = ()


class Started(Protocol):
    """A task that an engine has started."""

    name: str

    @property
    def host(self) -> str:
        """The machine where it runs; "" for this one."""

    @property
    def is_displaced(self) -> bool:
        """Whether its place is lost or about to go. It may be started again in another one, which is no restart."""

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""

    @property
    def code(self) -> int | None:
        """The exit code; negative: the signal that ended it; None while it runs."""

    @property
    def pid(self) -> int:
        """The process, on the machine where it runs."""

    def send_chief(self, chief: str) -> None:
        """Give a waiting task the chief's address; "" ends it. Does nothing for others, or a second time."""

    def send_signal(self, number: int) -> None:
        """Send a signal to it."""

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for its end, None: without a limit; returns whether it has ended."""

    def tell_to_end(self) -> None:
        """Ask it to end: a chief or ps ends at once, a program's loop after its step."""

    def end_task(self, timeout_s: float) -> None:
        """Ask it to end, and kill it after `timeout_s`. Blocks until it has ended."""


Line = Callable[[str, str], None]
"""Gets a line of a task's output: the task's name and the text; "dps" for the engine itself. Called on any thread."""
Notice = Callable[[Sequence[str], str], None]
"""Gets the tasks whose place is about to go, and why. Called on any thread."""


class Engine(Protocol):
    """Starts tasks."""

    @property
    def elsewhere(self) -> bool:
        """Whether tasks run on other machines: they need keys, cannot be pinned, and `open` may wait for machines."""

    def check(self, plan: RunPlan) -> None:
        """Raise ConfigError if the tasks of a plan cannot get what they ask for, as far as that is seen from here.
        Starts nothing."""

    def open(self, plan: RunPlan, line: Line, notice: Notice) -> str:
        """Get the machines of a run; returns where its chief listens, HOST:PORT or an address in a private folder.
        Blocks. Raises DpsError if a machine cannot be had."""

    def start(self, order: Order, line: Line, ended: Callable[[Started], None]) -> Started:
        """Start a task. `ended` is called on any thread after its last line. Blocks until it is started. Raises
        DpsError if there is no place for it (any more)."""

    def go_on(self) -> bool:
        """Whether a run whose chief has lost its place can begin again from its checkpoint, after `close` and another
        `open`."""

    def used(self) -> Mapping[str, Mapping[str, float]]:
        """What tasks use, by their names: `cpu_percent` (100: one processor), `memory_mb`, and where they are known
        `gpu_percent` and `gpu_memory_mb`. Called every 2 s, by one thread."""

    def close(self) -> None:
        """Give back what `open` got. May be called several times."""
