"""A JSON document that ends with a checksum over all its other bytes.

Any program can read it; any altered, missing or added byte is noticed here. Manifest and journal are such documents.
Later format versions keep this seal, so that an older dps can tell "newer" from "damaged".
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from dps.errors import CheckpointError

_END = ',\n "checksum": "{}"\n}}\n'
_END_NBYTES = len(_END.format("0" * 64))


def seal(body: dict[str, Any]) -> bytes:
    """The document's bytes. `body` is not empty and JSON-able; TypeError names a value that is not.

    Tuples become lists, and keys that are no text become text.
    """
    head = json.dumps(body, indent=1).removesuffix("\n}").encode()
    return head + _end(head)


def unseal(data: bytes | memoryview, path: str, wanted_format: int) -> dict[str, Any]:
    """The body of the document that was read from `path`.

    Raises CheckpointError where it is truncated or altered, or of a newer format than `wanted_format`.
    """
    raw = bytes(data)
    head = raw[:-_END_NBYTES]
    if raw[-_END_NBYTES:] != _end(head):
        raise CheckpointError(f"{path} is truncated or altered: its checksum does not fit its {len(raw)} bytes")
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
