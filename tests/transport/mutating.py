"""Makes hostile messages: recorded ones of every kind, with some bytes changed, cut, doubled, moved or put in."""

from __future__ import annotations

import random
import struct
from typing import Any

import msgpack
import numpy as np

from dps.messages.sessions import Push, Pushed, SharedValues
from dps.training.optimizers import SGD
from dps.transport.message import FORMS, Form, Message
from dps.transport.wire import Envelope, bundle, encode
from dps.variables.plan import VariableSpec, make_plan

Bytes = tuple[bytes, list[bytes]]
"""A header and its frames."""

PLACE = [1 << 20, 3, 1 << 40, 4096]
USUAL: dict[frozenset[type] | None, list[Any]] = {
    frozenset([int]): [0, 1, -1, 7, 1 << 40, 2**63 - 1, 2**64 - 1],
    frozenset([str]): ["", "worker:0", "ps", "äöü", "x" * 300],
    frozenset([bool]): [True, False],
    frozenset([bytes]): [b"", b"0123456789abcdef"],
    frozenset([float, int]): [0.5, 1],
    frozenset([list]): [[], [1, 2, 3], [[0, "127.0.0.1:1"]], [PLACE, 0], [[1, 0, 0, []]]],
    frozenset([dict]): [{}, {"mode": "async"}, {"a": [1, {"b": None}]}],
    None: [None, 1, "x"],
}
PIECES = [
    b"\x90", b"\xc0", b"\xc1", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdc\xff\xff",
    b"\xdb\x7f\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\x01", b"\xc7\x00\x05",
    b"\xd6\xff\x00\x00\x00\x00",
    b"\x91" * 3000,
    b"\x81" * 2000, b"\xcb\x7f\xf8\0\0\0\0\0\0", b"\xcf" + b"\xff" * 8, b"\xd3\x80" + bytes(7), b"\xa3\xff\xfe\xfd",
    b"\0",
]  # fmt: skip
"""What msgpack reads as nothing, as very much, as very deep, or not at all."""


def _messages(rng: random.Random, form: Form) -> Message:
    fields = [rng.choice(USUAL[types]) for types in form.types]
    if form.has_arrays:
        fields.append((np.arange(4, dtype=np.float32), np.zeros((0, 3), np.int64))[: rng.randrange(3)])
    return form.cls(*fields)


def recorded(seed: int = 0) -> list[Bytes]:
    """Several messages of every kind, those that have a compact form in it, too; and bundles of them."""
    rng = random.Random(seed)
    found: list[Bytes] = []
    made = [_messages(rng, form) for _, form in sorted(FORMS.items()) for _ in range(3)]
    made += [
        Push(1, 2, 3, -1, 3, 4096, [], [PLACE, 0], 0, True, 7),
        Pushed(2, "applied", 3, 0, 3, "", [3, 3, [PLACE]]),
        SharedValues(1, 3, 3, [PLACE]),
    ]
    for message in made:
        try:
            header, arrays = encode(Envelope(message, rng.choice(["ps", "chief", ""]), 7, "worker:0", 3))
        except (OverflowError, ValueError):  # a number of 65 bits
            continue
        found.append((header, [array.tobytes() for array in arrays]))
    for _ in range(10):
        some = rng.sample(found, 3)
        header = bundle([(each, len(frames)) for each, frames in some])
        found.append((header, [frame for _, frames in some for frame in frames]))
    return found


def recorded_plan() -> bytes:
    """A plan as it travels, packed."""
    specs = [VariableSpec(f"v{number}", (number + 1, 3), "<f4", SGD(0.1).to_wire()) for number in range(5)]
    plan = make_plan(specs, (0, 1), lambda name, *_: int(name[1:]) % 2, None)
    return bytes(msgpack.packb(plan.to_wire()))


def mutated(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """The same with one to four changes. `others`: what parts may be taken from."""
    made = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(made) + 1)
        end = min(len(made), at + rng.randint(0, 16))
        change = rng.randrange(7)
        if change == 0 and made:
            made[at % len(made)] = rng.randrange(256)
        elif change == 1:
            made[at:end] = rng.choice(PIECES)
        elif change == 2:
            made[at:at] = rng.choice(PIECES)
        elif change == 3:
            del made[at:end]
        elif change == 4:
            del made[at:]
        elif change == 5:
            made[at:at] = made[at:end] * rng.randint(1, 40)
        else:
            other = rng.choice(others)
            first = rng.randrange(len(other) + 1)
            made[at:end] = other[first : first + rng.randint(0, 64)]
    return bytes(made)


def datagrams(rng: random.Random, found: list[Bytes]) -> bytes:
    """A message as a datagram."""
    header, frames = rng.choice(found)
    parts = [header, *frames]
    return rng.randbytes(8) + struct.pack(f"<H{len(parts)}I", len(parts), *map(len, parts)) + b"".join(parts)
