"""A group of workers, as one of them uses it: sums, gathering and barriers that block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dps.actors.standing import Home
from dps.collectives.flow import Flow
from dps.collectives.member import CallersNode, GroupMember, second_binding
from dps.collectives.memory import GIVEN, PLACE_NBYTES, RESULT
from dps.collectives.messages import MEMBER, Formed, Who
from dps.collectives.packing import FusedArrays, pack_arrays, split_results, unpack_arrays
from dps.collectives.routes import (
    PS,
    Own,
    RunSegment,
    chosen,
    direct,
    everyone,
    gather,
    owned,
    parts_of,
    slots,
    through,
)
from dps.errors import ConfigError, DeadlineExceeded, TaskLost
from dps.kernels.gradients import largest, total
from dps.process.telemetry import LogThrottle, log
from dps.transport.sockets.addresses import Binding
from dps.transport.wire import Array

TOTALS = {"sum": total, "max": largest}
LARGE_PIECES, LARGE = 16, 4
"""Over sockets, runs of this many pieces are sent in pieces that are this many times as long, because each piece costs
both ends some tenths of a millisecond."""
LOOK_S = 0.5
"""How often a wait looks whether the run has ended."""
LINGER_S = 2.0
"""How long a member that leaves serves others, which may need its last result."""
LEAVE_AGAIN_S = 0.05
"""How often it asks: another member may need its last result, and meanwhile it serves."""
ANSWER_S = 15.0
"""How long a member that leaves waits for the chief's answer: longer than a node may be silent before it is lost."""
HELLO = "the beginning of a generation"


class Group:
    """The workers of a run that sum together. All members make the same calls in the same order; all get the same bits.

    One thread at a time uses it. When a member is lost, the others finish or repeat the operation among themselves:
    what has been completed by one of them is completed by all, with the same result.

    More than 12 attributes: what it was given, and one node with one actor.
    """

    def __init__(
        self, home: Home, binding: Binding, name: str = "workers", *, replicas: int = 1, algorithm: str | Own = "auto",
        on_loss: str = "continue", lane: bool = True, timeout: float = 60.0,
    ) -> None:  # fmt: skip
        """Blocks until all workers have come. `binding`: how the task's own node listens. `lane`: whether
        members on one machine use shared memory; the same on all."""
        self._runtime, self._over, self._timeout = home.runtime, home.exit_state, timeout
        self._algorithm, self._closed, self._greeted, self._lane = algorithm, False, 0, lane
        self._known: Formed | None = None
        """The members of the last complete operation: all members know the same ones."""
        self._together = False
        """Whether all members can read each other's memory."""
        number = home.runtime.random.getrandbits(61)
        self._node = CallersNode(home.runtime, second_binding(binding), home.name, number, home.keys)
        self._node.expect(home.chief, "chief")
        self._node.present(home.chief, home.ticket)
        who = Who(name, home.task, number, replicas, algorithm == PS)
        self._member = GroupMember(who, home.chief, on_loss == "end")
        self._node.host(MEMBER, self._member)
        try:
            self._node.start_actors()
            self._run_until(lambda: self._member.formed is not None, f"group {name!r}", timeout)
            self.barrier()  # now all members know the same members
        except BaseException:
            self._node.close()
            raise

    # -- who ------------------------------------------------------------------------------------------------------

    @property
    def _formed(self) -> Formed:
        formed = self._member.formed
        assert formed is not None
        return formed

    @property
    def _last(self) -> Formed:
        return self._known or self._formed

    @property
    def rank(self) -> int:
        """The rank of this member. Members are in the order of their tasks."""
        return self._last.rank

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self._last.members)

    @property
    def members(self) -> list[str]:
        """Their names, as "worker:3"."""
        return [other.name for other in self._last.members]

    @property
    def replicas(self) -> list[int]:
        """The number of replicas of each member."""
        return [other.replicas for other in self._last.members]

    # -- operations -------------------------------------------------------------------------------------------------

    def all_reduce(self, arrays: Sequence[Array], op: str = "sum") -> list[Array]:
        """The sums, or maxima, of the members' arrays, element by element. Blocks until all members have called it.

        Arrays of one dtype travel together. The results are read-only, and change with the next operation.

        Args:
            arrays: Numbers; of the same shapes and dtypes on all members.
            op: "sum" or "max".

        Raises:
            ConfigError: Members make different calls.
            TaskLost: A member is gone and the group ends with it; or this one was taken for lost; or the run has ended.
            DeadlineExceeded: A member did not come in time; the message names it.
        """
        found: list[Array] = [np.empty(0)] * len(arrays)
        by_dtype: dict[Any, list[int]] = {}
        for index, array in enumerate(arrays):
            by_dtype.setdefault(array.dtype, []).append(index)
        for dtype, indices in by_dtype.items():
            made = self._reduce_dtype([arrays[index] for index in indices], dtype, op)
            for index, array in zip(indices, made, strict=True):
                found[index] = array if len(by_dtype) == 1 else array.copy()
        return found

    def _reduce_dtype(self, arrays: Sequence[Array], dtype: Any, op: str) -> list[Array]:
        """The sums of arrays of one dtype."""
        count, shapes = sum(array.size for array in arrays), [array.shape for array in arrays]
        if not count:
            return [np.empty(shape, dtype) for shape in shapes]
        if callable(self._algorithm) and op == "sum":
            return self._reduce_by_function(arrays, dtype, count)
        asked = "auto" if callable(self._algorithm) else self._algorithm
        what = f"all_reduce {op!r} of {count} {np.dtype(dtype).name}{'' if asked == 'auto' else f' by {asked!r}'}"

        def make(formed: Formed, own: Array, result: Array) -> Flow:
            rank, size, most = formed.rank, len(formed.members), self._piece_size(dtype)
            if (asked == PS or not self._together) and count >= LARGE_PIECES * most:
                most *= LARGE
            nbytes = count * np.dtype(dtype).itemsize
            shows = self._together and nbytes <= PLACE_NBYTES
            way = chosen(asked, op, nbytes, size, self._together, shows)
            lends = way is direct and self._together
            if way is everyone and shows:
                return self._board_flow(formed, what, arrays, result, TOTALS[op])
            parts = owned([a.size for a in arrays], size, most)[0] if lends else (
                parts_of(count, 1 if way in (everyone, through) else size, most)
            )  # fmt: skip
            fused = FusedArrays(arrays, own, parts, [way(rank, size, root) for root in range(size)])
            how = TOTALS[op], self._window(size), fused.fill_piece, lends
            return Flow(what, rank, size, parts, way, own, result, *how)

        return split_results(self._run_operation(what, dtype, lambda formed: count, make), shapes)

    def _board_flow(self, formed: Formed, what: str, arrays: Sequence[Array], result: Array, how: Any) -> Flow:
        """The sum of parts on boards. A part is written as a whole."""
        rank, size = formed.rank, len(formed.members)
        room = self._member.board_memory(self._member.completed + 1, result.nbytes).view(result.dtype)
        fused = FusedArrays(arrays, room, [RunSegment(0, result.size, 0)], [everyone(rank, size, 0)])
        flow = Flow(what, rank, size, [RunSegment(0, result.size, 0)], everyone, room, result, how, 1, fused.fill_piece)
        flow.shown = True
        return flow

    def _reduce_by_function(self, arrays: Sequence[Array], dtype: Any, count: int) -> list[Array]:
        """The result of an algorithm of the user's, which each member computes for itself."""
        run = np.concatenate([np.ascontiguousarray(array).reshape(-1) for array in arrays])
        rows = self.gather([run])
        found = np.asarray(self._algorithm([row for (row,) in rows]))  # type: ignore[operator]
        if found.shape != (count,) or found.dtype != dtype:
            raise ConfigError(
                f"cross_device_ops: the function returned {found.dtype} {found.shape}, wanted {dtype} ({count},)"
            )
        ends = np.cumsum([array.size for array in arrays])
        return [part.reshape(a.shape) for a, part in zip(arrays, np.split(found, ends[:-1]), strict=True)]

    def gather(self, arrays: Sequence[Array]) -> list[list[Array]]:
        """The arrays of all members, in their order. Shapes may differ from member to member. Blocks as `all_reduce`.

        The results are read-only, and change with the second next operation."""
        head, body = pack_arrays(arrays)
        while True:
            sizes = np.array([head.size, body.size], np.int64)
            found, generation = self._gather_rows(sizes, "sizes")
            counts = [int(heads + bodies) for heads, bodies in found.reshape(-1, 2)]
            made = self._gather_counts(np.concatenate([head, body]), counts, generation)
            if made is not None:
                rows = np.split(made, np.cumsum(counts)[:-1])
                return [unpack_arrays(row, int(heads)) for row, heads in zip(rows, found[::2], strict=True)]

    def barrier(self) -> None:
        """Block until all members have called it."""
        self._gather_rows(np.zeros(1, np.int64), "barrier")

    def broadcast(self, arrays: Sequence[Array]) -> list[Array]:
        """The first member's arrays, on all members. Shapes and dtypes are the same on all. Blocks as `all_reduce`."""
        run = np.concatenate([np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays])
        what = f"broadcast of {run.size} bytes"

        def make(formed: Formed, own: Array, result: Array) -> Flow:
            if formed.rank == 0:
                result[: run.size] = run
            size = len(formed.members)
            parts = slots([run.size] + [1] * (size - 1), self._piece_size(np.uint8))  # each brings some: see `Memories`
            return Flow(what, formed.rank, size, parts, gather, result, result, total, self._window(size))

        flow, at, made = self._run_operation(what, np.uint8, lambda formed: run.size + len(formed.members), make), 0, []
        for array in arrays:
            made.append(flow.result[at : at + array.nbytes].copy().view(array.dtype).reshape(array.shape))
            at += array.nbytes
        return made

    def _gather_rows(self, row: Array, why: str) -> tuple[Array, int]:
        """A row of the same length of each member, one after the other; and the generation that they are of."""
        what, dtype, generation = f"gather of {row.size} numbers ({why})", np.int64, [0]

        def make(formed: Formed, own: Array, result: Array) -> Flow:
            size, generation[0] = len(formed.members), formed.generation
            result[formed.rank * row.size : (formed.rank + 1) * row.size] = row
            parts = slots([row.size] * size, max(1, self._piece_size(dtype)))
            return Flow(what, formed.rank, size, parts, gather, result, result, total, self._window(size))

        flow = self._run_operation(what, dtype, lambda formed: row.size * len(formed.members), make)
        return flow.result[: flow.parts[-1].stop].copy(), generation[0]

    def _gather_counts(self, run: Array, counts: list[int], generation: int) -> Array | None:
        """Rows of these lengths; None if others are members by now."""
        if self._formed.generation != generation:
            return None
        what = f"gather of {sum(counts)} bytes"

        def make(formed: Formed, own: Array, result: Array) -> Flow | None:
            if formed.generation != generation:
                return None
            first = sum(counts[: formed.rank])
            result[first : first + run.size] = run
            parts = slots(counts, self._piece_size(np.uint8))
            return Flow(what, formed.rank, len(counts), parts, gather, result, result, total, self._window(len(counts)))

        flow = self._repeat_operation(what, np.uint8, lambda formed: sum(counts), make)
        return None if flow is None else flow.result[: sum(counts)]

    # -- how ----------------------------------------------------------------------------------------------------------

    def _piece_size(self, dtype: Any) -> int:
        """The most elements of a piece."""
        nbytes: int = self._runtime.tuning.piece_nbytes
        item: int = np.dtype(dtype).itemsize
        return max(1, nbytes // item)

    def _window(self, size: int) -> int:
        return max(8, 2 * size)

    def _run_operation(self, what: str, dtype: Any, count: Callable[[Formed], int], make: Callable[..., Any]) -> Flow:
        flow = self._repeat_operation(what, dtype, count, make)
        assert flow is not None
        return flow

    def _repeat_operation(
        self, what: str, dtype: Any, count: Callable[[Formed], int], make: Callable[..., Any]
    ) -> Flow | None:  # fmt: skip
        """Carry out an operation, and repeat it with the members that are left when some are lost. None if `make` makes
        none."""
        if self._closed:
            raise ConfigError(f"{what}: the group is closed; make a new one")
        deadline = self._runtime.now() + self._timeout
        while True:
            if self._greeted != self._formed.generation:
                self._find_readers()
            found = self._try_operation(what, dtype, count, make, deadline)
            if found is None or isinstance(found, Flow):
                return found

    def _try_operation(
        self, what: str, dtype: Any, count: Callable[[Formed], int], make: Callable[..., Any], deadline: float
    ) -> Flow | bool | None:
        """The complete operation; None if `make` makes none, False if it has to be repeated."""
        member, formed = self._member, self._formed
        if member.error is not None:
            raise member.error
        number, nbytes = member.completed + 1, count(formed) * np.dtype(dtype).itemsize
        regions = [member.memories.region(number, kind, nbytes) for kind in (GIVEN, RESULT)]
        given, result = (region.array[:nbytes].view(dtype) for region in regions)
        flow: Flow | None = make(formed, given, result)
        if flow is None:
            return None
        member.begin_operation(flow, *regions)
        self._run_until(member.read_boards, f"{what} (number {number})", deadline - self._runtime.now(), flow.shown)
        if member.completed < number:
            return False
        self._known = formed if what != HELLO else self._known
        return flow

    def _find_readers(self) -> None:
        """Find out who can read whose memory, as the first operation of a generation."""
        member, deadline = self._member, self._runtime.now() + self._timeout
        while self._greeted != self._formed.generation:
            formed = self._formed
            size = len(formed.members)
            row = member.find_readable() if self._lane else np.zeros(size, np.uint8)

            def make(formed: Formed, own: Array, result: Array, row: Array = row) -> Flow:
                size = len(formed.members)
                result[formed.rank * size : (formed.rank + 1) * size] = row
                about = formed.rank, size, slots([size] * size, size), gather, result, result
                return Flow(HELLO, *about, total)

            flow = self._try_operation(HELLO, np.uint8, lambda formed: len(formed.members) ** 2, make, deadline)
            if isinstance(flow, Flow) and self._formed is formed:
                table = np.array(flow.result).reshape(size, size)
                member.readers = frozenset(np.nonzero(table[:, formed.rank])[0].tolist())
                member.memories.shared = bool(member.readers)
                self._together, self._greeted = int(table.sum()) == size * (size - 1), formed.generation

    def _poll_boards(self, ready: Callable[[], bool]) -> None:
        """Poll for a moment whether `ready` is true, and do nothing else."""
        end = self._runtime.now() + self._runtime.tuning.boards.watch_s
        while not ready() and self._runtime.now() < end:
            pass

    def _run_until(self, ready: Callable[[], bool], what: str, timeout: float, watches: bool = False) -> None:
        """Run the node until `ready` is true. `watches`: no message tells when. Raises the error that has ended the
        group, TaskLost and DeadlineExceeded."""
        member, began, throttle, waited_s = self._member, self._runtime.now(), LogThrottle(), 0.0
        boards = self._runtime.tuning.boards
        if watches:
            self._poll_boards(ready)
        while True:
            most_s = min(max(waited_s / 16, boards.first_look_s), boards.last_look_s) if watches else LOOK_S
            if self._node.run_until(lambda: ready() or member.error is not None, max(0.0, min(most_s, timeout))):
                break
            over, waited_s = self._over(), self._runtime.now() - began
            if over is not None:
                raise TaskLost(f"{what}: {over[1] or 'the run has ended'}")
            text = f"{self._node.name}: {what}: {member.awaits}"
            if waited_s >= timeout:
                member.fail(DeadlineExceeded(f"{text}; waited {waited_s:.1f} s"))
            elif throttle.is_due(self._runtime.now()):
                log.info("%s; has waited %.0f s", text, waited_s)
        if member.error is not None and not ready():
            raise member.error
        if member.error is not None and member.completed + 1 in member.works:
            raise member.error

    def close(self) -> None:
        """Leave the group. Blocks until no other member can need a result of this one, or for 2 s, and until the chief
        has answered, up to 15 s. A second call does nothing. Raises TaskLost if this member was taken for lost, or the
        chief does not answer: then its last operation may not be that of others."""
        if self._closed:
            return
        self._closed = True
        began, told = self._runtime.now(), list[Exception | None]()
        while not told and self._over() is None:
            waited_s = self._runtime.now() - began
            final = self._member.error is not None or waited_s >= LINGER_S
            self._member.leave_group(final, told.append)
            self._node.run_until(lambda: bool(told), LEAVE_AGAIN_S * (1 + final))
            if not told and waited_s >= (LINGER_S if self._member.error is not None else ANSWER_S):
                told.append(
                    TaskLost(
                        f"{self._node.name}: left the group, and the chief did not answer for {waited_s:.0f} s; the "
                        "others may have repeated the last operation without this worker"
                    )
                )
        self._node.close()
        self._member.memories.clear()
        if told and isinstance(told[0], TaskLost) and self._member.error is None:
            raise told[0]
