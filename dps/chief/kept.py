"""Remembers which pushes of sessions that have ended are in the values, to tell them when they come back."""

from __future__ import annotations

from typing import Any

from dps.checkpoint import parse_folder_name

MOST = 8192
"""The most incarnations that are remembered."""


class Kept:
    """A session may be taken out of the run while pushes of it have no answers yet: because a ps leaves, or because its
    messages were lost. This says what became of them, as long as the run goes on from the values that have them."""

    def __init__(self) -> None:
        self._now: dict[int, dict[int, list[Any]]] = {}
        """By incarnation and ps, of the current run epoch; a rollback may undo them."""
        self._saved: dict[int, dict[int, list[Any]]] = {}
        """The same, of those that are in a checkpoint."""
        self._name = ""
        """This checkpoint."""

    def ended(self, ps: int, pushes: list[list[Any]]) -> None:
        """A ps tells what became of the pushes of incarnations that have ended, as in MembersKnown."""
        for incarnation, *became in pushes:
            self._now.setdefault(incarnation, {})[ps] = became
        while len(self._now) > MOST:
            del self._now[next(iter(self._now))]

    def saved(self, name: str) -> None:
        """This checkpoint was written when all incarnations had ended."""
        self._saved, self._now, self._name = {**self._saved, **self._now}, {}, name

    def begins(self, restored: str) -> None:
        """A run epoch begins from a checkpoint. From an earlier one, none of these pushes is left."""
        self._now.clear()
        if self._name and _age(restored) < _age(self._name):
            self._saved.clear()

    def of(self, incarnation: int) -> list[list[Any]]:
        """What became of the pushes of an incarnation, as in SessionOpened."""
        found = self._now.get(incarnation) or self._saved.get(incarnation, {})
        return [[ps, *became] for ps, became in sorted(found.items())]


def _age(name: str) -> tuple[tuple[int, int], str]:
    return parse_folder_name(name) or (0, 0), name
