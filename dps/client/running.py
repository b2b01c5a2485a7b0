"""The calls of a session that concern the run: what it knows of it, its end, checkpoints and counters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dps.client.connection import Connection
from dps.client.pulling import Pulls
from dps.client.pushing import Pushes
from dps.client.waiting import ThreadGuard, Waiter, one_at_a_time
from dps.hooks.hook import Chain
from dps.hooks.scalars import Scalars
from dps.messages.replies import Version
from dps.messages.runs import Restore, Save, Saved
from dps.process import config
from dps.task.server import Server
from dps.training.update_modes import Update, from_wire
from dps.transport.endpoint import Runtime

if TYPE_CHECKING:
    from dps.client.calling import Calling
    from dps.client.compressing import Traffic


class Running:
    """The part that all groups of a session's calls share, and the calls that concern the run as a whole."""

    _server: Server
    _timeout: float
    _stop: bool
    _turns: ThreadGuard
    _connection: Connection
    _waiter: Waiter
    _pulls: Pulls
    _pushes: Pushes
    _hooks: Chain
    _calling: Calling | None = None
    scalars: Scalars
    """The numbers that `summary` was given; hooks read them."""

    @property
    def name(self) -> str:
        """The name of the task that the session belongs to, such as "worker:0"."""
        return self._server.name

    @property
    def runtime(self) -> Runtime:
        """The clock and the storage that this session uses, for hooks: the real ones, or the simulator's."""
        return self._server.runtime

    @property
    def global_step(self) -> int:
        """The highest global step that this session has heard of. Does not ask the ps and does not block."""
        return self._connection.steps.step

    @property
    def version(self) -> Version:
        """The version that the last pull of all variables read, for `pull(if_newer_than=...)`."""
        return self._pulls.version

    @property
    def traffic(self) -> Traffic | None:
        """Bytes of gradients and values that this session has moved, and what they would be without compression.

        None for a session without compressors. The object is a copy. Does not block.
        """
        from copy import copy  # here: `import dps` stays quick

        compression = self._connection.compression
        return None if compression is None else copy(compression.traffic)

    @property
    def update(self) -> Update:
        """The run's update mode, on which all its tasks have agreed."""
        return from_wire(self._connection.agreed.settings["update"])

    @property
    def checkpoint_dir(self) -> str | None:
        """The run's folder for checkpoints; None when it has none."""
        return str(self._connection.agreed.settings.get("checkpoint_dir") or "") or None

    @property
    @one_at_a_time
    def is_chief(self) -> bool:
        """Whether this is the session of the lowest worker that is alive.

        Asks the chief, and blocks up to 2 s. While the chief is away this is its last answer, at once.
        """
        return self._connection.lookout.asks_leads(min(self.runtime.tuning.client.leads_s, self._timeout))

    def should_stop(self) -> bool:
        """Whether the loop should end: a hook, Ctrl-C or the chief asked for it, or the run has ended. Does not block.

        Returns:
            True from then on.

        Example:
            ```pycon
            >>> session.should_stop()
            False
            ```
        """
        server = self._server
        return self._stop or config.stop_requested.is_set() or server.stop_requested or server.exit_code is not None

    def request_stop(self) -> None:
        """Make `should_stop` true in this session. Does not block.

        Example:
            ```pycon
            >>> session.request_stop()
            >>> session.should_stop()
            True
            ```
        """
        self._stop = True

    def summary(self, name: str, value: Any) -> None:
        """Report a number, such as an accuracy, to the hooks that write logs and summaries. Does not block.

        The newest value of a name counts.

        Args:
            name: What the number is; not one of the names that each row has, such as "step" and "loss".
            value: A number, or an array or tensor of one element.

        Raises:
            ConfigError: A name that each row has, or a value that is no number (also a ValueError).

        Example:
            ```python
            session.summary("accuracy", 0.93)
            ```
        """
        self.scalars.store_value(name, value)

    @one_at_a_time
    def run(self, function: Callable[..., Any] | str, *args: Any, timeout: float | None = None) -> Any:
        """Run a function on a worker that serves (`--serve MODULE`), and return its value. Blocks.

        The worker is the one that a scope `dps.device("/job:worker/task:7")` around the call names; without a scope,
        the one whose address the session was given, or the session's own. `dps.Coordinator` runs many calls at a time.

        Args:
            function: A function at the top of a module that the worker serves, or its path, "module:function".
            args: Its arguments: numbers, text, bytes, arrays, in lists, tuples and dicts. A session arrives as the
                worker's own session of the run, so that the function pulls and pushes.
            timeout: Seconds; None: the session's.

        Returns:
            What the function returned: plain values and arrays, which are the caller's.

        Raises:
            RemoteError: The function raised; `remote_traceback` has the worker's traceback. The error is of the class
                that was raised, too, where that is one of dps or a usual one of Python.
            ConfigError: No worker is named, or it does not serve the function.
            TypeError: An argument or the value cannot travel.
            DeadlineExceeded: No value in time; the message names the worker, which may still run the function.
            TaskLost: The run has ended.

        Example:
            ```python
            cluster = dps.LocalCluster(workers=2, processes=False, serve="operator:add")
            params = {"w": np.zeros(3)}
            with cluster as local:
                with local.session(params, optimizer=dps.optim.SGD(0.1)) as session:
                    with dps.device("/job:worker/task:1"):
                        assert session.run("operator:add", 1, 2) == 3
            ```
        """
        self._waiter.check_open()
        if self._calling is None:
            from dps.client.calling import Calling

            self._calling = Calling(self._connection, lambda leaf: isinstance(leaf, Running))
        return self._calling.run(function, args, self._waiter.deadline(timeout))

    @one_at_a_time
    def save(self, timeout: float | None = None, position: bytes = b"") -> str:
        """Write a checkpoint now. Blocks. Nothing is written when these values are saved already.

        Args:
            timeout: Seconds; None: the session's.
            position: The position of the input, read before this call, which is kept with the checkpoint (see
                `dps.data.InputSaver`); at most 1 MB.

        Returns:
            The checkpoint's name.

        Raises:
            ValueError: The run has no checkpoint_dir.
            CheckpointError: The disk refuses.
            DeadlineExceeded: The checkpoint was not written in time.

        Example:
            ```python
            params = {"w": np.zeros(3, np.float32)}
            with dps.Session(server, params, optimizer=dps.optim.SGD(0.1),
                         checkpoint_dir="run") as session:
                session.push({"w": np.ones(3, np.float32)})
                name = session.save()
                session.push({"w": np.ones(3, np.float32)})
                assert session.restore(name) == 1
            ```
        """
        self._waiter.check_open()
        connection = self._connection
        answer = self._waiter.retrying(
            lambda deadline: connection.ask(Save(connection.number, position), deadline, "the checkpoint"), timeout
        )
        assert isinstance(answer, Saved)
        return answer.name

    @one_at_a_time
    def restore(self, name: str = "", timeout: float | None = None) -> int:
        """Roll the whole run back to a checkpoint. Blocks. All sessions are rolled back, as after the loss of a ps.

        Where the run cannot be rolled back now, because the chief or a ps is away or another session has just rolled it
        back, the call waits until it can.

        Args:
            name: What `save` returned; "": the newest whole checkpoint.
            timeout: Seconds; None: the session's.

        Returns:
            The step of the checkpoint.

        Raises:
            ValueError: The run has no checkpoint_dir.
            CheckpointError: There is no such checkpoint, or it cannot be read.
            DeadlineExceeded: The run was not rolled back in time.
        """
        self._waiter.check_open()
        connection, deadline = self._connection, self._waiter.deadline(timeout)

        def ask(until: float) -> None:
            connection.ask(Restore(connection.number, connection.membership.epoch, name), until, "the chief")

        self._waiter.retrying(ask, max(0.0, deadline - connection.caller.now()))
        self._waiter.recover(deadline)
        return connection.steps.step

    @one_at_a_time
    def stats(self) -> dict[str, Any]:
        """Counters of every ps and of the chief, for people. Blocks. `dps status` has those of other sessions, too.

        Returns:
            The counters by task name, such as "ps:0". Those of a ps have this session's own under "sessions".

        Raises:
            DeadlineExceeded: A task did not answer in time.

        Example:
            ```pycon
            >>> sorted(session.stats())
            ['chief', 'ps:0']
            ```
        """
        self._waiter.check_open()
        found: dict[str, Any] = self._waiter.retrying(self._connection.stats, None)
        return found
