"""The calls of a session that read: pulls, views and lookups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

from dps.client.pulling import check_places, filled
from dps.client.waiting import one_at_a_time
from dps.errors import ConfigError
from dps.messages.replies import Reply, Version
from dps.transport.wire import Array

if TYPE_CHECKING:
    from dps.client.at_once import AtOnce
    from dps.client.held import Held
    from dps.client.reports import MistakeWarnings

from dps.client.running import Running

T = TypeVar("T")


class Reading(Running):
    """The calls of a session that read."""

    _at_once: AtOnce
    _newest: Callable[[float | None], Held]
    """Reads the newest values in place, with a timeout."""
    _watch: MistakeWarnings | None
    """Looks at the first pushes."""
    _replaced: MistakeWarnings | None
    """Looks at what pulls write to the caller's arrays."""
    _out_checked = False
    """Whether `pull` was given an `out` before."""

    @one_at_a_time
    def pull(
        self, names: Sequence[str] | None = None, out: Any = None, if_newer_than: Version | None = None,
        timeout: float | None = None,
    ) -> Any:  # fmt: skip
        """The newest values, in the nesting of params. Blocks.

        In sync mode the values are at least those of the session's local step. In bounded mode the call waits while
        this worker is too far ahead of the slowest one.

        Args:
            names: Only these variables, such as `["hidden/w"]`; they come as nested dicts. None: all.
            out: Arrays, or tensors of PyTorch on the CPU, in the nesting of params and of the variables' shapes and
                dtypes, to fill and return. None: new arrays.
            if_newer_than: A `session.version`: nothing is moved when no value has changed since.
            timeout: Seconds; None: the session's.

        Returns:
            The values. The arrays belong to the caller. None: nothing changed since `if_newer_than`.

        Raises:
            ValueError: A name that no variable has, an array of `out` that does not fit, or memory of `out` for two
                variables.
            DeadlineExceeded: The values did not come in time; the message names who did not answer.
            TaskLost: The run has ended.

        Example:
            ```pycon
            >>> session.pull()["w"]
            array([0., 0., 0.], dtype=float32)
            >>> session.pull(if_newer_than=session.version) is None
            True
            ```
        """
        self._waiter.check_open()
        if names is None and if_newer_than is None:
            if out is not None:
                held = self._newest(timeout)
                try:
                    return self._filled(out, held.take())
                finally:
                    held.release()
            if (values := self._at_once.pull()) is not None:
                return self._saw(values)
        values = self._pulls.finish(self._pulls.start(names, if_newer_than, after=False), timeout)
        if out is not None and values is not None:
            return self._filled(out, values)
        return self._saw(values)

    def _saw(self, values: Any) -> Any:
        """Values that the program gets; None for none."""
        if self._watch is not None and values is not None:
            self._watch.pulled(values)
        return values

    def _filled(self, out: Any, values: Any) -> Any:
        plan, watch = self._connection.agreed.plan, self._replaced
        if not self._out_checked:
            check_places(plan, out)
            self._out_checked = True
        if watch is None:
            return filled(out, values, lambda name, here, value: None)
        filled(out, values, partial(watch.replaces, plan))
        if watch.filled():
            self._replaced = None
        return self._saw(out)

    @one_at_a_time
    def pull_async(self, names: Sequence[str] | None = None) -> Reply[Any]:
        """Start a pull and return at once.

        Args:
            names: As of `pull`.

        Returns:
            A reply whose `result()` is what `pull` returns.

        Raises:
            ValueError: A name that no variable has.

        Example:
            ```pycon
            >>> reply = session.pull_async(["w"])  # compute something else meanwhile
            >>> reply.result()["w"]
            array([0., 0., 0.], dtype=float32)
            ```
        """
        operation = self._pulls.start(names, None, after=False)
        operation.start()
        self._connection.caller.flush()
        return self._reply(operation, lambda t: self._saw(self._pulls.finish(operation, t)), lambda: None)

    @one_at_a_time
    def prefetch(self, names: Sequence[str] | None = None) -> Iterator[Any]:
        """Values for each turn of a loop; the next values are on their way while the loop computes.

        Hides the time of a pull behind the computing. The values do not include the loop's own last push: the staleness
        of each push is one more, and its result says so. The loop ends when `should_stop` is true. Each turn blocks
        until its values are there.

        Args:
            names: As of `pull`.

        Returns:
            An iterator over what `pull` would return.

        Raises:
            ConfigError: The run is in sync mode, where a step needs the values of the step before.

        Example:
            ```pycon
            >>> for turn, values in enumerate(session.prefetch()):
            ...     reply = session.push_async({"w": values["w"] - 1})
            ...     if turn == 9:
            ...         session.request_stop()
            >>> reply.result().step
            10
            ```
        """
        from dps.client.pulling import prefetched

        self._waiter.check_open()
        if self._connection.agreed.sync:  # where a gradient belongs to the step that it was computed from
            raise ConfigError("prefetch in sync mode would take gradients from the step before; use pull or step")
        values = prefetched(self._pulls, names, self.should_stop, self._connection.caller.flush, self._saw)
        return self._turns.each("prefetch", values)

    @contextmanager
    def view(self) -> Iterator[Any]:
        """The values to read, without a copy where the ps are on this machine; elsewhere they are pulled.

        Blocks as `pull`. The arrays are read-only and valid inside the block. Each shard shows one version throughout:
        the ps does not write to memory that somebody holds.

        Yields:
            The values, in the nesting of params.

        Raises:
            DeadlineExceeded: The values did not come in time.
            TaskLost: The run has ended.

        Example:
            ```pycon
            >>> with session.view() as values:
            ...     float(values["w"].sum())
            0.0
            ```
        """
        self._waiter.check_open()
        held = self._newest(None)
        try:
            yield self._saw(self._turns.run("view", held.take))
        finally:
            self._turns.run("view", held.release)

    @one_at_a_time
    def averages(self, names: Sequence[str] | None = None, timeout: float | None = None) -> Any:
        """The moving averages of the variables, for evaluation. Blocks.

        The ps keep them if the run was opened with a `moving_average`; a reader may ask for them, too. In sync mode
        they are at least those of the session's local step. Each shard's averages are of one version.

        Args:
            names: As of `pull`.
            timeout: Seconds; None: the session's.

        Returns:
            The averages, in the nesting of params and in the variables' shapes and dtypes; the value itself for a
            variable that is not trained. The arrays belong to the caller.

        Raises:
            ConfigError: The run keeps no averages.
            ValueError: A name that no variable has.
            DeadlineExceeded: They did not come in time; the message names who did not answer.
            TaskLost: The run has ended.

        Example:
            ```python
            with dps.Session(server, {"w": np.zeros(3)}, optimizer=dps.optim.SGD(0.1),
                             moving_average=dps.optim.MovingAverage(0.9)) as session:
                session.push({"w": -np.ones(3)})  # w is 0.1 now
                assert np.allclose(session.averages()["w"], 0.01)
            ```
        """
        self._waiter.check_open()
        from dps.client.opening import check_averages  # here: `import dps` stays quick

        check_averages(self._connection.agreed.plan)
        return self._pulls.averages(names, timeout)

    @overload
    def lookup(self, /, name: str, rows: Any, timeout: float | None = None, out: Array | None = None) -> Array: ...

    @overload
    def lookup(
        self, /, name: Mapping[str, Any], rows: None = None, timeout: float | None = None,
        out: Mapping[str, Array] | None = None,
    ) -> dict[str, Array]: ...  # fmt: skip

    @one_at_a_time
    def lookup(self, name: Any, rows: Any = None, timeout: float | None = None, out: Any = None) -> Any:
        """Rows of a variable, or of several variables at one time. Blocks.

        Args:
            name: The variable's name, such as "table" or "hidden/w". Or a dict from names to row numbers: all are asked
                for at once.
            rows: Row numbers, integers from 0; they may repeat. Their shape is (n,), or any other of one dimension and
                more, such as (batch, fields). None where `name` is a dict.
            timeout: Seconds; None: the session's.
            out: An array to fill and return, of the shape of the result and of the variable's dtype; for a dict of
                names a dict of such arrays. None: new ones.

        Returns:
            The rows, of the shape of `rows` and then of a row, such as (batch, fields, dim). The array belongs to the
            caller. For a dict of names: a dict of such arrays.

        Raises:
            ValueError: An unknown name, a row that the variable does not have, or an `out` that does not fit.
            DeadlineExceeded: The rows did not come in time.

        Example:
            ```pycon
            >>> session.lookup("table", [3, 0, 3])
            array([[3., 3.],
                   [0., 0.],
                   [3., 3.]], dtype=float32)
            >>> session.lookup("table", [[3, 0], [1, 3]]).shape
            (2, 2, 2)
            >>> session.lookup({"table": [1], "w": [0, 2]})["table"]
            array([[1., 1.]], dtype=float32)
            ```
        """
        from dps.client.lookup import looking_up  # here: `import dps` stays quick

        self._waiter.check_open()
        operation = looking_up(self._connection, name, rows, out)
        try:
            self._waiter.wait(operation, timeout, _looking_up(name))
            return operation.result()
        finally:
            operation.drop()

    @overload
    def lookup_async(self, /, name: str, rows: Any, out: Array | None = None) -> Reply[Array]: ...

    @overload
    def lookup_async(
        self, /, name: Mapping[str, Any], rows: None = None, out: Mapping[str, Array] | None = None
    ) -> Reply[dict[str, Array]]: ...  # fmt: skip

    @one_at_a_time
    def lookup_async(self, name: Any, rows: Any = None, out: Any = None) -> Any:
        """Start a lookup and return at once.

        Args:
            name: As of `lookup`.
            rows: As of `lookup`.
            out: As of `lookup`; it is filled when the result is there and must not be used before.

        Returns:
            A reply whose `result()` is what `lookup` returns.

        Raises:
            ValueError: As of `lookup`.

        Example:
            ```pycon
            >>> session.lookup_async("table", [1]).result()
            array([[1., 1.]], dtype=float32)
            ```
        """
        from dps.client.lookup import looking_up  # here: `import dps` stays quick

        self._waiter.check_open()
        operation = looking_up(self._connection, name, rows, out)

        def finish(timeout: float | None) -> Any:
            self._waiter.wait(operation, timeout, _looking_up(name))
            return operation.result()

        return self._reply(operation, finish, lambda: None)

    def _reply(
        self, operation: Any, finish: Callable[[float | None], T], accepted: Callable[[], bool | None]
    ) -> Reply[T]:
        """A reply whose calls are this session's."""
        of = self._turns.of
        return Reply(of("result", finish), of("done", lambda: self._waiter.poll(operation)), accepted)


def _looking_up(wanted: str | Mapping[str, Any]) -> str:
    """What a lookup waits for, for its deadline's error."""
    return f"looking up rows of {wanted if isinstance(wanted, str) else ', '.join(wanted)}"
