"""JSON documents that end with a checksum over all their other bytes.

Any program can read them. This module detects any altered, missing or added byte. Manifest and journal are such
documents. Later format versions keep this checksum, so that an older dps can tell "newer" from "damaged".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from dps.errors import CheckpointError

_END = ',\n "checksum": "{}"\n}}\n'
_BETWEEN, _LAST = ",\n  ", b"\n ]"
_END_NBYTES = len(_END.format("0" * 64))


def seal(body: dict[str, Any], last: str = "", elements: Iterable[str] = ()) -> bytes:
    """The document's bytes. `body` is not empty and JSON-able; TypeError names a value that is not.

    Tuples become lists, and keys become text. `last`: the name of a list after the body, whose elements are already
    JSON and get a line each.
    """
    text = json.dumps(body, indent=1).removesuffix("\n}")
    if last:
        lines = _BETWEEN.join(elements)
        text += f",\n {json.dumps(last)}: [\n  {lines}{_LAST.decode()}" if lines else f",\n {json.dumps(last)}: []"
    head = text.encode()
    return head + _end(head)


def unseal(data: bytes | memoryview, path: str, wanted_format: int) -> dict[str, Any]:
    """The body of the document that was read from `path`.

    Raises CheckpointError if it is truncated or altered, or of a newer format than `wanted_format`.
    """
    return _parsed(_head(data, path), path, wanted_format)


def unseal_lines(
    data: bytes | memoryview, path: str, wanted_format: int, last: str
) -> tuple[dict[str, Any], list[str]]:
    """Like `unseal`, but returns the elements of the list `last` separately, as the JSON texts that `seal` was given.

    Also reads documents of older versions, in which an element takes several lines or the list is missing.
    """
    head = _head(data, path)
    begin = f",\n {json.dumps(last)}: [\n  ".encode()
    at = head.find(begin)
    if at >= 0 and head[at + len(begin) :].startswith(b'{"') and head.endswith(_LAST):
        body = _parsed(head[:at], path, wanted_format)
        return body, str(head[at + len(begin) : -len(_LAST)], "utf-8", "replace").split(_BETWEEN)
    body = _parsed(head, path, wanted_format)
    elements = body.get(last)
    if not isinstance(elements, list):
        raise CheckpointError(f"{path} has no list of {last}; use an older checkpoint")
    return body, [json.dumps(element) for element in elements]


def _head(data: bytes | memoryview, path: str) -> bytes:
    """The document without its final checksum, which was checked."""
    raw = bytes(data)
    head = raw[:-_END_NBYTES]
    if raw[-_END_NBYTES:] != _end(head):
        raise CheckpointError(f"{path} is truncated or altered: its checksum does not fit its {len(raw)} bytes")
    return head


def _parsed(head: bytes, path: str, wanted_format: int) -> dict[str, Any]:
    try:
        body = json.loads(head + b"}")
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error
    got = body.get("format_version")
    if type(got) is not int or got < 1:
        raise CheckpointError(f"{path} has format version {got!r}; wanted 1 to {wanted_format}")
    if got > wanted_format:
        raise CheckpointError(
            f"{path} has format version {got}, of a newer dps; this one reads up to {wanted_format}: upgrade dps"
        )
    return dict(body)


def _end(head: bytes) -> bytes:
    return _END.format(hashlib.sha256(head).hexdigest()).encode()
