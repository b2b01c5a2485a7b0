"""Base class of messages: plain fields, and a number for each class that identifies it on the wire.

A class declares its fields as a record does. Nobody changes a message after it is made, but no check enforces this,
because thousands are made every second.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeVar, dataclass_transform

from dps.process.record import construct, getter, own_fields

ROLES = ("chief", "ps", "worker", "reader", "evaluator", "dataset", "operator")
"""Each has keys of its own. A reader only reads; an operator asks how a run does, and ends it."""

Roles = frozenset[str]

CHIEF_ONLY: Roles = frozenset({"chief"})
PS_ONLY: Roles = frozenset({"ps"})
WORKERS: Roles = frozenset({"worker"})
"""Roles that change values."""
SESSIONS: Roles = frozenset({"worker", "reader", "evaluator"})
"""Roles that read values."""
TASKS: Roles = frozenset({"chief", "ps", "worker", "evaluator", "dataset"})
"""Roles that run a program of the user, or serve one: they share queues and datasets."""
NODES: Roles = TASKS | {"reader"}
"""Roles that listen, and so report to the chief."""
OPERATOR_ONLY: Roles = frozenset({"operator"})
VISITORS: Roles = SESSIONS | OPERATOR_ONLY
"""Roles that look for the tasks of a run from outside of it, and ask how it does."""
TRACERS: Roles = WORKERS | OPERATOR_ONLY
"""Roles that have all tasks of a run traced."""
ENDS: Roles = frozenset({"ps", "worker", "operator"})
"""Roles that report the end of a task."""
ALL: Roles = frozenset(ROLES)
ANY_TASK = "any task"
"""Stands for the role of a listener that may be any task of a run but its chief."""
TOKEN = "token"
"""The role of the key in a join token. It enrols another key, and does nothing else."""
TOKENS: Roles = frozenset({TOKEN})
ANSWER: Roles = frozenset()
"""A message that only answers another one."""


def roles_of(job: str) -> tuple[str, ...]:
    """The roles whose key a task of a job may have, the preferred one first. A client, or a job that dps has no role
    for, has that of a worker or of a reader."""
    return (job,) if job in ROLES else ("worker", "reader")


_TYPES: dict[str, frozenset[type] | None] = {
    **{plain.__name__: frozenset([plain]) for plain in (int, str, bool, bytes, list, dict)},
    "float": frozenset([float, int]),
    "Any": None,
}
_M = TypeVar("_M", bound="Message")


VERSION = 1
"""Of the protocol."""
PLAIN = 0xC0
"""First byte of a plain header. In msgpack it means nil, so no list begins with it."""
BEGIN_NBYTES = 3
"""A plain header begins with PLAIN, VERSION and the number of its form."""


class Form(NamedTuple):
    """The fields of one class of messages, prepared for encoding."""

    cls: type[Message]
    number: int
    names: tuple[str, ...]
    """The fields without `arrays`, in their order."""
    types: tuple[frozenset[type] | None, ...]
    """The classes that a field's value may have; None: any."""
    has_arrays: bool
    values: Callable[[Any], Any]
    """The fields of a message, without `arrays`."""
    usual: tuple[type | None, ...]
    """The usual classes of the fields, to be checked by one comparison."""
    plain: struct.Struct | None
    """The wire format of the request number and the integers. None for classes whose messages are never that."""
    numbers: Callable[[Any], tuple[int, ...] | None]
    """A message as integers: its fields, or its `compact` form; None if it has none."""
    made: Callable[..., Message]
    """The message of such integers."""
    begin: bytes
    """The first bytes of a plain header."""
    pack: Callable[..., bytes]
    """`plain.pack`."""


def _no_plain(*numbers: Any) -> bytes:
    raise TypeError("messages of this class have no plain header")


FORMS: dict[int, Form] = {}
"""All message classes, by number."""
PLAIN_FORMS: dict[bytes, Form] = {}
"""The forms that have plain headers, by `begin`."""


@dataclass_transform(frozen_default=True)
class Message:
    """Root of all messages: `class Pull(Message, kind=10, roles=SESSIONS)`, then fields with their types, and defaults
    for the last. `roles`: which peers may send it, if they have keys.

    Types are int, str, bool, bytes, float, list, dict and Any; `arrays`, the last, is a tuple of arrays. A message and
    its contents do not change once it is made. Raises TypeError for a number that another class has.

    A class whose usual messages are a few integers has two methods for a compact form of them: `compact(self)` returns
    the integers, or None for a message that takes more; the class method `expanded(cls, *integers)` returns the
    message. The receiver gets the same message from both forms.
    """

    form_of: ClassVar[Form]
    roles: ClassVar[Roles]
    proven: ClassVar[bool] = False
    """Whether only the chief or a ps may send it, so that its sender must have proven to be one by a ticket."""
    _fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, *, kind: int, roles: Roles) -> None:
        if kind in FORMS:
            raise TypeError(f"message kind {kind} is taken by {FORMS[kind].cls.__name__}")
        cls.roles, cls.proven = roles, bool(roles) and roles <= CHIEF_ONLY | PS_ONLY
        fields = cls._fields = own_fields(cls)
        names = tuple(name for name in fields if name != "arrays")
        types = tuple(_TYPES[cls.__annotations__[name].partition("[")[0]] for name in names)
        usual = tuple(None if t is None else next(iter(t)) if len(t) == 1 else float for t in types)
        given = {name: cls.__dict__[name] for name in fields if name in cls.__dict__}
        construct(cls, fields, given, frozen=False)
        values = getter(names)
        numbers, made, count = values, cls, len(names) if names == fields and set(usual) <= {int} else -1
        if hasattr(cls, "compact"):
            numbers, made = cls.compact, cls.expanded  # type: ignore[attr-defined]
            count = made.__func__.__code__.co_argcount - 1
        plain = None if count < 0 else struct.Struct(f"<{1 + count}q")
        begin = bytes([PLAIN, VERSION, kind])
        cls.form_of = FORMS[kind] = Form(
            cls, kind, names, types, "arrays" in fields, values, usual, plain, numbers, made, begin,
            _no_plain if plain is None else plain.pack,
        )  # fmt: skip
        if plain is not None:
            PLAIN_FORMS[begin] = cls.form_of

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self._fields)})"

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self._fields)

    def __hash__(self) -> int:
        """The hash of the fields. Raises TypeError if a field, such as a list, has none."""
        return hash((self.__class__, *[getattr(self, name) for name in self._fields]))


def changed(message: _M, **fields: Any) -> _M:
    """A copy of a message with some fields replaced."""
    values = message.__dict__ | fields
    if len(values) > len(message.__dict__):
        raise TypeError(f"{type(message).__name__} has no fields {sorted(fields.keys() - set(message._fields))}")
    made = object.__new__(type(message))
    made.__dict__ = values
    return made
