"""The part of `dps.Session` that hooks use, as a protocol, so that hooks need not import the session."""

from __future__ import annotations

from typing import Protocol

from dps.hooks.scalars import Scalars
from dps.transport.endpoint import Runtime


class Loop(Protocol):
    """The training loop as a hook sees it; `dps.Session` is one. Its documentation says what each member does."""

    scalars: Scalars

    @property
    def name(self) -> str: ...
    @property
    def runtime(self) -> Runtime: ...
    @property
    def global_step(self) -> int: ...
    @property
    def checkpoint_dir(self) -> str | None: ...
    @property
    def is_chief(self) -> bool: ...
    def should_stop(self) -> bool: ...
    def request_stop(self) -> None: ...
    def save(self, timeout: float | None = None) -> str: ...
