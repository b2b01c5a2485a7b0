"""Finds the tasks that serve a dataset: the chief's node has their addresses, and they say how many they are."""

from __future__ import annotations

from dps.actors.caller import Caller
from dps.actors.ref import Ref
from dps.data.messages import feed_name
from dps.errors import DeadlineExceeded, TaskLost
from dps.queues.directory import DIRECTORY, Find, Found
from dps.server import Server

LOOK_S = 0.2


class Finder:
    """Finds the tasks that serve under one name. `tasks`: how many are wanted; None: as many as they report, else
    one."""

    def __init__(self, server: Server, name: str, tasks: int | None, timeout_s: float) -> None:
        self._server, self._name, self._tasks, self._timeout_s = server, name, tasks, timeout_s

    def find(self, caller: Caller) -> list[Ref]:
        """The tasks, when as many as are wanted are there. Blocks. Raises DeadlineExceeded with how many are."""
        began, there, wanted = caller.now(), 0, self._tasks or 1
        while True:
            left = self._timeout_s - (caller.now() - began)
            if left <= 0:
                raise DeadlineExceeded(
                    f"{self._server.name}: dataset {self._name!r} is served by {there} of {wanted} tasks after "
                    f"{self._timeout_s:.1f} s; start one with --job dataset, or dps.data.serve"
                )
            if self._server.exit_code is not None:
                raise TaskLost(f"dataset {self._name!r}: {self._server.reason or 'the run has ended'}")
            found, said = self.now(caller, left)
            there, wanted = len(found), self._tasks or said or 1
            if there >= wanted:
                return found
            self._server.runtime.sleep(min(LOOK_S, left))

    def now(self, caller: Caller, timeout_s: float) -> tuple[list[Ref], int]:
        """The tasks that serve now, and how many there are to be, as they report it; 0 if they do not. Blocks."""
        answer = caller.ask(Ref(self._server.target, DIRECTORY), Find(self._name), timeout_s)
        assert isinstance(answer, Found), answer
        for address, role in zip(answer.addresses, answer.keys, strict=False):
            caller.expect(address, role or "chief")  # of the chief's own node it is not known
        return [Ref(address, feed_name(self._name)) for address in answer.addresses], answer.tasks
