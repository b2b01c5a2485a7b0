"""Asks each ps what an earlier chief told it, so that a restarted chief can continue the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dps.actors.node import Node
from dps.actors.ref import Ref
from dps.checkpoint import parse_folder_name
from dps.checkpoint.storage import Storage
from dps.chief.run import newest_name, step_of
from dps.messages.runs import AskServing, ConfiguredBefore
from dps.messages.sessions import PS
from dps.transport.message import Message
from dps.variables.plan import Plan

ASK_S = 5.0
"""Timeout of one attempt to ask a ps."""


class Takeover:
    """Active from the first ps that has seen a run epoch until this chief leads. `found`: current answers, by ps."""

    def __init__(self, node: Node, changed: Callable[[], None]) -> None:
        """`changed` is called after each answer."""
        self._node, self._changed = node, changed
        self._asked: dict[int, str] = {}
        self.found: dict[int, ConfiguredBefore] = {}
        self.is_over = False
        """Whether this chief leads; from then on all epochs that ps have seen are its own."""

    @property
    def pending(self) -> list[int]:
        """The ps that have not answered yet."""
        return [task for task in self._asked if task not in self.found]

    def ask_ps(self, task: int, address: str) -> None:
        """Ask a ps that has registered and has seen a run epoch."""
        if not self.is_over and task not in self._asked:
            self._asked[task] = address
            self._ask_until_answered(task, address)

    def drop_answer(self, task: int) -> None:
        """Drop the answer of a ps that was lost."""
        self._asked.pop(task, None)
        self.found.pop(task, None)

    def _ask_until_answered(self, task: int, address: str) -> None:
        def answered(answer: Message | Exception) -> None:
            if self.is_over or self._asked.get(task) != address:
                return
            if isinstance(answer, ConfiguredBefore):
                self.found[task] = answer
                self._changed()
            else:
                self._ask_until_answered(task, address)

        self._node.ask(Ref(address, PS), AskServing(), ASK_S, answered)

    # -- what was found -----------------------------------------------------------------------------------------

    def newest(self) -> ConfiguredBefore | None:
        """The newest answer of a ps that serves an epoch; None if none serves any."""
        serving = [found for found in self.found.values() if found.epoch]
        return max(serving, key=lambda s: (s.epoch, s.trains, s.notes.get("version", 0)), default=None)

    def notes(self) -> ConfiguredBefore | None:
        """The answer with the newest notes; None if no session has trained yet."""
        trains = [found for found in self.found.values() if found.trains]
        return max(trains, key=lambda s: (s.epoch, s.notes["version"]), default=None)

    def versions(self, plan: Plan) -> tuple[int, list[list[Any]]]:
        """The highest number of a published version that a ps keeps, and the versions that all ps of the plan keep."""
        kept = {task: list(found.notes.get("versions", ())) for task, found in self.found.items()}
        highest = max((int(version[0]) for versions in kept.values() for version in versions), default=0)
        common = set.intersection(*({version[0] for version in kept.get(task, ())} for task in plan.ps))
        return highest, [version for version in kept.get(plan.ps[0], ()) if version[0] in common]

    def is_whole(self, plan: Plan, epoch: int) -> bool:
        """Whether all ps of the plan serve this epoch, and it trains."""
        served = [self.found[task] for task in plan.ps if task in self.found]
        same = len(served) == len(plan.ps) and all(s.epoch == epoch for s in served)
        return same and any(s.trains for s in served)


class EarlierSessions:
    """The highest step of these sessions, and the checkpoint_dir that they named."""

    def __init__(self) -> None:
        self._checkpoint_dir, self._step = "", 0

    def record_close(self, checkpoint_dir: str, step: int) -> None:
        """One has closed, at this step."""
        self._checkpoint_dir, self._step = checkpoint_dir or self._checkpoint_dir, max(step, self._step)

    def unsaved(self, storage: Storage) -> str:
        """The checkpoint after which steps of theirs are lost; "" if none are."""
        if not self._checkpoint_dir:
            return ""
        newest = newest_name(storage, self._checkpoint_dir)
        return "" if step_of(newest) >= self._step else newest or "the start"


MOST = 8192
"""The most incarnations that are remembered."""


class AppliedPushes:
    """A session may be taken out of the run while pushes of it have no answers yet: because a ps leaves, or because its
    messages were lost. This says what became of them, as long as the run goes on from the values that have them."""

    def __init__(self) -> None:
        self._now: dict[int, dict[int, list[Any]]] = {}
        """By incarnation and ps, of the current run epoch; a rollback may undo them."""
        self._saved: dict[int, dict[int, list[Any]]] = {}
        """The same, of those that are in a checkpoint."""
        self._name = ""
        """This checkpoint."""

    def record_ended(self, ps: int, pushes: list[list[Any]]) -> None:
        """A ps tells what became of the pushes of incarnations that have ended, as in MembersKnown."""
        for incarnation, *became in pushes:
            self._now.setdefault(incarnation, {})[ps] = became
        while len(self._now) > MOST:
            del self._now[next(iter(self._now))]

    def mark_saved(self, name: str) -> None:
        """This checkpoint was written when all incarnations had ended."""
        self._saved, self._now, self._name = {**self._saved, **self._now}, {}, name

    def begin_epoch(self, restored: str) -> None:
        """A run epoch begins from a checkpoint. From an earlier one, none of these pushes is left."""
        self._now.clear()
        if self._name and _age(restored) < _age(self._name):
            self._saved.clear()

    def pushes_of(self, incarnation: int) -> list[list[Any]]:
        """What became of the pushes of an incarnation, as in SessionOpened."""
        found = self._now.get(incarnation) or self._saved.get(incarnation, {})
        return [[ps, *became] for ps, became in sorted(found.items())]


def _age(name: str) -> tuple[tuple[int, int], str]:
    return parse_folder_name(name) or (0, 0), name
