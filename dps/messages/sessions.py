"""The messages between sessions and ps, from ps to ps, and those by which the chief has ps publish versions.
`dps.messages.runs` has the others to and from the chief.

`epoch` is the sender's current run epoch; a ps that serves another one answers with Aborted. The sender's incarnation,
which every envelope carries, is the number under which the chief admitted the session.
"""

from __future__ import annotations

from typing import Any

from dps.transport.message import ANSWER, CHIEF_ONLY, PS_ONLY, SESSIONS, WORKERS, Message
from dps.transport.wire import Array

PS = "ps"
"""Name of the actor on a ps node."""

WINDOW = 8
"""The most pushes of one session that may be in flight to one shard; a ps keeps as many results."""

NO_BASE = -2
"""`Pull.base` of a session that keeps no version."""

NO_CHECKSUM = -1
"""`Values.checksum` of values that are of no published version."""

NOTHING: list[Any] = []
"""An empty default. Sharing it is safe, because messages and their contents are never changed."""

NOT_LENT = (0,) * 6
"""Counter, step and place of values that are not lent."""

APPLIED, DROPPED, REFUSED = "applied", "dropped", "refused"


# -- pull -------------------------------------------------------------------------------------------------


class Pull(Message, kind=10, roles=SESSIONS):
    """The shard's values. Waits until the shard's step is `min_step`, the push `after` (0: none) of this
    session has its result and, in bounded mode on the step ps, the session's `clock` may read.

    More than 12 attributes: each is something that one can ask for."""

    epoch: int
    min_step: int
    after: int
    clock: int
    newer_than: int
    """Version counter that the asker has; -1: none. Values are sent only if the shard's is higher."""
    parts: list[int]
    """Indices of the parts wanted; empty: the whole run."""
    patience_ms: int = 0
    """The timeout of the asker's session; 0: none. In bounded mode no worker keeps it waiting for longer."""
    shared: bool = False
    """The asker can read the ps's memory: answer with SharedValues if possible."""
    released: int = 0
    """All SharedValues under lower request numbers have been read, even if their Release was lost."""
    packed: list[Any] = NOTHING
    """[name of a cast, indices of parts] for the parts that should be cast. If there are any, the answer's bytes are
    those of a PackedLayout."""
    base: int = NO_BASE
    """Version counter of the values (a PackedLayout) that the asker keeps: send only the changes since.
    -1: it keeps none yet, and will keep this version."""
    keeps_memory: bool = False
    """The asker keeps the received memory instead of copying it, if pieces end where parts end."""
    averages: bool = False
    """The asker wants the moving averages, and the values of variables that have none. The pull counts as no reading of
    the values: it says nothing of staleness, and waits for no clock."""
    published: int = 0
    """The number of the published version whose values the asker wants; 0: none. It waits for nothing, and counts as no
    reading of the newest values."""

    def compact(self) -> tuple[int, ...] | None:
        """The usual case: all of a shard, for a session on the ps's machine."""
        if not self.shared or self.parts or self.packed or self.base != NO_BASE or self.averages or self.published:
            return None
        return (
            self.epoch, self.min_step, self.after, self.clock, self.newer_than, self.patience_ms, self.released,
            self.keeps_memory,
        )  # fmt: skip

    @classmethod
    def expanded(
        cls, epoch: int, min_step: int, after: int, clock: int, newer_than: int, patience_ms: int, released: int,
        keeps: int,
    ) -> Pull:  # fmt: skip
        return cls(epoch, min_step, after, clock, newer_than, [], patience_ms, True, released, keeps_memory=bool(keeps))


class Values(Message, kind=11, roles=ANSWER):
    """One piece of a shard's run at one version: `arrays[i]` are the bytes from `offsets[i]` on."""

    epoch: int
    counter: int
    step: int
    nbytes: int
    """Bytes of the whole answer."""
    offsets: list[int]
    answer: int
    """Rises with each answer of the ps; two answers may be cut into different pieces."""
    base: int = NO_BASE
    """The bytes are the changes since this version, encoded by `dps.variables.deltas`. NO_BASE: they are values."""
    checksum: int = NO_CHECKSUM
    """The CRC-32 of a published version's bytes, after changes. NO_CHECKSUM: of other values it is not taken."""
    arrays: tuple[Array, ...] = ()


class NotNewer(Message, kind=12, roles=ANSWER):
    """The shard's version is the one that the asker has."""

    epoch: int
    counter: int
    step: int


class Lookup(Message, kind=13, roles=SESSIONS):
    """Asks for rows of one part. `arrays` is one array of row numbers within the part, int32 or int64."""

    epoch: int
    min_step: int
    part: int
    released: int = 0
    """All SharedRows under lower request numbers have been read, or never will be."""
    shared: bool = False
    """The asker can read the ps's memory: answer with SharedRows if possible."""
    arrays: tuple[Array, ...] = ()


class RowsAnswer(Message, kind=14, roles=ANSWER):
    """Some of the requested rows, in order, from `first` on, with shape (rows, elements of a row)."""

    epoch: int
    counter: int
    first: int
    arrays: tuple[Array, ...] = ()


class SharedRows(Message, kind=19, roles=ANSWER):
    """All requested rows are at the beginning of this memory, until a Lookup says that they have been read."""

    epoch: int
    counter: int
    memory: list[int]


class SharedValues(Message, kind=15, roles=ANSWER):
    """One version of the shard, to be read in place until a Release with the pull's number: a memory per arena."""

    epoch: int
    counter: int
    step: int
    memories: list[Any]

    def compact(self) -> tuple[int, ...] | None:
        """The usual case: a shard with one arena."""
        if len(self.memories) != 1 or self.memories[0].__class__ is not list:
            return None
        return self.epoch, self.counter, self.step, *self.memories[0]

    @classmethod
    def expanded(
        cls, epoch: int, counter: int, step: int, process: int, descriptor: int, inode: int, nbytes: int
    ) -> SharedValues:
        made = object.__new__(cls)  # here and below without the constructor: it would double the cost
        made.__dict__ = {
            "epoch": epoch, "counter": counter, "step": step, "memories": [[process, descriptor, inode, nbytes]],
        }  # fmt: skip
        return made


class Release(Message, kind=16, roles=SESSIONS):
    """The SharedValues under these request numbers have been read."""

    epoch: int
    numbers: list[int]


class Probe(Message, kind=17, roles=SESSIONS):
    """Asks whether the ps is on the asker's machine: whether it can read the asker's `memory`, and, once the asker has
    found there what the ps's memory holds (`proof`), whether that is right. `direct` names its datagram socket."""

    memory: list[int]
    proof: bytes = b""
    direct: bytes = b""


class Probed(Message, kind=18, roles=ANSWER):
    """Answers Probe with memory of the ps and what the asker's memory holds; [] if the ps could not read that.
    `near`: the asker's proof is right, so that memory which it names is read. `direct`: the ps's datagram socket."""

    memory: list[int]
    proof: bytes = b""
    near: bool = False
    direct: bytes = b""


# -- push -------------------------------------------------------------------------------------------------

EMPTY, RUN, PARTS, SHARED = 0, 1, 2, 3
STEP_PS = -1
"""`Push.counted_by` of a push that the step ps counts."""
DENSE, ROWS, PACKED, VALUE = 0, 1, 2, 3


class Push(Message, kind=20, roles=WORKERS):
    """One piece of a push. Form EMPTY: nothing for this shard; RUN: bytes of the dense run at `offsets`; PARTS:
    `parts` lists [part index, how, place]; SHARED: the dense run lies in the sender's memory, `parts` is that
    memory's name and the offset in it.

    In PARTS `how` is DENSE or ROWS (an array of row numbers, int32 or int64, comes first). The values are the next
    array, or where `place` says, which is a memory of the sender's and an offset in it, or empty. PACKED: the next
    array is bytes, `place` the form of `dps.variables.packed` that they have. VALUE: values as of DENSE, which the
    part, trained or not, is set to after the gradients; outside of sync mode a push of these alone is no step.

    More than 12 attributes: what is in each message of a push, and what one may bring along."""

    epoch: int
    number: int
    step: int
    counter: int
    form: int
    nbytes: int
    """Bytes of the whole push."""
    offsets: list[int]
    parts: list[Any]
    clock: int = 0
    """For the step ps in bounded mode: how many earlier pushes of the session all ps have acknowledged."""
    lend: bool = False
    """The asker can read the ps's memory and wants the values with the result: see `Pushed.lent`."""
    released: int = 0
    """As of Pull."""
    times: list[Any] = NOTHING
    """For the ps that counts the push, in some pushes: seconds for which the session's loop has read data, has computed
    and was in the session's calls since the incarnation began, up to this push; the session's timeout (0: none); and,
    of a session whose pushes are counted on several ps, how many pushes had their result before."""
    counted_by: int = STEP_PS
    """The ps that counts the push as a step: STEP_PS, or another one if nothing of it goes to the step ps."""
    arrays: tuple[Array, ...] = ()

    def compact(self) -> tuple[int, ...] | None:
        """The usual case: gradients of all of a shard, in memory that begins with them."""
        if self.form != SHARED or self.times or self.offsets or self.arrays or self.counted_by != STEP_PS:
            return None
        if len(self.parts) != 2 or self.parts[1] != 0:
            return None
        if self.parts[0].__class__ is not list:
            return None
        return (
            self.epoch, self.number, self.step, self.counter, self.nbytes, self.clock, self.lend, self.released,
            *self.parts[0],
        )  # fmt: skip

    @classmethod
    def expanded(
        cls, epoch: int, number: int, step: int, counter: int, nbytes: int, clock: int, lend: int, released: int,
        process: int, descriptor: int, inode: int, memory_nbytes: int,
    ) -> Push:  # fmt: skip
        # More than 9 parameters: the numbers of a compact message, each under its name.
        made = object.__new__(cls)
        made.__dict__ = {
            "epoch": epoch, "number": number, "step": step, "counter": counter, "form": SHARED, "nbytes": nbytes,
            "offsets": [], "parts": [[process, descriptor, inode, memory_nbytes], 0], "clock": clock,
            "lend": lend != 0, "released": released, "times": NOTHING, "counted_by": STEP_PS, "arrays": (),
        }  # fmt: skip
        return made


class PushStatus(Message, kind=21, roles=WORKERS):
    """Asks for the state of a push. Answered with Pushed, PushMissing, or, if the push waits, PushHeld (sync) or
    Waiting (async and bounded)."""

    epoch: int
    number: int


class PushMissing(Message, kind=22, roles=ANSWER):
    """The ps does not have all of the push; send it again under the same number."""

    number: int


class PushHeld(Message, kind=23, roles=ANSWER):
    """The ps has the complete, checked push, which waits for its step's set. On the step ps this is never the last
    answer; from another ps it ends the session's request, because that ps has the push in its own memory. `accepted` is
    true once the set that contains it is fixed."""

    number: int
    accepted: bool
    reason: str


class Pushed(Message, kind=24, roles=ANSWER):
    """The result of a push on one shard: status applied, dropped or refused (with its reason); the step, in
    sync the token; how many versions were applied between pull and push; the shard's version after it."""

    number: int
    status: str
    step: int
    staleness: int
    counter: int
    reason: str
    lent: list[Any] = NOTHING
    """[version counter, step, memories] of the values after the update, as in SharedValues, leased under the push's
    request number. Empty if they were not requested or cannot be lent; then they must be pulled."""
    credit: bool = False
    """The next push may be sent without asking for credit."""
    settles: bool = False
    """The session is to complete the pushes that are on their way, start no other, and join again."""

    def compact(self) -> tuple[int, ...] | None:
        """The usual case: a push that was applied, with values of one arena or none."""
        if self.status != APPLIED or self.reason:
            return None
        about, lent = (self.number, self.step, self.staleness, self.counter, self.credit | self.settles << 1), self.lent
        if not lent:
            return about + NOT_LENT
        if len(lent) != 3:
            return None
        counter, step, memories = lent
        if memories.__class__ is not list or len(memories) != 1:
            return None
        (name,) = memories
        if name.__class__ is not list or not name or not name[-1]:
            return None
        return (*about, counter, step, *name)

    @classmethod
    def expanded(
        cls, number: int, step: int, staleness: int, counter: int, flags: int, lent_counter: int, lent_step: int,
        process: int, descriptor: int, inode: int, nbytes: int,
    ) -> Pushed:  # fmt: skip
        # More than 9 parameters: the numbers of a compact message, each under its name.
        made = object.__new__(cls)
        made.__dict__ = {
            "number": number, "status": APPLIED, "step": step, "staleness": staleness, "counter": counter,
            "reason": "", "credit": flags & 1 != 0, "settles": flags & 2 != 0,
            "lent": [lent_counter, lent_step, [[process, descriptor, inode, nbytes]]] if nbytes else NOTHING,
        }  # fmt: skip
        return made


class Credit(Message, kind=25, roles=WORKERS):
    """Asks for permission to send a push of several pieces. Answered with Done when it may be sent."""

    epoch: int
    number: int


class Enter(Message, kind=26, roles=SESSIONS):
    """A session has joined: asks for the current step, and in sync for a part in the steps from there on. Answered with
    Token when it may begin."""

    epoch: int


class Token(Message, kind=27, roles=ANSWER):
    """The session's local step from now on."""

    step: int


FIRST, TRAINED, APART = 0, 1, 2
"""What a session did before a call of all workers: it has made no push; its last push counts; it has pushed, and its
last push does not count, or it has joined again since."""


class Exchange(Message, kind=28, roles=WORKERS):
    """A worker's part of a call that all workers in sync make together, such as the sum of their losses. For the step
    ps. Answered with Exchanged once all have made it."""

    epoch: int
    step: int
    """The session's local step."""
    place: int
    """How many such calls it has made since its last push."""
    call: int
    """How many it has made at all."""
    since: int
    """FIRST, TRAINED or APART."""
    what: str
    """The call in words. All workers must make the same one."""
    head: int
    """How many bytes of the array describe the arrays that it holds; as of `dps.collectives.packing`."""
    arrays: tuple[Array, ...] = ()


class Exchanged(Message, kind=29, roles=ANSWER):
    """The parts of the workers, in the order of their tasks."""

    heads: list[int]
    without: str
    """Who has no part in it and why, as text for people; "" for nobody."""
    arrays: tuple[Array, ...] = ()


# -- ps to ps, synchronous steps --------------------------------------------------------------------------


class Report(Message, kind=30, roles=PS_ONLY):
    """A ps reports a push that is complete there to the step ps: [incarnation, number, local step, refusal]."""

    epoch: int
    ps: int
    pushes: list[Any]


class Decide(Message, kind=31, roles=PS_ONLY):
    """Entry `index` of the step ps's decisions, carried out in order by every ps: apply `chosen` (lists of
    [task, incarnation, number]) as step `step`, drop `dropped`, refuse `refused` (with a reason each), forget
    the staged pushes of `ended` incarnations, copy the shard for the checkpoint `cut` ("" for none)."""

    epoch: int
    index: int
    step: int
    chosen: list[Any]
    dropped: list[Any]
    refused: list[Any]
    ended: list[int]
    cut: str


# -- ps to ps, counting of steps --------------------------------------------------------------------------


class CountSteps(Message, kind=32, roles=PS_ONLY):
    """A ps tells the step ps how many pushes of this run epoch it has applied and counts as steps, because nothing of
    them went to the step ps (`Push.counted_by`). Answered with Token, the step with them."""

    epoch: int
    ps: int
    pushes: int


# -- published versions ------------------------------------------------------------------------------------

CUT = "version "
"""How the names of cuts for published versions begin; those for checkpoints are hexadecimal numbers."""


class CutVersion(Message, kind=130, roles=CHIEF_ONLY):
    """Copy the values of the shard for a published version. Answered with VersionCut.

    In async and bounded mode with several ps `holds` is true, the shard holds its pushes back for this cut, and
    `numbers` lists [incarnation, number of the last push that belongs to it]; of other sessions none does that is not
    applied. Else the cut is made as of CutShard."""

    epoch: int
    cut: str
    holds: bool = False
    numbers: list[Any] = NOTHING


class VersionCut(Message, kind=131, roles=ANSWER):
    """The values are copied, at this step and version. `number`: the newest published version, if it has these very
    values; 0: it has not."""

    step: int
    counter: int
    number: int
    counted: int = 0
    """As of ShardCut."""


class CommitVersion(Message, kind=132, roles=CHIEF_ONLY):
    """Keep a copy under this number, which was never used before. All ps have made theirs."""

    epoch: int
    cut: str
    number: int
    label: str
    step: int
    """That of the version, the step ps's."""


class SettleVersion(Message, kind=133, roles=CHIEF_ONLY):
    """All ps keep this published version: drop the older ones."""

    epoch: int
    number: int


class HoldPushes(Message, kind=139, roles=CHIEF_ONLY):
    """Apply no push until the shard is copied at this cut, or it is given up. Answered with PushesHeld."""

    epoch: int
    cut: str


class PushesHeld(Message, kind=129, roles=ANSWER):
    """The shard holds its pushes back. [incarnation, number] of the last push of each session that has its result."""

    done: list[Any]


class ResumePushes(Message, kind=145, roles=CHIEF_ONLY):
    """The cut is given up: apply the pushes that were held back."""

    epoch: int
    cut: str
