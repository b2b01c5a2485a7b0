"""Tracks broken connections: a node counts as lost when it stays away for longer than its grace period."""

from __future__ import annotations

import math


class _Watched:
    __slots__ = ("away_since", "connected", "grace_s", "told")

    def __init__(self, grace_s: float, away_since: float) -> None:
        self.grace_s = grace_s
        self.connected = self.told = False
        self.away_since: float | None = away_since


class FailureDetector:
    """Watched addresses as a state machine: connection events in, losses out."""

    def __init__(self, silence_s: float = 0.0) -> None:
        """`silence_s`: how long a node may be silent before its connection ends."""
        self._silence_s = silence_s
        self._excused_until = 0.0
        self._watched: dict[str, _Watched] = {}

    def add(self, address: str, grace_s: float, now: float) -> None:
        """Watch an address. Until its first connection it counts as away since `now`."""
        if address not in self._watched:
            self._watched[address] = _Watched(grace_s, away_since=now)

    def is_watched(self, address: str) -> bool:
        """Whether the address is watched."""
        return address in self._watched

    def remove(self, address: str) -> None:
        self._watched.pop(address, None)

    def note_connected(self, address: str) -> bool:
        """Note that a connection came up; returns whether the address is watched."""
        watched = self._watched.get(address)
        if watched is None:
            return False
        watched.connected, watched.away_since, watched.told = True, None, False
        return True

    def note_disconnected(self, address: str, now: float) -> None:
        watched = self._watched.get(address)
        if watched is not None and watched.away_since is None:
            watched.connected, watched.away_since = False, max(now, self._excused_until)

    def excuse_stop(self, now: float) -> None:
        """Note that the watcher was stopped until now, which may have broken its connections. Absent nodes get as long
        to come back as a node that falls silent now: they may have been stopped, too, and continue a little later."""
        self._excused_until = now + self._silence_s
        for watched in self._watched.values():
            if watched.away_since is not None and not watched.told:
                watched.away_since = max(watched.away_since, self._excused_until)

    def excuse_delay(self, seconds: float, now: float) -> None:
        """Note that the watcher itself was stopped for so long. That time does not count against absent nodes."""
        for watched in self._watched.values():
            if watched.away_since is not None and not watched.told:
                watched.away_since = max(watched.away_since, min(now, watched.away_since + seconds))

    def take_lost(self, now: float) -> list[tuple[str, float]]:
        """Addresses whose grace period has just passed, with the seconds that they have been away; each only once."""
        lost: list[tuple[str, float]] = []
        for address, watched in list(self._watched.items()):
            since = watched.away_since
            if since is not None and not watched.told and now >= since + watched.grace_s:
                watched.told = True
                lost.append((address, now - since))
        return lost

    def next_at(self) -> float:
        """When the next grace period ends; infinity if no address is away, or `take_lost` has returned all of those."""
        first = math.inf
        for watched in self._watched.values():
            if watched.away_since is not None and not watched.told:
                first = min(first, watched.away_since + watched.grace_s)
        return first
