"""The calls of a session that push gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dps.client.assembly import Whole
from dps.client.loading import is_empty
from dps.client.pulling import PullOp
from dps.client.pushing import PushOp
from dps.client.reading import Reading
from dps.client.reports import Reports
from dps.client.waiting import one_at_a_time
from dps.hooks.scalars import as_number
from dps.messages.replies import Push, Reply
from dps.variables.layout import Gradient


class Writing(Reading):
    """The calls of a session that push."""

    _reports: Reports

    @one_at_a_time
    def push(self, grads: Any, loss: Any = None, timeout: float | None = None) -> Push:
        """Send gradients and wait for the result. Blocks; in sync mode until the step is done.

        Args:
            grads: Gradients in the nesting of params, of the variables' shapes and dtypes. A missing key, or None, is
                no gradient; a push that has none at all counts as a step, and is told once. `dps.Rows` holds the
                gradient of some rows. The arrays may be changed when the call has returned; after DeadlineExceeded the
                push is still on its way and reads them.
            loss: A number for hooks and logs; an array or tensor of one element is one, too. A loss that is NaN or
                infinite is logged once; `dps.NanGuard` ends the loop.
            timeout: Seconds; None: the session's.

        Returns:
            The global step after the push, whether it was accepted, and its staleness.

        Raises:
            ValueError: A wrong name, shape or dtype, or a NaN; the message names the variable, and nothing is applied.
            TypeError: A gradient that is no array of numbers or is a parameter of PyTorch, or a loss that is no number;
                nothing is applied.
            DeadlineExceeded: No result in time; the push goes on.
            TaskLost: The run has ended.

        Example:
            ```pycon
            >>> session.push({"w": np.ones(3, np.float32)}, loss=0.7)
            Push(step=1, accepted=True, staleness=0)
            >>> session.push({"table": dps.Rows([1, 3], np.ones((2, 2), np.float32))}).step
            2
            ```
        """
        gradients = self._gradients(grads, loss)
        made = self._at_once.push(gradients, loss, reads=False)
        if made is None or isinstance(made, PushOp):
            return self._pushes.finish(made or self._pushes.start(gradients, loss, timeout), timeout)
        self._reports.settled(made.result, loss)
        return made.result

    @one_at_a_time
    def push_async(self, grads: Any, loss: Any = None) -> Reply[Push]:
        """Start a push and return at once.

        Hooks are told of its result when it is asked for, at a later push or at the end.

        Args:
            grads: As of `push`. The arrays must not be changed until the result is there.
            loss: As of `push`.

        Returns:
            A reply whose `result()` is what `push` returns; `accepted` tells whether the push is in its step.

        Raises:
            ValueError: As of `push`.
            TypeError: As of `push`.

        Example:
            ```pycon
            >>> reply = session.push_async({"w": np.ones(3, np.float32)})
            >>> reply.result().step
            1
            ```
        """
        operation = self._pushes.start(self._gradients(grads, loss), loss, None)
        self._connection.caller.flush()
        return self._reply(operation, lambda t: self._pushes.finish(operation, t), lambda: operation.accepted)

    @one_at_a_time
    def step(self, grads: Any, loss: Any = None, timeout: float | None = None) -> Any:
        """Push gradients and pull the values after the update, in one round trip. Blocks.

        Args:
            grads: As of `push`.
            loss: As of `push`.
            timeout: Seconds; None: the session's.

        Returns:
            The values after the update, in the nesting of params. They are the caller's.

        Raises:
            ValueError: As of `push`.
            TypeError: As of `push`.
            DeadlineExceeded: No result in time; the push goes on.
            TaskLost: The run has ended.

        Example:
            ```pycon
            >>> session.step({"w": np.ones(3, np.float32)})["w"]
            array([-0.5, -0.5, -0.5], dtype=float32)
            ```
        """
        gradients = self._gradients(grads, loss)
        pushing = self._at_once.push(gradients, loss, reads=True)
        if pushing is not None and not isinstance(pushing, PushOp):
            peers = self._connection.peers
            self._reports.settled(pushing.result, loss)
            if self._connection.peers is not peers or pushing.hold is None:  # a hook may have rolled back
                return self.pull(timeout=timeout)
            self._at_once.note(pushing.hold)
            return self._saw(pushing.values)
        pulling: PullOp | None = None
        try:
            if pushing is None:
                pushing = self._pushes.prepare(gradients, loss, timeout, self._pulls.may_come_with_a_push)
                if pushing.streams:  # gradients take a while to leave, and values may come meanwhile
                    pulling = self._pulls.start(None, None, after=True, leads=True)
                    pulling.start()
                self._pushes.send(pushing)
            if pulling is None and self._pulls.may_follow_a_push:
                pulling = self._pulls.start(None, None, after=True, behind=pushing)
                pulling.start()
            self._pushes.finish(pushing, timeout)
            if pulling is None or pushing.rolled_back:
                return self.pull(timeout=timeout)
            return self._saw(self._pulls.finish(pulling, timeout))
        finally:
            if pulling is not None:
                pulling.drop()

    @one_at_a_time
    def assign(self, values: Any, timeout: float | None = None) -> None:
        """Set variables to values: those that get no gradient, such as the statistics of batch normalisation, or any.

        The values are set exactly once, as a gradient is applied exactly once, and make a new version. The step and the
        optimizer's slots stay as they are. In async and bounded mode the call blocks until the values are set. In sync
        mode it returns at once: the values go with this session's next push, and are set after the gradients of the
        step that this push is part of. Where several workers assign a variable in one step, the value of the lowest
        task counts. Without a later push nothing is set.

        Args:
            values: Values in the nesting of params, of the variables' shapes and dtypes, for any of the variables,
                trained or not. A missing key, or None, leaves a variable alone. The arrays are copied. Of a variable
                that is assigned several times the last value counts.
            timeout: Seconds; None: the session's.

        Raises:
            ValueError: A wrong name, shape or dtype, or a NaN; the message names the variable, and nothing is set.
            TypeError: A value that is no array of numbers, or `dps.Rows`.
            DeadlineExceeded: No answer in time; the values are still on their way.
            TaskLost: The run has ended.

        Example:
            ```pycon
            >>> session.assign({"w": np.array([0.5, 1.5, 2.5], np.float32)})
            >>> session.pull()["w"]
            array([0.5, 1.5, 2.5], dtype=float32)
            ```
        """
        from dps.client.loading import checked

        self._waiter.check_open()
        agreed = self._connection.agreed
        self._replaced = None
        if found := checked(agreed.plan, values, agreed.settings.get("check_finite", True)):
            self._pushes.assign(found, timeout)

    @one_at_a_time
    def gradients(self) -> Any:
        """Arrays to write gradients to, which a push sends without copying them first. Does not block.

        Returns:
            Arrays in the nesting of params, of the variables' shapes and dtypes, with undefined contents. They are the
            caller's until they are pushed, and again when that push has its result.

        Example:
            ```pycon
            >>> grads = session.gradients()
            >>> grads["w"][:] = 1
            >>> session.push({"w": grads["w"]}).step
            1
            ```
        """
        self._waiter.check_open()
        return self._pushes.gradients()

    def _gradients(self, grads: Any, loss: Any) -> Mapping[int, Gradient]:
        """A step of the loop begins: its gradients by variable index, checked, as its loss is."""
        self._waiter.check_open()
        if loss is not None:
            as_number(loss, "loss")  # before anything is sent
        gradients = self._pushes.assembly.gradients(grads)
        if self._watch is not None and self._watch.pushed(self._connection.agreed.plan, gradients):
            self._watch = None
        if not isinstance(gradients, Whole) and is_empty(gradients):
            self._reports.empty()
        self._hooks.call_hooks("before_run", self)
        self._connection.home.runtime.compute()
        return gradients
