"""Remembers which pushes of sessions that were taken out of the run in order are in its values."""

from __future__ import annotations

from typing import Any

from dps.checkpoint import parse_folder_name


class Kept:
    """When a ps leaves, sessions are taken out of the run before some pushes have their answers. This says of each
    incarnation what became of them, as long as the run goes on from the checkpoint that was written then."""

    def __init__(self) -> None:
        self._name = ""
        """The checkpoint that has these pushes."""
        self._of: dict[int, list[list[Any]]] = {}

    def saved(self, name: str, ended: dict[int, list[list[Any]]]) -> None:
        """This checkpoint was written after sessions were taken out. `ended`: of each ps, as in ShardCut."""
        self._name = name
        for ps, pushes in ended.items():
            for incarnation, *about in pushes:
                self._of.setdefault(incarnation, []).append([ps, *about])

    def begins(self, restored: str) -> None:
        """A run epoch begins from a checkpoint. From an earlier one, none of these pushes is left."""
        if self._of and _age(restored) < _age(self._name):
            self._of.clear()

    def of(self, incarnation: int) -> list[list[Any]]:
        """The pushes of an incarnation, as in SessionOpened."""
        return self._of.get(incarnation, [])


def _age(name: str) -> tuple[tuple[int, int], str]:
    return parse_folder_name(name) or (0, 0), name
