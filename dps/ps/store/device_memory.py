"""The memory of one arena on a GPU: values and slots there, and copies on the host for those who read."""

from __future__ import annotations

from typing import Any

import numpy as np

from dps.kernels import cuda, device
from dps.ps.store.arena import ArenaMemory, rows_of
from dps.ps.store.gradients import GradientSum
from dps.training.optimizers import Optimizer
from dps.transport.endpoint import Runtime
from dps.transport.tuning import ORDINARY, Tuning
from dps.transport.wire import Array
from dps.variables.plan import Arena, Part


class DeviceMemory(ArenaMemory):
    """Values are updated in place on the GPU, where nobody else reads them.

    The buffers of `ArenaMemory` are copies on the host. `refresh` makes one of the current version when somebody wants
    to read it, once a version whoever reads; leases hold it as they hold any buffer. Host memory of the copies is not
    pinned: leases and sockets may be the last to hold it, in threads that no GPU belongs to.

    A gradient of all values may be an array of the same GPU; then nothing crosses to the host and back.
    """

    on_device = True
    kernels = cuda

    def __init__(
        self, arena: Arena, optimizer: Optimizer | None, runtime: Runtime | None, index: int, tuning: Tuning = ORDINARY
    ) -> None:
        """`index`: which GPU. Raises ConfigError if there is no such GPU, or not enough memory on it."""
        self._gpu = device.device(index)
        self._staging: dict[str, Any] = {}
        self._stale = True
        with self._gpu:
            self._values: Any = device.to_device(np.zeros(arena.size, arena.dtype))
            super().__init__(arena, optimizer, tuning=tuning)
        self.buffers.clear()  # the first copy is made when somebody reads
        self._runtime = runtime

    def _initial_slots(self, more: tuple[str, ...]) -> dict[str, Any]:
        return {name: device.to_device(slot) for name, slot in super()._initial_slots(more).items()}

    # -- versions on the host ---------------------------------------------------------------------------------

    @property
    def values(self) -> Array:
        """The current values on the host, flat and read-only. They are copied out now if that was not done yet."""
        self.refresh()
        return self.buffers[self.current].values

    def refresh(self) -> None:
        """Copy the current version into a buffer that no reader holds."""
        if not self._stale:
            return
        index = self.current if self.buffers and not super().is_read() else self.free_buffer()
        with self._gpu:
            device.to_host(self._values, self.buffers[index].values)
        self.current, self._stale = index, False

    def may_lease(self, sparing: bool = False, index: int | None = None) -> bool:
        return not self._stale and super().may_lease(sparing, index)

    def is_read(self) -> bool:
        """Whether readers prevent an update in place: never, because they have copies."""
        return False

    def wrote(self, index: int, ranges: list[tuple[int, int]] | None) -> None:
        self._stale = True

    # -- gradients on the GPU ---------------------------------------------------------------------------------

    def is_finite(self, gradient: Array) -> bool:
        if isinstance(gradient, np.ndarray):
            return super().is_finite(gradient)
        with self._gpu:
            return bool(cuda.all_finite(gradient))

    def on_host(self, gradient: Array) -> Array:
        if isinstance(gradient, np.ndarray):
            return gradient
        with self._gpu:
            return np.asarray(device.to_host(gradient))

    # -- values and slots by their elements -------------------------------------------------------------------

    def _array(self, slot: str | None) -> Any:
        return self._values if slot is None else self.slots[slot]

    def read(self, slot: str | None, start: int, stop: int | None) -> Array:
        with self._gpu:
            return np.asarray(device.to_host(self._array(slot)[start:stop]))

    def write(self, slot: str | None, start: int, data: Array) -> None:
        if data.size:
            with self._gpu:
                device.to_device(data, out=self._array(slot)[start : start + data.size])
            self._stale = True

    def set(self, index: int, start: int, data: Array) -> None:
        self.write(None, start, np.ascontiguousarray(data))

    def gather(self, part: Part, start: int, rows: Array, out: Array | None = None) -> Array:
        shape = (len(rows), part.row_size)
        if not shape[0] * shape[1]:
            return np.empty(shape, self.arena.dtype)
        with self._gpu:
            found = self._staged("values", np.dtype(self.arena.dtype), shape)
            cuda.gather(self._table(self._values, part, start), self._sent("rows", rows), found)
            return np.asarray(device.to_host(found) if out is None else device.to_host(found, out))

    def update(self, index: int, start: int, gradient: Array | GradientSum, t: int, step: int, scale: float) -> bool:
        assert self._bound is not None
        g = self._reduced(*self._gradients(gradient))[0]
        if not g.size:
            return True
        with self._gpu:
            sent = self._sent("values", g) if isinstance(g, np.ndarray) else g
            if self.by_rows:
                for place, part, begin in self._parts_within(start, start + g.size):
                    w, here = self._table(self._values, part, begin), self._table(sent, part, begin - start)
                    self._bound.apply(w, w, self._tables(place), (here,), 0, t, step, scale)
            else:
                stop = start + g.size
                w = self._values[start:stop]
                slots = [None if slot is None else slot[start:stop] for slot in self._ordered]
                self._bound.apply(w, w, slots, (sent,), 0, t, step, scale)
            device.wait()  # an error belongs to the push that made it, and its memory may be the session's
        return True

    def update_rows(
        self, index: int, part: Part, start: int, rows: Array, gradient: Array, t: int, step: int, scale: float
    ) -> None:
        assert self._bound is not None
        if not gradient.size:
            return
        with self._gpu:
            slots, w = self._tables(self.places[part.index][0]), self._table(self._values, part, start)
            g = self._sent("values", gradient)
            self._bound.apply_rows(w, slots, self._sent("rows", rows), g, t, step, scale)
            device.wait()

    def follow(self, index: int, start: int, size: int, step: int) -> None:
        assert self.averages is not None
        if size:
            with self._gpu:
                self.averages.follow(start, self._values[start : start + size], step, self.share_pass)
                device.wait()

    def follow_rows(self, index: int, part: Part, start: int, rows: Array, step: int) -> None:
        assert self.averages is not None
        if rows.size and part.row_size:
            with self._gpu:
                table = self._table(self._values, part, start)
                self.averages.follow_rows(start, table, self._sent("rows", rows), step)
                device.wait()

    def close(self) -> None:
        """Free the GPU's memory, here, in a thread that the GPU belongs to."""
        with self._gpu:
            self._values, self.slots, self._ordered, self.averages = None, {}, [], None
            self._staging.clear()

    def _table(self, array: Any, part: Part, start: int) -> Any:
        return array[start : start + part.size].reshape(rows_of(part), part.row_size)

    def _sent(self, what: str, array: Array) -> Any:
        """A host array copied to the GPU; valid until the next one of its kind."""
        return device.to_device(array, out=self._staged(what, array.dtype, array.shape))

    def _staged(self, what: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
        """GPU memory that is reused, because allocating some makes the GPU wait."""
        size = int(np.prod(shape))
        held = self._staging.get(what)
        if held is None or held.size < size:
            self._staging.pop(what, None)
            held = self._staging[what] = device.empty(min(2 * size, max(size, self.arena.size)), dtype)
        return held[:size].reshape(*shape)
