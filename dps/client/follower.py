"""Follows the published versions of a run: fetches each in the background, and puts the newest in place when asked."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from dps.errors import ConfigError, DpsError, NotAuthenticated
from dps.messages.replies import Published
from dps.process.telemetry import log
from dps.transport.dtypes import BFLOAT16, dtype_of, wire_name
from dps.transport.wire import Array
from dps.variables.tree import described, is_module, is_tensor, leaves, list_names, memory_of_tensor

if TYPE_CHECKING:
    from dps.client.publishing import Bases, Fetched, Publications
    from dps.client.session import Session
    from dps.task.server import Server
    from dps.variables.plan import Plan

OPEN_S = 10.0
"""How long an attempt to join the run may take."""
AGAIN_S = 0.5
"""The pause before the next attempt, and after a version that was replaced while it was fetched."""
END_S = 5.0
"""How long `close` waits for the end of the background task."""
FORMS = ("bfloat16", "float16", None)


class _Version(NamedTuple):
    """A whole version that was fetched."""

    published: Published
    values: dict[str, tuple[str, Array]]
    """By the names of variables, as of `Fetched`."""
    plan: Plan
    """Of the run's variables."""
    age_s: float
    """How old the version was when the chief told of it, at `told_at` on the runtime's clock."""
    told_at: float


class Follower:
    """Fetches each newly published version of a run in the background, for a program that answers requests.

    `swap`, between two requests, puts the newest whole version in place. It never goes back within a run, and is never
    a mixture. When another run answers at the same address, the follower says so in the log and begins anew;
    `Published.run` tells which one it is. Nothing is polled: the chief tells of each version. Use it in a `with` block,
    or call `close`.

    Args:
        target: The address of any task of the run, or a `dps.Server`. A follower with an address goes on with the next
            run that is started there.
        dtype: "bfloat16" or "float16": variables of float32 and float64 are fetched in this form, finite numbers beyond
            its range as its largest. None: as they are.
        names: Only these variables, such as `["hidden/w"]`. None: all.
        keys: As of `dps.Session`.
        timeout: The longest wait for one version's values, in seconds.

    Raises:
        ConfigError: A dtype of another name, a timeout that is no number of seconds above 0, or keys for a
            `dps.Server`, which has its own.
        TypeError: One text as `names`.

    Example:
        ```pycon
        >>> import time
        >>> out = {"w": np.zeros(3, np.float32)}
        >>> published = session.publish("first")
        >>> with dps.Follower(server.target, names=["w"]) as weights:
        ...     while weights.swap(out=out) is None:
        ...         time.sleep(0.01)  # a real program answers requests
        >>> weights.published == published, out["w"]
        (True, array([0., 0., 0.], dtype=float32))
        ```
    """

    # More than 12 attributes: the settings, what is ready and in place, and what is told of both.

    def __init__(
        self, target: Server | str, dtype: str | None = "bfloat16", names: Sequence[str] | None = None, *,
        keys: str | os.PathLike[str] | None = None, timeout: float = 60.0,
    ) -> None:  # fmt: skip
        from dps.client.opening import check_timeout  # here: `import dps` stays quick
        from dps.transport.current import runtime

        check_timeout(timeout)
        if dtype not in FORMS:
            raise ConfigError(f"Follower: got dtype={dtype!r:.40}, wanted 'bfloat16', 'float16' or None")
        if keys is not None and not isinstance(target, str):
            raise ConfigError("Follower: a dps.Server has keys of its own; leave keys out")
        self._target, self._form, self._keys, self._timeout = target, dtype or "", keys, timeout
        self._names = None if names is None else list_names(names)
        self._runtime = runtime() if isinstance(target, str) else target.runtime
        self._ready: deque[_Version] = deque(maxlen=1)
        """The newest version that is not in place yet. The background task puts it there, `swap` takes it."""
        self._seen = "", 0
        """The run and the number of the newest version that was fetched."""
        self._bases: Bases = {}
        """What was fetched last, so that only changes are fetched. Background task."""
        self._stop, self._process = False, os.getpid()
        self._error: DpsError | None = None
        """Why the follower has ended."""
        self.published: Published | None = None
        """The version that is in place; None before the first `swap` that found one."""
        self.values: dict[str, Array] | None = None
        """After a `swap` without `out`: the values in place, by the names of variables."""
        self.nbytes, self.fetched, self.failures, self.problem = 0, 0, 0, ""
        """Bytes and versions that were fetched; how many attempts failed, and why the last one did."""
        self._task = self._runtime.spawn("follows published versions", self._follow)

    def swap(self, out: Any = None) -> Published | None:
        """Put the newest whole version in place, if there is one that is not. Does not block.

        Args:
            out: Arrays, or tensors of PyTorch on the CPU, in the nesting of the variables, such as
                `model.state_dict()`: of the variables' shapes, and of their dtypes or the follower's. None: new arrays,
                in `values`.

        Returns:
            The version that is in place now, with `lag_s`; None if nothing has changed.

        Raises:
            ValueError: An array of `out` is missing or does not fit, is read-only, or has memory that is another's,
                too; then nothing is written.
            ConfigError: The run has no variable of a name that was asked for.
            NotAuthenticated: The run refuses the keys.
            RuntimeError: This process was forked from the follower's.
        """
        if self._error is not None:
            raise self._error
        if os.getpid() != self._process:
            raise RuntimeError(
                f"swap() was called in process {os.getpid()}, which was forked from process {self._process}, where the "
                "follower belongs and versions arrive; make a dps.Follower in each process"
            )
        try:
            version = self._ready.pop()
        except IndexError:
            return None
        try:
            if out is None:
                self.values = {name: _own(*value) for name, value in version.values.items()}
            else:
                _fill(out, version)
        except BaseException:
            if not self._ready:
                self._ready.append(version)
            raise
        about = version.published
        lag_s = version.age_s + self._runtime.now() - version.told_at
        self.published = Published(about.run, about.number, about.label, about.step, lag_s)
        return self.published

    def close(self) -> None:
        """Fetch no more. Blocks for up to 5 s. What is in place stays. A second call does nothing."""
        if not self._stop:
            self._stop = True
            if os.getpid() == self._process:
                self._task.join(END_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._stop else f"failed: {self._error}" if self._error is not None else "open"
        return f"<Follower of {self._target}: {state}, in place {self.published}>"

    # -- in the background --------------------------------------------------------------------------------------

    def _follow(self) -> None:
        from dps.client.session import Session

        while not self._stop:
            try:
                with Session(self._target, keys=self._keys, timeout=OPEN_S) as session:
                    self._follow_run(session)
            except (ConfigError, NotAuthenticated) as error:
                self._tell(error)
                self._error = error
                return
            except DpsError as error:
                self._tell(error)
                if not isinstance(self._target, str) and self._target.exit_code is not None:
                    return  # the task is over, and its run with it
                self._pause()

    def _follow_run(self, session: Session) -> None:
        """Fetch each newer version until the follower is closed. Raises DpsError when the run has ended."""
        from dps.client.session import publications

        source, missed = publications(session), 0
        source.check_names(self._names)
        while not self._stop:
            newest = source.newer(*self._seen, lambda: self._stop)
            if newest is None:
                return
            told_at, (run, number) = self._runtime.now(), self._seen
            if run and run != newest.run:
                log.warning("%s: follows another run from now on: %s in place of %s", session.name, newest.run, run)
                self._bases = {}
            elif newest.number <= number:
                continue
            if newest.number == missed:
                self._pause()
            published = Published(newest.run, newest.number, newest.label, newest.step)
            found, missed = self._fetch(source, published), newest.number
            if found is not None:
                self._ready.append(_Version(published, found[0], source.plan, newest.age_s, told_at))
                self._seen = newest.run, newest.number
                self.fetched += 1
                self.nbytes += found[1]
                self._runtime.record("followed", number=newest.number, run=newest.run)

    def _fetch(self, source: Publications, published: Published) -> Fetched | None:
        """The values of a version; None if a newer one has taken its place, or a rollback has dropped it."""
        try:
            return source.fetch(published.number, self._form, self._names, self._timeout, self._bases)
        except ValueError as error:
            self._tell(error)
            return None

    def _tell(self, error: Exception) -> None:
        self.failures += 1
        if str(error) != self.problem:
            log.info("a follower of %s: %s", self._target, error)
        self.problem = str(error)

    def _pause(self) -> None:
        if not self._stop:
            self._runtime.sleep(AGAIN_S)


def _own(form: str, values: Array) -> Array:
    """Fetched values as an array of their own dtype."""
    copy = values.copy()  # changes of the next version are applied to what was fetched
    return copy.view(dtype_of(BFLOAT16)) if form == "bfloat16" else copy


def _fill(out: Any, version: _Version) -> None:
    """Write a version to the caller's arrays and CPU tensors. ValueError, before anything is written, if one is missing
    or does not fit."""
    from dps.client.pulling import check_apart, check_fillable  # here: `import dps` stays quick

    if is_module(out):
        raise ValueError(f"swap: out is a module of PyTorch ({type(out).__name__}); pass its state_dict()")
    targets, found = dict(leaves(out)), list[tuple[Any, str, Array]]()
    for name, (form, values) in version.values.items():
        target: Any = targets.get(name)
        if is_tensor(target):
            target = memory_of_tensor(target, name)
        dtype = version.plan.variables[version.plan.by_name[name]].dtype
        wanted = {dtype, {"float16": "<f2", "bfloat16": BFLOAT16}.get(form, dtype)}
        is_array = isinstance(target, np.ndarray)
        if not is_array or wire_name(target.dtype) not in wanted or target.shape != values.shape:
            got, dtypes = described(target), " or ".join(sorted(wanted))
            raise ValueError(f"swap: out has {got} for {name}; wanted an array of {dtypes} {values.shape}")
        if not target.flags.carray:
            check_fillable(f"swap: out for {name}", target)
        found.append((target, form, values))
    check_apart(version.plan, out)
    for target, form, values in found:
        _write(target, form, values)


def _write(target: Array, form: str, values: Array) -> None:
    if form != "bfloat16":
        target[...] = values
    elif target.itemsize == 2:
        target.view(np.uint16)[...] = values
    else:  # a bfloat16 is the upper half of a float32
        target[...] = (values.astype(np.uint32) << 16).view(np.float32)
