"""The messages by which the chief begins, watches and ends a run: to and from ps, sessions and the agents of nodes.

More than 500 lines: the protocol of the chief is read as a whole, and half of it says what each field means.
"""

from __future__ import annotations

from typing import Any

from dps.messages.sessions import NOTHING
from dps.transport.message import (
    ALL,
    ANSWER,
    CHIEF_ONLY,
    ENDS,
    NODES,
    OPERATOR_ONLY,
    SESSIONS,
    TOKENS,
    TRACERS,
    VISITORS,
    WORKERS,
    Message,
)
from dps.transport.wire import Array

CHIEF, AGENT = "chief", "agent"
"""Names of actors: on the chief's node, and on every node (it takes orders from the chief)."""
OPERATORS, ENROLMENT = "operators", "enrolment"
"""Further ones on the chief's node; the second only with keys."""

NO_NOTES: dict[str, Any] = {}
"""An empty default, as NOTHING."""

# Phases of a run, as the chief's status says them to people.
GATHER = "gathering the ps"
OPEN = "waiting for a session"
CONFIGURE = "configuring the ps"
INITIALISE = "initialising"
RUN = "training"
SETTLE = "completing pushes for a ps that leaves"
HOLD = "saving for a ps that leaves"
TRAINS = RUN, SETTLE
"""The phases in which pushes are applied."""
END = "ending"
FAILED = "failed"

MOST_USES = 10_000
"""How often a join token may be used, at most."""


# -- chief to ps ------------------------------------------------------------------------------------------


class Configure(Message, kind=40, roles=CHIEF_ONLY):
    """A new run epoch on a ps: forget everything, hold this shard of the plan, restore it or wait for Init."""

    epoch: int
    plan: dict[str, Any]
    shard: int
    settings: dict[str, Any]
    """`update`: the update mode; `check_finite`: refuse NaN and infinite gradients; `shards`: number of ps."""
    addresses: list[Any]
    """[task, address] of every ps."""
    checkpoint_dir: str
    restore: str
    """Name of the checkpoint to restore from; "": wait for Init."""
    tickets: list[Any] = NOTHING
    """[ticket, task name] of every ps, as digests."""
    opener: str = ""
    """The digest of what an Init brings to prove that the chief asked for it."""


class Configured(Message, kind=41, roles=ANSWER):
    """The ps has the shard (restored, or waiting for Init), at a step. `ended` and `reached`, from a step ps: the last
    run epoch that it served, and that epoch's last step."""

    epoch: int
    step: int
    ended: int = 0
    reached: int = 0


class Init(Message, kind=42, roles=WORKERS):
    """A piece of the shard's first values, from the session that the chief chose."""

    epoch: int
    nbytes: int
    offsets: list[int]
    opener: bytes = b""
    """As the chief gave it to the session that it chose."""
    arrays: tuple[Array, ...] = ()


class Members(Message, kind=43, roles=CHIEF_ONLY):
    """The full, numbered list of members: `live` lists [incarnation, task name, task index, worker?]; `waiting` names
    the expected workers that have not joined, `absent` those that were given up before they joined; `gone` counts
    workers that joined and then finished or were lost."""

    epoch: int
    version: int
    live: list[Any]
    waiting: list[str]
    absent: list[str]
    gone: int
    notes: dict[str, Any] = NO_NOTES
    """What another chief must know to continue this run epoch. Each ps keeps the newest notes (see Serving)."""
    tickets: list[Any] = NOTHING
    """[ticket, task name, job, incarnations] of every process with live sessions, tickets as digests."""
    settles: bool = False
    """All sessions are to complete their pushes and join again: tell them with the next results (`Pushed.settles`)."""
    known: int = -1
    """The last version of which the chief has this ps's answer."""


class MembersKnown(Message, kind=55, roles=ANSWER):
    """The ps has the members. `ended`: of each session that has ended since the version that was known: [incarnation,
    number of its last push with a result, the numbers among the last ones that were not applied]. In sync the step ps's
    word counts, because the others may have decisions to carry out."""

    ended: list[Any]


class AskServing(Message, kind=51, roles=CHIEF_ONLY):
    """Asks which run epoch the ps serves. A chief sends it to a ps of a run that another chief began."""


class ConfiguredBefore(Message, kind=52, roles=ANSWER):
    """What an earlier chief told the ps: the fields of Configure, and the notes of the newest Members. `trains` is
    false before the first Members; `step` is the shard's. Epoch 0: the ps serves none."""

    epoch: int
    trains: bool
    step: int
    plan: dict[str, Any]
    settings: dict[str, Any]
    checkpoint_dir: str
    restore: str
    notes: dict[str, Any]


class CutShard(Message, kind=44, roles=CHIEF_ONLY):
    """Copy the shard for a checkpoint: in sync mode between the same two steps on every ps, else at once."""

    epoch: int
    cut: str


class ShardCut(Message, kind=49, roles=ANSWER):
    """The shard is copied, at this step and version; `applied` is, for each part of the shard in the order of its
    layout, how often its optimizer was applied; `pushes` lists [incarnation, number of its last push with a result];
    `digest`: of the pushes that the shard has applied in this run epoch, those of ended sessions included; `tables`: of
    each keyed table here, in the order of the layout, how many rows it has, how often its optimizer was applied, and
    how many keys it counts that have no row yet; `counted`: the steps that this shard counts (`Shard.counted`), of
    which all shards together have the global step."""

    step: int
    counter: int
    applied: list[int]
    pushes: list[Any] = NOTHING
    digest: int = 0
    tables: list[list[int]] = NOTHING
    counted: int = 0


class SaveShard(Message, kind=50, roles=CHIEF_ONLY):
    """Write a copied shard into a checkpoint's folder."""

    epoch: int
    cut: str
    checkpoint_dir: str
    name: str


class ShardSaved(Message, kind=45, roles=ANSWER):
    """The shard file is on disk."""

    file: str
    nbytes: int
    digest: str


class StopTask(Message, kind=46, roles=CHIEF_ONLY):
    """The run ends for this task, with this exit code and reason ("" if the run went well)."""

    code: int
    reason: str


class AskStats(Message, kind=47, roles=VISITORS):
    """Asks for the counters of the run, and of the session that asks, for people."""


class AskStatus(Message, kind=58, roles=OPERATOR_ONLY):
    """Asks for those of AskStats, and for what concerns other tasks: their addresses, and the counters of all
    sessions."""


class Stats(Message, kind=48, roles=ANSWER):
    """Answer to AskStats and AskStatus: plain values by name."""

    values: dict[str, Any]


class AskNumbers(Message, kind=137, roles=CHIEF_ONLY):
    """Asks the agent of a task which pushes its sessions have begun to send."""


class NumbersAre(Message, kind=138, roles=ANSWER):
    """Of each session of the process: [its number, its incarnation, [[ps, number of its last push to it], ...]]. A
    number is there before any message of its push leaves."""

    sessions: list[Any]


class AskRun(Message, kind=53, roles=ALL):
    """Asks the agent of a task in which run it takes part."""


class RunIs(Message, kind=54, roles=ANSWER):
    """The address of the run's chief, and the task that was asked."""

    chief: str
    job: str
    task: int


# -- to the chief -----------------------------------------------------------------------------------------


class Register(Message, kind=60, roles=NODES):
    """A node joins the cluster, or reports that it is still there: its job, task (-1: assign one), address, a number
    that differs for each process, the highest run epoch that it has seen, and the update mode of its flags."""

    job: str
    task: int
    address: str
    process: int
    epoch: int
    update: dict[str, Any]
    proof: bytes = b""
    """The ticket that the chief presents to this node, and to no other."""
    progress: list[Any] = NOTHING
    """Of a worker that trains, for people: the step of its last push, pushes per second, and its last loss or None."""


class Registered(Message, kind=61, roles=ANSWER):
    """The node's task."""

    task: int
    expected: dict[str, Any] = NO_NOTES
    """The tasks that the run is to have, for each job of which the chief knows them."""


class OpenSession(Message, kind=62, roles=SESSIONS):
    """A session joins, or joins again after a rollback. `session` is its own number; `epoch` the run epoch whose end it
    has seen (0: none); `plan` the layout that it wants ({}: the run's); `step` the step that it reached in that
    epoch."""

    session: int
    job: str
    task: int
    process: int
    address: str
    epoch: int
    plan: dict[str, Any]
    settings: dict[str, Any]
    step: int = 0
    incarnation: int = 0
    """The last one that it had; 0: none."""
    batch: int = 0
    """How many examples a push of it stands for, for people; 0: nobody has said."""
    last: int = 0
    """The last incarnation under which it has pushed, or could have; 0: none."""


class SessionOpened(Message, kind=63, roles=ANSWER):
    """The session's incarnation in this run epoch, which began at `step`. `initialise`: send Init to every ps, then
    Initialised. `reached`: the highest known step of the previous epoch; `certain`: whether that is its last step."""

    epoch: int
    incarnation: int
    step: int
    initialise: bool
    plan: dict[str, Any]
    settings: dict[str, Any]
    addresses: list[Any]
    restored: str
    reached: int = 0
    certain: bool = True
    opener: bytes = b""
    """What each Init brings."""
    kept: list[Any] = NOTHING
    """What the values have of the pushes of the session's `last` incarnation: [ps, number of the last push with a
    result, the numbers among the last ones that were not applied]. A ps that is missing has none."""


class Initialised(Message, kind=64, roles=WORKERS):
    """The chosen session has sent all first values to every ps."""

    epoch: int
    session: int


class CloseSession(Message, kind=65, roles=SESSIONS):
    """A session ends. `error` is "" if its program ended well; `step` is the step that it reached in the run epoch
    `epoch`. The other fields are for a restarted chief."""

    session: int
    error: str
    job: str
    task: int
    checkpoint_dir: str
    step: int = 0
    epoch: int = 0


class AskState(Message, kind=66, roles=SESSIONS):
    """Asks for the state of the run. Sent by sessions that wait for answers."""

    session: int


class RunState(Message, kind=67, roles=ANSWER):
    """The run epoch, whether it trains, the leading session, and a sentence about what is missing."""

    epoch: int
    running: bool
    leads: bool
    text: str


class Save(Message, kind=68, roles=WORKERS):
    """Write a checkpoint now, unless these versions of all shards are saved already."""

    session: int
    position: bytes = b""
    """The position of the input, which is kept with the checkpoint; empty: none."""


class Restore(Message, kind=72, roles=WORKERS):
    """Roll the run back to a checkpoint: a new run epoch. `name` "": the newest whole one. `epoch` is the sender's; if
    that epoch is over, the restore has been done already."""

    session: int
    epoch: int
    name: str


class Saved(Message, kind=69, roles=ANSWER):
    """The newest checkpoint after a Save."""

    name: str
    step: int


class Publish(Message, kind=134, roles=WORKERS):
    """Publish the values as they are now. Answered with PublishedIs once all ps keep them."""

    session: int
    label: str


class AskPublished(Message, kind=135, roles=SESSIONS):
    """Asks for the newest published version, once its number is above `newer_than` or it is of another run than `run`
    ("": any). Answered with PublishedIs."""

    session: int
    run: str
    newer_than: int


class PublishedIs(Message, kind=136, roles=ANSWER):
    """A published version that all ps keep: the name of its run, its number, label and step, and when it was published,
    in seconds ago."""

    run: str
    number: int
    label: str
    step: int
    age_s: float


class Drain(Message, kind=74, roles=CHIEF_ONLY):
    """The run should end: stop the worker's loop after its step. Repeated at each Register; not answered."""

    reason: str


SERVED = "has served"
"""The reason of a `Leave` of a worker that has run functions for others until it was told to stop, or only read."""


class Leave(Message, kind=73, roles=ENDS):
    """A ps was told to end: answered with Done when it may leave, or with StopTask if the run ends with it.

    Or a worker's program is over or was killed: if it has no session any more, nobody waits for it.
    Without a reason: the node stops; if its worker has finished, the chief need not tell it of the run's end.
    `reason` is text that follows the task's name, such as "ended with exit code 7"."""

    job: str
    task: int
    reason: str
    code: int = 0
    """The exit code of its process; negative: the signal that killed it."""


class AskCluster(Message, kind=70, roles=VISITORS):
    """Asks which tasks have registered; a reader hears of the ps only. Answered at once."""


class ClusterIs(Message, kind=71, roles=ANSWER):
    """The tasks by job, without jobs of which the asker may not know. `complete`: all expected ps have registered;
    otherwise `text` says which are missing."""

    cluster: dict[str, Any]
    complete: bool
    text: str
    keys: dict[str, Any] = NO_NOTES
    """Whose key the task at an address has, where that has joined by a token."""


class EndRun(Message, kind=56, roles=OPERATOR_ONLY):
    """End the run in order, or (`now`) without saving. Answered with Done at once; the end takes longer."""

    reason: str
    now: bool


# -- traces -----------------------------------------------------------------------------------------------

TRACE_BEGIN, TRACE_LOOK, TRACE_END, TRACE_READ, TRACE_DROP = "begin", "look", "end", "read", "drop"
"""What a task is told of a trace: begin it; say how far it is; end it; send a part of it; forget it."""


class AskTrace(Message, kind=150, roles=TRACERS):
    """Has the chief give a task, such as "ps:0" or "chief", an order about the trace of this number. Answered with the
    task's TraceState."""

    task: str
    trace: int
    order: str
    value: int = 0
    """Of TRACE_BEGIN the longest time of the trace in seconds, of TRACE_LOOK the global step at which the task ends it
    by itself (0: unknown), of TRACE_READ the number of the part."""


class TraceOrder(Message, kind=151, roles=CHIEF_ONLY):
    """The same to the agent of the task."""

    trace: int
    order: str
    value: int


class TraceState(Message, kind=152, roles=ANSWER):
    """A task's trace: whether it is over, how many parts it then has, and the part that was asked for."""

    trace: int
    at_s: float
    """The task's clock."""
    over: bool
    step: int
    """The step of the shard of a ps; -1: it has none."""
    parts: int
    machine: str
    """Tasks with the same text share a clock."""
    asked_s: float = 0.0
    heard_s: float = 0.0
    """The chief's clock, before it asked the task and after it had this answer."""
    arrays: tuple[Array, ...] = ()


# -- join tokens ------------------------------------------------------------------------------------------


class MakeToken(Message, kind=75, roles=OPERATOR_ONLY):
    """Accept a token, whose public key this is, for enrolling so many keys of a role within so many seconds. Answered
    with TokenMade."""

    key: bytes
    role: str
    uses: int
    ttl_s: float


class TokenMade(Message, kind=76, roles=ANSWER):
    """Where the chief is, as others are told, and its public key."""

    chief: str
    key: bytes


class Enrol(Message, kind=77, roles=TOKENS):
    """Accept this public key, which the owner of a token has made. Answered with Enrolled, or refused if the token is
    for another role than `role` ("": any)."""

    key: bytes
    role: str = ""


class Enrolled(Message, kind=78, roles=ANSWER):
    """The role that the key has from now on, and the public keys of all roles."""

    role: str
    public: dict[str, Any]


class AskJoined(Message, kind=79, roles=NODES):
    """Asks which keys have joined the run by tokens. Answered with Joined once their version differs from this one."""

    version: int


class JoinedKeys(Message, kind=57, roles=ANSWER):
    """[public key, role, the key under which it counts] of each."""

    version: int
    keys: list[Any]
