"""`Tuning`: the numbers that choose between paths or set times, in one frozen value.

Decision 32 says which are elsewhere.

Each process has one, `runtime.tuning`. The defaults were measured on real machines. `Tuning.small()` makes all sizes
small, so that the simulator runs every path with a few hundred bytes. Limits of wire and file formats are not here,
because a process may not choose them.
"""

from __future__ import annotations

from typing import TypeVar

from dps.process.record import record, replace

T = TypeVar("T")


def _default(cls: type[T]) -> T:
    """An instance with defaults only. Its constructor is not used, because compiling it takes 0.2 ms per import."""
    return object.__new__(cls)


@record
class ClientTuning:
    """How a session collects and sends data, and how long it waits."""

    streamed_pieces: int = 3
    """A push is streamed if its part for one ps is at least this many of the shortest pieces long."""
    small_part: int = 4
    """Variables smaller than the shortest piece divided by this are copied together with their neighbours. A larger
    variable is not cut into smaller ranges than that, because a frame costs as much as copying such a range."""
    step_patience_s: float = 0.02
    """How long a small step waits for its answer, s; then it is also sent as an ordinary push."""
    step_values_s: float = 0.5
    """How long after a push the values that came with it serve a pull, s."""
    surplus_nbytes: int = 32 << 20
    """First values from this size on are returned to the system when the program has released them."""
    kept_gradients: int = 10
    """How many results of `gradients` are recognised when they are pushed."""
    slice_s: float = 0.5
    """How long a wait continues before it checks the chief and its own node, s."""
    ask_again_s: float = 0.05
    """How long a session waits before it asks the chief again whether all ps are there, s."""
    probe_s: float = 0.5
    """How long a session waits for the answer whether a ps is on its machine, s; a later answer still counts."""
    report_s: float = 10.0
    """How often a long wait reports whom it waits for, s."""
    farewell_s: float = 5.0
    """How long a closing session waits for the chief, s."""
    leads_s: float = 2.0
    """How long `is_chief` waits for the chief, s."""


@record
class RowListTuning:
    """Which lists of row numbers a session remembers, sorted."""

    least: int = 512
    """The shortest list that is remembered; shorter ones are cheap to sort."""
    kept: int = 32
    """How many lists are remembered."""


@record
class IntakeTuning:
    """How a ps receives pushes."""

    credits: int = 2
    """The most pushes of several pieces that may be in flight to a ps at one time."""
    slow_windows: int = 3
    """After this many slow windows in a row, pushes no longer wait for each other, until one arrives fast again."""
    credit_s: float = 5.0
    """A sender that sends no piece for so long loses its credit and the pieces that have arrived, s."""
    attached: int = 32
    """The most memories of one session that stay attached."""
    telling: int = 8
    """The speed of a push is known when this part of it (an eighth) has arrived; of a slow one earlier."""


@record
class ModesTuning:
    """When pushes are applied."""

    peer_s: float = 10.0
    """Timeout of one request to another ps, s; it is then repeated, because the chief decides when a ps is lost."""
    held_s: float = 0.25
    """How long an undecided push stays in its session's memory, on a ps that is not the step ps, s. Then it is copied,
    so that a session that has its token can continue. Most pushes are decided sooner."""
    late_share: float = 0.8
    """The part of a reader's timeout after which a worker that hangs no longer counts."""
    count_s: float = 0.02
    """How long a ps gathers the pushes that it counts, until it tells the step ps of them, s."""


@record
class StoreTuning:
    """How a shard's memory is updated.

    More than 12 attributes: they are settings, one a number, and have no behaviour.
    """

    large_pieces: int = 8
    """Shards of at least this many pieces are handled in the way that uses the least memory."""
    group_nbytes: int = 24 << 20
    """Pieces of a gradient are applied and freed in groups of so many bytes: enough for several threads to share."""
    ahead_pieces: int = 3
    """Pushes of fewer pieces than this are applied only when they are complete; starting earlier gains little."""
    most_skipped: int = 63
    """After a push was applied early in vain, at most this many pushes are not applied early."""
    buffers: int = 3
    small_buffers: int = 32
    small_buffers_nbytes: int = 64 << 20
    """The most buffers of one arena; small arenas have more, because their readers return them late, but not more bytes
    than this."""
    sparing_buffers: int = 2
    """The buffers of a large arena, whose readers wait for each other."""
    stream_nbytes: int = 1 << 19
    """Arenas from this size on are written past the caches if the target is a free buffer: SGD takes 0.64 of the
    time."""
    looking_nbytes: int = 24 << 20
    """Gradients from this size on are checked for NaN by the pass that applies them to a free buffer, if the optimizer
    has no slots. Smaller ones stay in the caches between the check and an update in place, which is faster."""
    pool_nbytes: int = 8 << 20
    """From this size on a pool shares a pass: two threads take 0.7 of the time at 8 MB, 0.55 at 102. At 4 MB they take
    0.9, and checking for an idle core costs as much when there is none."""
    pool_piece_nbytes: int = 1 << 20
    """The least bytes that a thread of a pool takes at a time."""
    pool_threads: int = 4
    """The most threads of a pool that uses idle cores. 1: no pools."""
    pool_grain: int = 1024
    """A pool's pieces begin at multiples of this many elements, so that no two threads write to one cache line."""
    pool_alone: int = 16
    """A pass of up to this many smallest pieces is not divided if no core is idle when it begins."""
    made_nbytes: int = 16 << 20
    """First values are made in blocks of so many bytes, between which a ps handles messages: some 10 ms each."""
    made_pause_s: float = 0.0
    """The time between two such blocks, s; in the simulator making itself takes none."""
    pool_crowded: int = 2
    """A helper leaves after it found others waiting for a core this many times in a row; most tasks that wake up need
    the core for a shorter time."""


@record
class ServingTuning:
    """How a ps sends values.

    More than 12 attributes: they are settings, one a number, and have no behaviour.
    """

    copied_pieces: int = 2
    """The longest message, in pieces, for a receiver that copies: longer ones are no longer in its cache."""
    whole_nbytes: int = 128 << 20
    longest_nbytes: int = 512 << 20
    """The longest message for a receiver that does not copy, and the longest if one variable is longer."""
    a_piece_s: float = 0.25
    """The longest time for such a message, s: a connection on which no message ends for 5 s counts as broken."""
    early_piece_s: float = 0.02
    """The longest time for a message of a version that is sent while it is made, if its parts are not cut, s. The last
    one leaves only when the push is complete."""
    early_told_s: float = 0.03
    """A push that has come slowly for so long comes over a slow connection, s; also one of a session to which values
    have left slowly."""
    fast_nbytes_s: float = 1e9
    """A push that arrives faster than this, bytes/s, is limited by the processors, not by the connection: on two cores,
    over loopback, a step of SGD took 15 to 20 % longer when both directions were used at once."""
    window_s: float = 0.5
    """The time over which a rate is measured, s: a busy machine can delay every task for some tenths of a second."""
    slow_nbytes_s: float = 130e6
    """A rate above that of a 1 Gbit/s connection, bytes/s. Lower rates count as slow."""
    shortest_s: float = 1e-3
    """A shorter time does not tell the rate of a connection, s."""
    buffer_wait_s: float = 0.05
    """How long a pull waits for another reader to finish if all buffers are in use, s; then it gets a copy."""
    buffer_wait_most_s: float = 2.0
    """How long it waits at most, while others read fast, before a large shard gets a third buffer or a copy, s."""
    moment_s: float = 0.02
    """A request that waits for longer gets a notice that names whom it waits for, s."""
    remembered: int = 64
    """Numbers of returned holds, and of pushes that want values, that are kept for each session."""
    waiting_pulls: int = 64
    """The most pulls of one session that wait for a step or a push; a further one is refused."""
    waiting_lookups: int = 64
    """The most lookups of one session that wait for a step; a further one is answered when it is sent again."""
    answers: int = 4
    """Memories with rows for one session; a lookup is answered over the socket if none is free."""
    answer_nbytes: int = 1 << 16
    """The least bytes of one such memory."""
    answers_nbytes: int = 128 << 20
    """The most bytes of all such memories of one session."""
    packed_ways: int = 4
    """How many packed forms of the current version are kept."""
    packed_versions: int = 8
    """How many versions are kept for sessions that pull deltas; a session with an older one is sent everything."""
    kept_saves: int = 2
    """How many saves, finished or not, are remembered for a chief that asks again."""


@record
class NodeTuning:
    """How nodes and callers send, and send again."""

    first_resend_s: float = 0.25
    last_resend_s: float = 2.0
    """When a request without an answer is sent again, at first and at last, s."""
    resend_delays: int = 3
    """A request is not sent again before this many times the usual delay of its node's first answers. Otherwise a busy
    node would get every request two or three times and become slower still. (Like TCP's retransmission timer, RFC 6298,
    but any first answer is a sample, because it carries the request's number.)"""
    resend_smoothing: int = 8
    """A longer delay becomes the usual one at once; a shorter delay lowers it by an eighth of the difference."""
    least_nbytes_s: float = 12.5e6
    """First values are not sent again before the time that they need at this rate (100 Mbit/s), bytes/s."""
    together_nbytes: int = 16 * 1024
    """Messages with longer arrays are sent alone."""
    held_up_s: float = 0.2
    """If a turn of a node's thread took longer than this, s, its time does not count against absent peers."""
    drained: int = 1000
    """The most events that a node reads before it judges who is late."""


@record
class BoardTuning:
    """How a member of a group waits for the boards of the others, which no message tells of."""

    watch_s: float = 1e-4
    """How long it only looks at them, before it also receives messages, s. 0 in the simulator, whose clock stands still
    while it looks."""
    first_look_s: float = 1e-4
    last_look_s: float = 1e-3
    """The time between two looks, at first and at last, s."""


@record
class Tuning:
    """The tuning of one process.

    More than 12 attributes: they are settings, one a number, and have no behaviour.
    """

    piece_nbytes: int = 1 << 20
    """Longer runs are sent as several messages of this size, bytes."""
    piece_s: float = 0.01
    """Messages are shorter on a connection that needs longer for one, s. While gradients and values move at once, the
    first and the last message each move alone; a message costs both ends 0.1 ms."""
    shard_nbytes: int = 1
    """Shards from this size on are shared with the sessions on a ps's machine. A shard of biases counts, too: sessions
    ask several ps in one round trip only if all share."""
    shared_nbytes: int = 1 << 16
    """Rows and single gradients from this size on also go through shared memory; smaller ones go in messages."""
    small_nbytes: int = 6 << 20
    """Shards up to this size are pulled, pushed and stepped in one round trip. A ps keeps many versions of them, so a
    reader need not report at once that it has read one. By turns with ordinary steps, one worker: a step of 407 KB
    takes 0.6 of the time, of 1.6 MB 0.7, of 3.2 MB 0.85, of 4 MB and more 0.95 to 1; a synchronous step of two workers,
    of 1.6 and 3.2 MB 0.65 and in place 0.4 to 0.5. With several workers most pairs of 5.4 MB gain, and those of 8 MB
    and more disagree."""
    together: int = 64
    """The most small messages to one node that are sent as one bundle."""
    block_nbytes: int = 0
    """Long passes over memory are made in blocks of so many bytes, between which the runtime may let other tasks run
    (`Runtime.preempt`). 0: without interruption."""
    nodes: NodeTuning = _default(NodeTuning)
    client: ClientTuning = _default(ClientTuning)
    rows: RowListTuning = _default(RowListTuning)
    intake: IntakeTuning = _default(IntakeTuning)
    modes: ModesTuning = _default(ModesTuning)
    store: StoreTuning = _default(StoreTuning)
    serving: ServingTuning = _default(ServingTuning)
    boards: BoardTuning = _default(BoardTuning)

    @staticmethod
    def small() -> Tuning:
        """For the simulator: a piece has 64 bytes, all shards and rows are shared if possible, and all row lists are
        remembered. There are no pools, because their threads would run outside the virtual time. Boards are looked
        at seldom, because each look costs as much as anything else."""
        return Tuning(
            piece_nbytes=64, shard_nbytes=0, shared_nbytes=0, block_nbytes=64, rows=RowListTuning(least=1),
            store=StoreTuning(pool_threads=1, made_nbytes=1 << 16, made_pause_s=1e-3),
            boards=BoardTuning(watch_s=0.0, last_look_s=1e-2),
        )  # fmt: skip

    def where(self, **changes: object) -> Tuning:
        """A copy with other values in some fields. A group's field is named `store__large_pieces=0`.

        Raises TypeError for an unknown field.
        """
        own = {name: value for name, value in changes.items() if "__" not in name}
        groups: dict[str, dict[str, object]] = {}
        for name in changes.keys() - own.keys():
            group, field = name.split("__")
            groups.setdefault(group, {})[field] = changes[name]
        return replace(self, **own, **{group: replace(getattr(self, group), **some) for group, some in groups.items()})


ORDINARY = _default(Tuning)
"""The tuning for real machines."""
