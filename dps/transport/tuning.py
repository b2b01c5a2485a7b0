"""The numbers that choose between ways and set times, in one frozen value that every part reads from its runtime.

Each process has one: `runtime.tuning`. The defaults are what was measured on real machines. `Tuning.small()` makes all
sizes small, so that the simulator takes every way with a few hundred bytes. Limits of formats are not here: no process
may choose its own.
"""

from __future__ import annotations

from typing import TypeVar

from dps.record import record, replace

T = TypeVar("T")


def _default(cls: type[T]) -> T:
    """An instance with nothing but defaults. To compile its constructor at each import would take 0.2 ms."""
    return object.__new__(cls)


@record
class ClientTuning:
    """How a session gathers, sends, waits and keeps."""

    streamed_pieces: int = 3
    """So long, in the shortest pieces, is the longest part of a push that streams."""
    small_part: int = 4
    """Variables of less than the shortest piece by this are gathered with their neighbours, and no less of a longer one
    is sent alone to fill a message: a frame costs as much as to copy that much."""
    step_patience_s: float = 0.02
    """How long a small step waits for its answer, s; then the push goes the ordinary way, too."""
    step_values_s: float = 0.5
    """How long after a push the values that came with it serve a pull, s."""
    surplus_nbytes: int = 32 << 20
    """First values from this size on are given back to the system when the program has let them go."""
    kept_gradients: int = 4
    """Results of `gradients` that are known again when they are pushed."""
    slice_s: float = 0.5
    """How long a wait goes on before it looks at the chief and at its own node, s."""
    ask_again_s: float = 0.05
    """How long a session waits before it asks the chief again whether all ps are there, s."""
    probe_s: float = 0.5
    """How long a session waits to hear whether a ps is on its machine, s; one that says so later is taken up then."""
    report_s: float = 10.0
    """How often a wait that goes on says for whom, s."""
    farewell_s: float = 5.0
    """How long a session that closes waits for the chief, s."""
    leads_s: float = 2.0
    """How long `is_chief` waits for the chief, s."""


@record
class RowListTuning:
    """Which lists of row numbers are sent once, and how many of them are kept."""

    least: int = 512
    most: int = 1 << 19
    """Row numbers that a list has which is sent once: shorter ones cost nothing, longer ones would fill the ps's
    memory."""
    kept: int = 32
    kept_by_ps: int = 64
    """Lists that a session remembers, and that a ps keeps for each session: one for reading, one for writing."""
    kept_nbytes: int = 8 << 20
    """Bytes of row numbers that a ps keeps for one session."""


@record
class IntakeTuning:
    """How pushes come to a ps."""

    credits: int = 2
    """Pushes of several pieces that may be on their way to a ps at one time."""
    slow_windows: int = 3
    """After so many slow windows nobody waits until another's push is here; until one is brought at a pace."""
    credit_s: float = 5.0
    """A sender that brings no piece for so long loses its credit and its staged pieces, s."""
    attached: int = 32
    """Memories of one session that stay attached."""
    telling: int = 8
    """Of such a part of a push (an eighth) it can be told how fast it comes."""


@record
class ModesTuning:
    """When pushes are applied."""

    peer_s: float = 10.0
    """How long a ps asks another one before it asks anew, s; the chief decides when a ps is lost."""
    held_s: float = 0.25
    """How long a push that has no decision stays in its session's memory on a ps that is not the step ps, s. Then it is
    copied, so that the session can go on where it has its token. Most have their decision sooner."""
    patience: float = 0.8
    """The part of a reader's patience after which a worker that hangs no longer counts."""


@record
class StoreTuning:
    """How a shard's memory is updated."""

    large_pieces: int = 8
    """Shards of so many pieces are spared what memory they can be."""
    group_nbytes: int = 24 << 20
    """Pieces of a gradient are applied, and let go, so many bytes at a time: enough for several threads to share."""
    ahead_pieces: int = 3
    """Pushes of fewer pieces than this are applied when they are whole: there is little to gain by less."""
    most_skipped: int = 63
    """Pushes that are not applied ahead, at most, after one whose work was for nothing."""
    buffers: int = 3
    small_buffers: int = 32
    """The most buffers of one arena; more where they are small, for their readers return them late."""
    sparing_buffers: int = 2
    """Buffers that suffice where readers of a large arena wait for one another."""
    stream_nbytes: int = 1 << 19
    """Arenas from this size on are written past the caches if the target is a spare buffer: SGD takes 0.64 of the
    time."""
    crew_nbytes: int = 8 << 20
    """From this size on a crew shares a pass: two threads take 0.7 of the time at 8 MB, 0.55 at 102. At 4 MB it is 0.9,
    and to ask whether a core is free costs as much where none is."""
    crew_piece_nbytes: int = 1 << 20
    """The least that a thread of a crew takes at a time."""
    crew_threads: int = 4
    """Threads of a crew that takes what cores are free. 1: there are no crews."""
    crew_grain: int = 1024
    """A crew's pieces begin at multiples of as many elements, so that no two threads write to one cache line."""
    crew_alone: int = 16
    """A pass of no more than as many smallest pieces is one piece where no core is free when it begins."""
    crew_crowded: int = 2
    """How often in turn a helper finds others waiting for a core before it goes: most that wake up run for less
    long."""


@record
class ServingTuning:
    """How values leave a ps."""

    copied_pieces: int = 2
    """So many pieces as one, at most, for who copies them: longer ones have left his cache by then."""
    whole_nbytes: int = 128 << 20
    longest_nbytes: int = 512 << 20
    """Of a piece that nobody has to copy, at most, and of one variable that is longer."""
    a_piece_s: float = 0.25
    """How long such a piece takes to leave, at most, s: a connection on which no message ends for 5 s counts as
    broken."""
    early_pieces: int = 8
    """A version leaves in about so many pieces while it is made: each costs both ends 0.1 ms, and the sooner the first
    leaves, the more of the others do meanwhile."""
    fast_nbytes_s: float = 1e9
    """A push that arrives faster, bytes/s, is bound by the processors, not by the connection: on two cores, over
    loopback, a step of SGD took 15 to 20 % longer when both directions were used at once."""
    window_s: float = 0.5
    """How long is looked before anything is said of a pace, s: a busy machine holds everybody up for some tenths of a
    second."""
    slow_nbytes_s: float = 130e6
    """What a connection of 1 Gbit/s does not reach, bytes/s."""
    shortest_s: float = 1e-3
    """A shorter time says nothing of a connection, s."""
    room_s: float = 0.05
    """How long a pull waits, when all buffers are in use, for another reader to be done, s; then it gets a copy."""
    room_most_s: float = 2.0
    """How long it waits, at most, before a large shard gets a third buffer, or a copy, s; as long as others read at a
    pace."""
    moment_s: float = 0.02
    """Those who wait for longer are told for whom, s."""
    remembered: int = 64
    """Numbers of returned holds, and of pushes that want values, that are kept for each session."""
    waiting_lookups: int = 64
    """Lookups of one session that are answered when a step is there; a further one is answered when it comes again."""
    answers: int = 4
    """Memories with rows for one session; a lookup that finds none free is answered over the socket."""
    answer_nbytes: int = 1 << 16
    """Bytes of one such memory, at least."""
    answers_nbytes: int = 128 << 20
    """Bytes of all such memories of one session, at most."""
    packed_ways: int = 4
    """Ways to pull the current version in fewer bytes that are kept."""
    packed_versions: int = 8
    """Versions that are kept for sessions that pull only what changed; who has an older one is sent everything."""
    kept_saves: int = 2
    """Finished or unfinished saves that are remembered, for a chief that asks again."""


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
    together_nbytes: int = 16 * 1024
    """Messages with longer arrays are sent alone."""
    held_up_s: float = 0.2
    """If a turn of a node's thread took longer than this, s, its time does not count against absent peers."""
    drained: int = 1000
    """The most events that a node reads before it judges who is late."""


@record
class Tuning:
    """What one process decides by."""

    piece_nbytes: int = 1 << 20
    """Runs longer than this travel as several messages of this size, bytes."""
    shard_nbytes: int = 1 << 10
    """Shards from this size on are shared with the sessions on a ps's machine."""
    shared_nbytes: int = 1 << 16
    """Rows and single gradients from this size on go through shared memory there, too; fewer bytes travel as such."""
    small_nbytes: int = 1 << 18
    """Of a shard up to this size a ps keeps many versions: who has read one need not say so at once."""
    together: int = 64
    """So many small messages to one node may travel as one."""
    block_nbytes: int = 0
    """Long passes over memory are made in blocks of so many bytes, between which the runtime may let other tasks run
    (`Runtime.preempt`). 0: in one go."""
    nodes: NodeTuning = _default(NodeTuning)
    client: ClientTuning = _default(ClientTuning)
    rows: RowListTuning = _default(RowListTuning)
    intake: IntakeTuning = _default(IntakeTuning)
    modes: ModesTuning = _default(ModesTuning)
    store: StoreTuning = _default(StoreTuning)
    serving: ServingTuning = _default(ServingTuning)

    @staticmethod
    def small() -> Tuning:
        """For the simulator: a run of 64 bytes is a piece, all shards and rows are shared with who can read them, all
        lists of rows are sent once. No crews: their threads would stand outside the virtual time."""
        return Tuning(
            piece_nbytes=64, shard_nbytes=0, shared_nbytes=0, block_nbytes=64, rows=RowListTuning(least=1),
            store=StoreTuning(crew_threads=1),
        )  # fmt: skip

    def where(self, **changes: object) -> Tuning:
        """Another one, with other values in some fields; those of a group by its name: `store__large_pieces=0`.

        Raises TypeError for what is no field.
        """
        own = {name: value for name, value in changes.items() if "__" not in name}
        groups: dict[str, dict[str, object]] = {}
        for name in changes.keys() - own.keys():
            group, field = name.split("__")
            groups.setdefault(group, {})[field] = changes[name]
        return replace(self, **own, **{group: replace(getattr(self, group), **some) for group, some in groups.items()})


ORDINARY = _default(Tuning)
"""As it is on real machines."""
