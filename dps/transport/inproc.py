"""Tracks which `inproc://` names are bound, because libzmq does not report when such a peer comes or goes.

A socket that connected to an `inproc://` name is not connected again when the name is bound anew, and has no
monitor events. So the endpoints of one context tell each other.
"""

from __future__ import annotations

import threading
from typing import Protocol


class Watcher(Protocol):
    """Who wants to know about a name; `tell` may be called by any thread and must not block."""

    def tell(self, url: str, bound: bool) -> None: ...


class Names:
    """The bound names of one context and who watches them. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bound: set[str] = set()
        self._watchers: dict[str, list[Watcher]] = {}

    def opened(self, url: str) -> None:
        """The name is bound now."""
        with self._lock:
            self._bound.add(url)
            for watcher in self._watchers.get(url, ()):
                watcher.tell(url, True)

    def shut(self, url: str) -> None:
        """The name will not be served any longer."""
        with self._lock:
            self._bound.discard(url)
            for watcher in self._watchers.get(url, ()):
                watcher.tell(url, False)

    def watch(self, url: str, watcher: Watcher) -> None:
        """Tell `watcher` about each change, and at once when the name is bound already."""
        with self._lock:
            self._watchers.setdefault(url, []).append(watcher)
            if url in self._bound:
                watcher.tell(url, True)

    def forget(self, url: str, watcher: Watcher) -> None:
        """Stop telling `watcher`."""
        with self._lock:
            left = [other for other in self._watchers.get(url, ()) if other is not watcher]
            if left:
                self._watchers[url] = left
            else:
                self._watchers.pop(url, None)
