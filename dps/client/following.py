"""Follows a run from outside of it: each newer version of its values, or each newer checkpoint, until the run ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

from dps.errors import CheckpointError, ConfigError, DeadlineExceeded, TaskLost, Unavailable
from dps.process import config

if TYPE_CHECKING:
    from dps.checkpoint import Manifest, ShardHeader
    from dps.client.session import Session
    from dps.task.server import Server
    from dps.transport.endpoint import Runtime

END_S = 5.0
"""How long the chief may take to say that the run has ended, once the ps have."""


LOOK_S = 0.2
"""How often it is asked whether the run is over."""


class _Pair(NamedTuple):
    step: int
    values: Any


class Followed(_Pair):
    """The values of a global step, as nested arrays that belong to the caller. A pair, with one attribute beside it."""

    went_back: bool = False
    """Whether the run was rolled back since the pair before: to a checkpoint, or to its first values. What was followed
    before may be undone. The step is lower, unless the run has passed it again in the meantime."""


def follow(
    server: Server | str | None = None, checkpoint_dir: str | os.PathLike[str] | None = None, pause: float = 1.0,
    timeout: float = 600.0,
) -> Iterator[Followed]:  # fmt: skip
    """The newer values of a run, again and again, until the run ends: for evaluation beside the training.

    Each turn of the loop blocks until newer values are there. Values that were replaced between two turns are skipped,
    so that a slow evaluation does not fall behind. Without a checkpoint_dir the versions on the ps are followed, by a
    reader session; the last one may be missed, because the ps end with the run. With one its checkpoints are followed,
    and the last one always comes.

    Args:
        server: This task, or the address of any task of the run. None: only the folder is known; the run counts as over
            when no run has a lock on it.
        checkpoint_dir: The folder whose checkpoints are followed. None: the versions are.
        pause: Seconds between two looks.
        timeout: The longest wait for newer values, in seconds; `dps.FOREVER`: no limit.

    Yields:
        `(step, values)`: the global step, and the variables as nested arrays, which belong to the caller. The pair has
        an attribute: `went_back` is True for the first one after a rollback of the run, also where the run has passed
        the step of the one before again. Of a folder, it is True for the first checkpoint that another epoch of the
        run, or another run, has written.

    Raises:
        ConfigError: Neither a server nor a folder, or seconds that are not above 0.
        DeadlineExceeded: Nothing newer for `timeout` seconds, while the run goes on.
        TaskLost: The run failed, or its chief is gone.

    Example:
        ```pycon
        >>> params, sgd = {"w": np.zeros(3)}, dps.optim.SGD(0.1)
        >>> with dps.Session(server, params, optimizer=sgd) as session:
        ...     for step, values in dps.follow(server.target, pause=0.01):
        ...         break
        >>> step, values["w"]
        (0, array([0., 0., 0.]))

        To learn of rollbacks:

        >>> for followed in dps.follow(server.target, pause=10.0):  # doctest: +SKIP
        ...     step, values = followed
        ...     if followed.went_back:
        ...         print("rolled back; now at step", step)
        ```
    """
    if pause <= 0 or timeout <= 0:
        raise ConfigError(f"follow: got pause={pause!r}, timeout={timeout!r}, wanted seconds above 0")
    if server is None and checkpoint_dir is None:
        raise ConfigError("follow: got neither a server nor a checkpoint_dir, wanted one of them")
    if isinstance(server, str) and os.path.isdir(server):
        raise ConfigError(f"follow: got the folder {server!r} as a server; give it as checkpoint_dir={server!r}")
    return _follow(server, checkpoint_dir, pause, timeout)


def _follow(
    server: Server | str | None, checkpoint_dir: str | os.PathLike[str] | None, pause: float, timeout: float
) -> Iterator[Followed]:
    from dps.task.server import Server
    from dps.transport.current import runtime

    with ExitStack() as stack:
        if isinstance(server, str):
            server = stack.enter_context(Server(None, "evaluator", 0, chief=server))
        if checkpoint_dir is not None:
            yield from _looked(_Checkpoints(os.fspath(checkpoint_dir), server), runtime(), pause, timeout)
            return
        assert server is not None
        from dps.client.session import Session

        try:
            versions = _Versions(stack.enter_context(Session(server, timeout=timeout)), server)
            yield from _looked(versions, server.runtime, pause, timeout)
        except (TaskLost, Unavailable):
            if server.join(END_S) != 0:
                raise


def _looked(source: _Versions | _Checkpoints, runtime: Runtime, pause: float, timeout: float) -> Iterator[Followed]:
    """What is newer at each look, until the source is over."""
    last, came_at, before = "none so far", runtime.now(), None
    while True:
        ends = source.over()  # before the look: what was written before the end is seen
        found = source.look()
        if found is not None:
            followed = Followed(found.step, found.values)
            followed.went_back = before is not None and (found.epoch != before[0] or found.step < before[1])
            before = found.epoch, found.step
            yield followed
            last, came_at = f"the last one was of step {found.step}", runtime.now()
        if ends or config.stop_requested.is_set():
            return
        if (waited_s := runtime.now() - came_at) >= timeout:
            raise DeadlineExceeded(f"follow: no newer {source.what} for {waited_s:.0f} s ({last}); does the run go on?")
        next_at = runtime.now() + min(pause, timeout - waited_s)
        while (left_s := next_at - runtime.now()) > 0 and not source.over():
            runtime.sleep(min(left_s, LOOK_S))


class _Found(NamedTuple):
    """What a source has: values, their global step, and the run epoch that they belong to."""

    epoch: int
    step: int
    values: Any


def _is_over(server: Server) -> bool:
    if server.exit_code:
        raise TaskLost(f"follow: {server.reason or 'the run has failed'}")
    return server.exit_code is not None


class _Versions:
    """The versions that a reader session sees."""

    def __init__(self, session: Session, server: Server) -> None:
        self.what = "version"
        """What is followed, in messages."""
        self._session, self._server = session, server
        self._seen: Any = None

    def over(self) -> bool:
        """Whether the run is over. Raises TaskLost if it has failed."""
        return _is_over(self._server)

    def look(self) -> _Found | None:
        """What is newer than at the last look, or None."""
        values = self._session.pull(if_newer_than=self._seen)
        self._seen = self._session.version
        return None if values is None else _Found(self._seen.epoch, self._session.global_step, values)


class _Checkpoints:
    """The whole checkpoints in a folder, newest first; followed as `_Versions` are."""

    def __init__(self, folder: str, server: Server | None) -> None:
        from dps.transport.current import runtime

        self.what, self._storage = f"checkpoint in {folder}", runtime().storage
        self._folder, self._server, self._seen = folder, server, (-1, -1)

    def over(self) -> bool:
        from dps.checkpoint.files import LOCK_FILE

        if self._server is not None:
            return _is_over(self._server)
        return self._seen != (-1, -1) and LOCK_FILE not in self._storage.names(self._folder)

    def look(self) -> _Found | None:
        from dps.checkpoint import candidates, load, parse_folder_name

        for name in candidates(self._storage, self._folder):
            key = parse_folder_name(name)
            if key is None or key <= self._seen:
                return None
            try:
                manifest = load(self._storage, self._folder, name, verify=False)
                found = _Found(key[0], manifest.step, self._values(manifest))
            except CheckpointError:
                continue  # not finished, or deleted meanwhile; an older one may be newer than what was seen
            self._seen = key
            return found
        return None

    def _values(self, manifest: Manifest) -> Any:
        from dps.checkpoint import read_part
        from dps.variables.saved import KEYS
        from dps.variables.tree import Nesting, nested

        headers: dict[str, ShardHeader] = {}
        found = {
            saved.name: read_part(self._storage, self._folder, manifest, saved.name, 0, saved.rows, headers=headers)
            for saved in manifest.variables
            if KEYS not in saved.slots
        }
        found |= {other: found[name] for other, name in manifest.tied.items()}
        nesting = Nesting(nested(list(found)))
        return nesting.build([found[path] for path in nesting.paths])
