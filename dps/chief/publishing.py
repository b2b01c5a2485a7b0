"""Publishes versions: every ps copies its values at the same cut, and keeps the copy under a number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dps.actors.answers import Waiting
from dps.actors.node import Node
from dps.actors.ref import Ref, Sender
from dps.chief.members import RunMembers
from dps.errors import Aborted, CheckpointError, DeadlineExceeded, ProtocolError
from dps.messages.runs import AGENT, AskNumbers, NumbersAre, PublishedIs
from dps.messages.sessions import (
    CUT,
    CommitVersion,
    CutVersion,
    HoldPushes,
    PushesHeld,
    ResumePushes,
    SettleVersion,
    VersionCut,
)
from dps.process.record import record
from dps.process.telemetry import log
from dps.transport.message import Message

PUBLISH_S = 60.0
"""How long a ps may take for each order."""
NUMBERS_S = 5.0
"""How long a session's node may take to tell which pushes it has begun to send."""
LABEL_LENGTH = 200
"""The longest label."""

Result = Callable[[Message | Exception], None]
"""A callback that gets PublishedIs, or the error."""


@record
class NewestVersion:
    """The newest version that all ps keep."""

    number: int
    label: str
    step: int
    at: float
    """When it was published, on the node's clock."""


@record
class _Epoch:
    """What a publication needs of a run epoch."""

    number: int
    ps: Mapping[int, Ref]
    step_ps: int
    holds: bool
    """Whether a cut is a point between two pushes of each session, for which pushes are held back."""


class _Publication(NamedTuple):
    """One cut, for all who have asked before it began."""

    epoch: _Epoch
    label: str
    asked: dict[Any, Result]
    """What to call with the outcome, by who has asked."""


class Publishing:
    """Publishes one version at a time; requests that arrive meanwhile wait until it is over. Knows the newest one, and
    the followers that wait for a newer."""

    def __init__(self, node: Node, members: RunMembers, write_journal: Callable[[], str]) -> None:
        """`write_journal` writes the journal, if the run has one; returns why that failed, or ""."""
        self._node, self._members, self._write_journal = node, members, write_journal
        self.newest: NewestVersion | None = None
        self._now: _Publication | None = None
        """The publication that is being made."""
        self._next: _Publication | None = None
        """The one after it, of all requests that have come since that one began."""
        self._cuts, self._cut = 0, ""
        """How many cuts were ordered, and the name of the last one."""
        self._followers: dict[int, tuple[Sender, str, int]] = {}
        """By their sessions: who waits for a newer version, of which run, and than which number."""

    # -- publishing ---------------------------------------------------------------------------------------------

    def publish(
        self, epoch: int, ps: Mapping[int, Ref], step_ps: int, holds: bool, label: str, asker: Any, then: Result
    ) -> None:  # fmt: skip
        """Publish the values of the run epoch as they are now, unless they are the newest version already. `holds`: a
        push may be applied on one ps and not on another, so pushes are held back. `asker`: who asks, and under which
        number: a request that is sent again is the same."""
        if self._now is not None and asker in self._now.asked:
            self._now.asked[asker] = then
            return
        if self._next is None:
            self._next = _Publication(_Epoch(epoch, ps, step_ps, holds), label, {})
        self._next.asked[asker] = then
        self._begin_next()

    def end_epoch(self) -> None:
        """The run epoch is over, and with it the versions that its ps keep."""
        self.newest = None
        ended, self._now, self._next = (self._now, self._next), None, None
        for publication in ended:
            for then in publication.asked.values() if publication is not None else ():
                then(Aborted("the publication was cut short by a new run epoch"))

    def _begin_next(self) -> None:
        if self._now is not None or self._next is None:
            return
        self._now, self._next = self._next, None
        epoch = self._now.epoch
        self._cuts += 1
        self._cut = cut = f"{CUT}{self._node.incarnation:x} {self._cuts}"  # an earlier chief may have counted, too
        if epoch.holds:
            self._order(dict.fromkeys(epoch.ps, HoldPushes(epoch.number, cut)), lambda held: self._held(cut, held))
        else:
            order = CutVersion(epoch.number, cut)
            self._order(dict.fromkeys(epoch.ps, order), lambda cuts: self._copied(cut, cuts))

    def _held(self, cut: str, held: Mapping[int, Message]) -> None:
        """All ps hold their pushes back: ask the nodes of the sessions for the last push that each has begun to send.
        It covers all that a ps has. A session of which no ps has applied any is not asked: readers are not, and the
        first push of a worker comes after the cut."""
        pushed = {i for answer in held.values() for i, number in _done(answer).items() if number}
        live = {i: session for i, session in self._members.live.items() if i in pushed}
        now, told = self._now, dict[int, _Sent]()
        addresses = list(dict.fromkeys(session.address for session in live.values()))
        silent = set(addresses)

        def answered(address: str, answer: Message | Exception) -> None:
            if self._now is not now:
                return
            silent.discard(address)
            there = {i: session for i, session in live.items() if session.address == address}
            try:
                told.update(_told_by(answer, {session.session for session in there.values()}))
            except Exception as error:
                if names := sorted({session.name for i, session in there.items() if i in self._members.live}):
                    text = f"{', '.join(names)} did not tell which pushes are on their way: {error}"
                    self._finish(DeadlineExceeded(text))
                    return
            if not silent:
                self._order_cut_at(cut, held, told)

        for address in addresses:
            self._node.ask(Ref(address, AGENT), AskNumbers(), NUMBERS_S, lambda a, at=address: answered(at, a))  # type: ignore[misc]
        if not addresses:
            self._order_cut_at(cut, held, told)

    def _order_cut_at(self, cut: str, held: Mapping[int, Message], told: Mapping[int, _Sent]) -> None:
        """Have each ps copy its values after the pushes that the sessions have told. Of a session that is gone, and of
        one that has begun no push under its newest incarnation, those count that are applied."""
        assert self._now is not None
        epoch = self._now.epoch
        orders: dict[int, Message] = {}
        for ps, answer in held.items():
            numbers = dict.fromkeys(self._members.live, 0)
            numbers |= _done(answer)
            for incarnation, session in self._members.live.items():
                own, sent = told.get(session.session, (-1, {}))
                if own == incarnation:
                    numbers[incarnation] = sent.get(ps, numbers[incarnation])
            orders[ps] = CutVersion(epoch.number, cut, True, [list(entry) for entry in sorted(numbers.items())])
        self._order(orders, lambda cuts: self._copied(cut, cuts))

    def _copied(self, cut: str, cuts: Mapping[int, Message]) -> None:
        """All ps have copies of the same cut."""
        assert self._now is not None
        epoch, label = self._now.epoch, self._now.label
        found = {ps: answer for ps, answer in cuts.items() if isinstance(answer, VersionCut)}
        if len(found) < len(epoch.ps):
            self._finish(ProtocolError("a ps has made no copy for a published version"))
            return
        numbers, step = {answer.number for answer in found.values()}, sum(answer.counted for answer in found.values())
        if self.newest is not None and numbers == {self.newest.number}:
            self._finish(self._told(self.newest))
            return
        number = self._members.published = self._members.published + 1
        if problem := self._write_journal():
            self._finish(CheckpointError(f"nothing is published while the journal cannot be written: {problem}"))
            return
        commit = CommitVersion(epoch.number, cut, number, label, step)
        self._order(dict.fromkeys(epoch.ps, commit), lambda _: self._committed(number, label, step))

    def _committed(self, number: int, label: str, step: int) -> None:
        """All ps keep the version."""
        assert self._now is not None
        epoch = self._now.epoch
        self.newest = NewestVersion(number, label, step, self._node.now())
        self._node.runtime.record("published", number=number, epoch=epoch.number, step=step, label=label)
        log.info("%s: published version %d (%r) of step %d", self._node.name, number, label, step)
        for session in list(self._followers):
            self._answer_follower(session)
        for ref in epoch.ps.values():  # one that does not hear of it drops the older ones with the next
            self._node.ask(ref, SettleVersion(epoch.number, number), PUBLISH_S, lambda _: None)
        self._finish(self._told(self.newest))

    def _order(self, messages: Mapping[int, Message], then: Callable[[dict[int, Message]], None]) -> None:
        """Send each ps its order; `then` gets the answers of all. An error ends the publication."""
        now, answers = self._now, dict[int, Message]()
        assert now is not None

        def answered(ps: int, answer: Message | Exception) -> None:
            if self._now is not now:
                return
            if isinstance(answer, Exception):
                self._finish(answer)
                return
            answers[ps] = answer
            if len(answers) < len(messages):
                return
            try:
                then(answers)
            except ProtocolError as error:
                self._finish(error)

        for ps, message in messages.items():
            self._node.ask(now.epoch.ps[ps], message, PUBLISH_S, lambda answer, ps=ps: answered(ps, answer))  # type: ignore[misc]

    def _finish(self, result: Message | Exception) -> None:
        assert self._now is not None
        ended, self._now = self._now, None
        epoch = ended.epoch
        if isinstance(result, Exception):
            for ref in epoch.ps.values() if epoch.holds else ():
                order = ResumePushes(epoch.number, self._cut)
                self._node.ask(ref, order, PUBLISH_S, lambda _: None)
            log.warning("%s: nothing was published: %s", self._node.name, result)
        for then in ended.asked.values():
            then(result)
        self._begin_next()

    def _told(self, newest: NewestVersion) -> PublishedIs:
        about = newest.number, newest.label, newest.step
        return PublishedIs(self._members.run, *about, self._node.now() - newest.at)

    # -- followers ----------------------------------------------------------------------------------------------

    def tell_newer(self, session: int, sender: Sender, run: str, newer_than: int) -> None:
        """Tell a session of the newest version once that is of another run or has a higher number."""
        self._followers[session] = sender, run, newer_than
        if not self._answer_follower(session):
            self._node.answer(sender, Waiting(f"no version above number {newer_than} is published"))

    def _answer_follower(self, session: int) -> bool:
        sender, run, newer_than = self._followers[session]
        newest = self.newest
        is_news = newest is not None and (newest.number > newer_than or run not in ("", self._members.run))
        if newest is not None and is_news:
            del self._followers[session]
            self._node.answer(sender, self._told(newest))
        return is_news

    def drop_follower(self, session: int) -> None:
        """A session has ended."""
        self._followers.pop(session, None)

    # -- where another chief was --------------------------------------------------------------------------------

    def take_over(self, kept: Iterable[Sequence[Any]]) -> None:
        """All ps of an earlier chief's run keep these versions: [number, label, step]."""
        newest = max(kept, key=lambda version: int(version[0]), default=None)
        if newest is not None:
            self.newest = NewestVersion(int(newest[0]), str(newest[1]), int(newest[2]), self._node.now())


_Sent = tuple[int, dict[int, int]]
"""An incarnation, and the number of its last push to each ps."""


def _told_by(answer: Message | Exception, sessions: set[int]) -> dict[int, _Sent]:
    """What a node says of these sessions, which are its own. Raises the error that came, or ProtocolError."""
    if isinstance(answer, Exception):
        raise answer
    found: dict[int, _Sent] = {}
    for entry in answer.sessions if isinstance(answer, NumbersAre) else ():
        if not isinstance(entry, list) or len(entry) != 3 or type(entry[0]) is not int or type(entry[1]) is not int:
            raise ProtocolError(f"{entry!r:.80} is no session with the numbers of its pushes")
        if entry[0] in sessions:
            found[entry[0]] = entry[1], _pairs(entry[2])
    return found


def _done(answer: Message) -> dict[int, int]:
    """By incarnation the last push that a ps has applied. Raises ProtocolError."""
    return _pairs(answer.done) if isinstance(answer, PushesHeld) else {}


def _pairs(entries: Any) -> dict[int, int]:
    """Pairs of numbers, as a message has them. Raises ProtocolError for anything else."""
    for entry in entries if isinstance(entries, list) else [entries]:
        if not isinstance(entry, list) or len(entry) != 2 or not all(type(number) is int for number in entry):
            raise ProtocolError(f"{entry!r:.80} is no pair of numbers")
    return dict(entries)


def check_label(label: str) -> None:
    """Raise ValueError for a label that is too long."""
    if len(label) > LABEL_LENGTH:
        raise ValueError(f"publish: got a label of {len(label)} characters, wanted at most {LABEL_LENGTH}")
