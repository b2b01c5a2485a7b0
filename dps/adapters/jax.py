"""An optax transformation whose rule and state are on the ps.

JAX calls back from its compiled code, in the order of the steps. A callback must not wait for a device that waits for
the callback: it handles numpy arrays alone.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import jax
import numpy as np
import optax
from jax.experimental import io_callback

from dps.adapters.jax_changes import Seen
from dps.adapters.overlap import OverlappedSteps
from dps.adapters.twins import note_opened
from dps.client.session import Session
from dps.errors import ConfigError
from dps.process.endings import at_end
from dps.process.telemetry import log
from dps.task.server import Server
from dps.training.optimizers import Optimizer
from dps.training.update_modes import Async
from dps.transport.current import runtime
from dps.variables.tree import Variable

Array = np.ndarray[Any, np.dtype[Any]]
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_open: list[Transformation] = []
"""Those of this process that are not closed."""


def optimizer(
    server: Server | str, params: Any, optimizer: Optimizer, overlap: bool = False, **session: Any
) -> Transformation:  # fmt: skip
    """Make an optax transformation that runs on the ps: the last of a chain, inside `jit` or outside.

    Its `update` pushes the gradients and pulls. After `optax.apply_updates` the parameters are the values of the ps.

    The run's first values are the first worker's, or those of a checkpoint. `Transformation.pull` returns them: a
    program begins with these, so that its first gradients belong to them.

    Args:
        server: This process's `dps.Server`, or the address of a task of the run.
        params: The parameters: a pytree of floating-point arrays. The variables have the names of JAX's key paths, such
            as "layers/0/w". A "/" in a key, as Haiku has it, counts as two keys.
        optimizer: How the ps turn gradients into updates: one of `dps.optim`, with a rate or a schedule.
        overlap: `update` leaves its push on its way while the program computes the next gradients, and returns the
            values of about the push of the step before: they lack the step's own gradient, and updates of other workers
            that came since. Not in sync and local mode. An error of a push is raised by the next step, `pull` or
            `close`.
        session: Other arguments of `dps.Session`, such as `update`, `hooks` and `checkpoint_dir`.

    Returns:
        An `optax.GradientTransformationExtraArgs`, with `session`, `pull`, `should_stop` and `close`.

    Raises:
        ConfigError: A parameter that is not floating-point, a name twice, a simulated task, or as of `dps.Session`.
        DpsError: As of `dps.Session`.

    Example:
        ```python
        import jax
        import jax.numpy as jnp
        import optax

        opt = dps.jax.optimizer(server, {"w": jnp.zeros(3)}, dps.optim.SGD(0.1))
        tx = optax.chain(optax.clip_by_global_norm(1.0), opt)

        @jax.jit
        def step(params, state):
            grads = jax.grad(lambda p: jnp.square(p["w"] - 1.0).sum())(params)
            updates, state = tx.update(grads, state, params)
            return optax.apply_updates(params, updates), state

        params = opt.pull()
        state = tx.init(params)
        for _ in range(3):
            params, state = step(params, state)
        newest = opt.pull()
        opt.close()
        assert jnp.abs(newest["w"] - params["w"]).max() < 1e-6
        ```
    """
    # Not in the simulator: it switches to another task in the middle of JAX's compiled code, and JAX aborts the process
    if runtime().simulated:
        raise ConfigError(
            "dps.jax: a step of JAX cannot wait in the simulator, which runs all tasks on one thread; dps.simulate a "
            "loop of session.pull and session.push"
        )
    model = JaxModel(params)
    opened = Session(server, model.variables(params), optimizer=optimizer, **session)
    try:
        steps = OverlappedSteps(opened, None, in_place=False) if overlap else None
    except BaseException as error:
        opened.__exit__(type(error), error, error.__traceback__)
        raise
    return Transformation(model, opened, steps)


class Transformation(optax.GradientTransformationExtraArgs):  # type: ignore[misc]
    """An optax transformation, and the session behind it. `dps.jax.optimizer` makes one.

    `update(grads, state, params, value=loss)` takes a loss for hooks, such as `dps.LogMetrics`, as optax names it.

    The program needs no `close()`: when it ends, steps under way are finished and the session is closed, with the error
    where one ended the program. Where nobody else runs the script, a `raise SystemExit(3)` counts as a good end;
    `sys.exit(3)` does not. `with` does the same for a block.

    Example:
        ```python
        import jax.numpy as jnp
        import optax

        with dps.jax.optimizer(server, {"w": jnp.ones(3)}, dps.optim.SGD(0.5)) as opt:
            params = opt.pull()
            state = opt.init(params)
            updates, state = opt.update({"w": jnp.ones(3)}, state, params, value=0.7)
            params = optax.apply_updates(params, updates)
        assert params["w"].tolist() == [0.5, 0.5, 0.5]
        ```
    """

    session: Session
    """The session. It is there until the program ends, or `close`. Do not call it while a step is under way."""
    _model: JaxModel
    _lock: threading.Lock
    _error: BaseException | None
    """The error of a step. Later steps raise it at once, unless it is that of a refused gradient: then the program may
    go on, and the next step that succeeds ends it."""
    _is_told = False
    _seen: Seen
    _sample: Callable[[list[Any]], Any]
    _cancel_end: Callable[[], None]

    _steps: OverlappedSteps | None

    def __new__(cls, model: JaxModel, session: Session, steps: OverlappedSteps | None = None) -> Self:
        def init(params: Any) -> optax.EmptyState:
            _refuse_multi_steps()
            model.check(params, "init")
            return optax.EmptyState()

        def update(
            updates: Any, state: Any, params: Any = None, *, value: Any = None, **ignored: Any
        ) -> tuple[Any, Any]:
            if params is None:
                raise ConfigError(
                    "dps.jax: update got no params, from which it makes updates: update(grads, state, params)"
                )
            model.check(params, "update")
            return self._updates(updates, params, value), state

        self: Self = super().__new__(cls, init, update)
        self._model, self.session, self._lock, self._error = model, session, threading.Lock(), None
        self._steps, self._seen = steps, Seen(model)
        self._sample = jax.jit(self._seen.sample)
        self._cancel_end = at_end(self._end_program)
        _open.append(self)
        self._check_threads()
        note_opened(session, '{"a": params, "b": others}')
        return self

    def _check_threads(self) -> None:
        """Warn of a deadlock: each step that waits for other workers holds one of the threads on which JAX computes."""
        threads = os.cpu_count() or 1
        if len(_open) > threads and not isinstance(self.session.update, Async) and jax.default_backend() == "cpu":
            log.warning(
                "%s: %d workers of this process train with JAX, which computes on %d threads; workers that wait for "
                "each other may hold all of them: run workers as processes",
                self.session.name, len(_open), threads,
            )  # fmt: skip

    def _updates(self, grads: Any, params: Any, loss: Any) -> Any:
        """What `params` lack to the values after a push of `grads`. Runs while JAX traces, or in each step."""
        held = [jax.numpy.asarray(leaf) for leaf in self._model.leaves(params)]
        given = self._model.leaves(grads)
        pushed = [jax.numpy.asarray(grad, leaf.dtype) for grad, leaf in zip(given, held, strict=True)]
        wanted = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in held]
        values = io_callback(self._step, wanted, pushed, loss, self._sample(held), ordered=True)
        return self._model.build([_difference(value, leaf) for value, leaf in zip(values, held, strict=True)])

    def _step(self, grads: Sequence[Any], loss: Any, held: Any) -> list[Array]:
        """Push and pull; JAX calls this, on a thread of its own. `held`: a sample of the parameters."""
        arrays = [np.asarray(grad) for grad in grads]
        with self._lock:
            if self._error is not None and not isinstance(self._error, ValueError):
                raise self._error
            self._tell_mistakes(arrays, np.asarray(held))
            try:
                found = self._values_after(arrays, None if loss is None else np.asarray(loss))
            except BaseException as error:
                self._error, self._is_told = error, False
                raise
            self._seen.returned, self._error = (np.asarray(held), self._seen.sample_arrays(found)), None
        return found

    def _values_after(self, grads: Sequence[Array], loss: Array | None) -> list[Array]:
        """Push gradients, which are valid during this call alone. Returns the values after it or the push before."""
        steps, session, model = self._steps, self.session, self._model
        if steps is None:
            return model.flat(session.step(model.nest(grads), loss=loss))
        steps.finish_push()
        own = session.gradients()
        for target, grad in zip(model.flat(own), grads, strict=True):
            target[...] = grad
        steps.push(own, loss)
        values = steps.take_values()
        return self._newest() if values is None else model.flat(values)

    def _tell_mistakes(self, grads: Sequence[Array], held: Array) -> None:
        """Warn, each once, of parameters that are not the run's and of gradients that something has held back."""
        name, is_first = self._seen.find_change(held, self._newest)
        if name and is_first:
            log.warning(
                "%s: the parameters of the first update are not those of the run (the first is %s), so its gradients "
                "belong to other values; begin with params = opt.pull(): the run has the values of its first worker, "
                "or of a checkpoint", self.session.name, name,
            )  # fmt: skip
        elif name:
            log.warning(
                "%s: the parameters that update got are not those of the step before (the first is %s); the ps do "
                "not know of a projection, of optax.lookahead or of a transformation behind dps.jax.optimizer, and "
                "the next step puts their values back; set what the program changes by opt.session.assign, go "
                "on with opt.pull(), and let dps.jax.optimizer be the last of the chain; this is said once",
                self.session.name, name,
            )  # fmt: skip
        if self._seen.find_zeros(grads):
            log.warning(
                "%s: all gradients of an update are 0; it counts as a step, in which moments fade; optax.apply_every "
                "in front of dps.jax.optimizer makes such updates: add up the gradients before update, as "
                "docs/guide/jax.md shows; this is said once", self.session.name,
            )  # fmt: skip

    def _newest(self) -> list[Array]:
        return self._model.flat(self.session.pull())

    def pull(self) -> Any:
        """The newest values, of all workers. Blocks, also until the steps under way are done.

        Returns:
            JAX arrays in the pytree of the parameters.

        Raises:
            DpsError: The error of a step, or as of `dps.Session.pull`.
        """
        self._wait()
        if self._steps is not None:
            self._steps.finish_push()
            self._steps.read_anew()  # the program may have assigned values
        found = self._newest()
        self._seen.pulled = (self._seen.sample_arrays(found),) * 2
        return self._model.build([jax.numpy.array(value) for value in found])

    def should_stop(self) -> bool:
        """Whether the loop should end, as `dps.Session.should_stop`. Blocks until the steps under way are done.

        Returns:
            True from then on.

        Raises:
            DpsError: The error of a step. JAX shows it as an error of its own.
        """
        self._wait()
        return self.session.should_stop()

    def close(self) -> None:
        """Wait for the steps under way, and leave the run. Blocks. A second call does nothing.

        Raises:
            DpsError: The error of a step, or as of `dps.Session.close`.
        """
        try:
            self._wait()
            steps, self._steps = self._steps, None
            if steps is not None:
                steps.close()
        except BaseException as error:
            self._leave(error)
            raise
        self._leave(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        cause = self._cause_of(error)
        self._leave(cause)
        if cause is not error:
            raise cause from error  # JAX tells it as an error of its own

    def _cause_of(self, error: BaseException) -> BaseException:
        """The error of a step that has ended the program by this one; or this one, if that step's was told before."""
        own = self._error
        return error if own is None or (self._is_told and str(own) not in str(error)) else own

    def _wait(self) -> None:
        """Wait for the steps that this thread has started. Raises the error of one."""
        try:
            jax.effects_barrier()
        except Exception:
            if self._error is None:
                raise
        if self._error is not None and not self._is_told:
            self._is_told = isinstance(self._error, ValueError)  # once; others end the run
            raise self._error

    def _end_program(self, error: BaseException | None) -> None:
        """The program has ended: with this error, or well."""
        if error is None:
            self.close()
        else:
            self._leave(self._cause_of(error))

    def _leave(self, error: BaseException | None) -> None:
        """Close the session; `error`: what ended the program, None for a good end."""
        self._cancel_end()
        if self in _open:
            _open.remove(self)
        with self._lock:  # a step that another thread has started is done
            self.session.__exit__(None if error is None else type(error), error, None)


class JaxModel:
    """The leaves of a pytree, as variables under the names of their key paths."""

    def __init__(self, params: Any) -> None:
        found, self._tree = jax.tree_util.tree_flatten_with_path(params)
        self.names = [_name(path) for path, _ in found]
        if settings := [name for name, (_, leaf) in zip(self.names, found, strict=True) if isinstance(leaf, Variable)]:
            raise ConfigError(
                f"dps.jax: the parameter {settings[0]} is a dps.Variable, whose settings JAX does not know; wanted an "
                "array. Tables that are read by rows are for a loop of session.lookup and session.push"
            )
        self.known = [jax.ShapeDtypeStruct(np.shape(leaf), jax.dtypes.result_type(leaf)) for _, leaf in found]
        for name, leaf in zip(self.names, self.known, strict=True):
            if leaf.dtype.name not in _FLOATS:
                raise ConfigError(
                    f"dps.jax: the parameter {name} has dtype {leaf.dtype}; wanted one of {', '.join(_FLOATS)}: give "
                    "optimizer() only what is trained"
                )
        self._places: dict[str, Any] = {}
        """Nested dicts of the names, with the positions of the leaves."""
        for position, name in enumerate(self.names):
            self._place(name, position)

    def _place(self, name: str, position: int) -> None:
        node: Any = self._places
        *outer, last = name.split("/")
        for key in outer:
            node = node.setdefault(key, {})
            if not isinstance(node, dict):
                break
        if not isinstance(node, dict) or last in node:
            raise ConfigError(f"dps.jax: two parameters would be {name!r}, or one a part of the other; rename one")
        node[last] = position

    def variables(self, params: Any) -> Any:
        """The parameters for a session, of the dtypes that JAX gives them."""
        wanted = zip(jax.tree_util.tree_leaves(params), self.known, strict=True)
        return self.nest([np.asarray(leaf, known.dtype) for leaf, known in wanted])

    def check(self, params: Any, call: str) -> None:
        """Raise ConfigError if `params` are not of the nesting, the shapes and the dtypes of the variables."""
        for name, leaf, known in zip(self.names, self.leaves(params, call), self.known, strict=True):
            got = jax.ShapeDtypeStruct(np.shape(leaf), jax.dtypes.result_type(leaf))
            if (got.shape, got.dtype) != (known.shape, known.dtype):
                raise ConfigError(f"dps.jax: {call} got {name} as {_shown(got)}; the variable is {_shown(known)}")

    def leaves(self, tree: Any, call: str = "update") -> list[Any]:
        """The leaves of a pytree of the parameters' nesting."""
        found: list[Any]
        found, nesting = jax.tree_util.tree_flatten(tree)
        if nesting != self._tree:
            raise ConfigError(
                f"dps.jax: {call} got {nesting}; wanted the nesting that optimizer() was given, {self._tree}. The ps "
                "trains all parameters: it cannot stand in optax.masked, optax.partition or optax.flatten"
            )
        return found

    def build(self, leaves: Sequence[Any]) -> Any:
        """A pytree of the parameters' nesting."""
        return jax.tree_util.tree_unflatten(self._tree, leaves)

    def nest(self, leaves: Sequence[Any]) -> Any:
        """The leaves as the session has them: nested dicts."""
        return _nest(self._places, leaves)

    def flat(self, nested: Any) -> list[Array]:
        """The leaves of what `nest` returned, in JAX's order."""
        found: list[Any] = [None] * len(self.names)
        _collect(self._places, nested, found)
        return found


def _nest(places: dict[str, Any], leaves: Sequence[Any]) -> Any:
    return {key: _nest(at, leaves) if isinstance(at, dict) else leaves[at] for key, at in places.items()}


def _collect(places: dict[str, Any], nested: Any, found: list[Any]) -> None:
    for key, at in places.items():
        if isinstance(at, dict):
            _collect(at, nested[key], found)
        else:
            found[at] = nested[key]


def _name(path: Sequence[Any]) -> str:
    """The name of a leaf: a key of a dict, an index or an attribute for each container around it."""
    kinds = ("key", "idx", "name")
    keys = (next((getattr(entry, kind) for kind in kinds if hasattr(entry, kind)), entry) for entry in path)
    return "/".join(map(str, keys)) or "value"


def _difference(value: Any, leaf: Any) -> Any:
    """What, added to `leaf`, gives `value`. Of 16-bit floats it is float32, as in 16 bits it would lose digits."""
    wide = jax.numpy.promote_types(leaf.dtype, jax.numpy.float32)
    return value.astype(wide) - leaf.astype(wide)


def _shown(leaf: Any) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}"


def _refuse_multi_steps() -> None:
    """Raise ConfigError inside `optax.MultiSteps.init`, whose `update` calls the inner one for each micro-step."""
    frame = sys._getframe(1)
    while (outer := frame.f_back) is not None:
        frame = outer
        if frame.f_code is optax.MultiSteps.init.__code__:
            raise ConfigError(
                "dps.jax: optax.MultiSteps would push every micro-step, as it calls update for each; add up the "
                "gradients before update, as docs/guide/jax.md shows"
            )
