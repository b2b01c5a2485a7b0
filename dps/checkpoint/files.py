"""Names of the files, folders and tensors of a checkpoint.

    checkpoint_dir/
      run.lock                                exists while a run uses the folder
      journal.json
      step-000000000120-epoch-000003/
        shard-00000-of-00002.safetensors
        shard-00001-of-00002.safetensors
        input.json                            the position of the input, where InputSaver saves
      manifest.json                         written last: it commits the checkpoint

In a shard file the values of a variable are stored under its name, those of a part under `NAME/part_i`,
and their optimizer slots under `NAME@slot` and `NAME/part_i@slot`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from typing import Any

from dps.errors import CheckpointError

MANIFEST_FILE = "manifest.json"
POSITION_FILE = "input.json"
JOURNAL_FILE = "journal.json"
LOCK_FILE = "run.lock"

_FOLDER = re.compile(r"step-([0-9]{12,18})-epoch-([0-9]{6,18})(?:-values-([0-9]{6,18}))?")


def is_path(path: object) -> bool:
    """Whether the operating system can have a path: text, or a PathLike of text, that is not empty and has no NUL."""
    found = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
    return isinstance(found, str) and found != "" and "\0" not in found


def join(folder: str, name: str) -> str:
    """The path of `name` in `folder`; works for local paths, URLs and the simulator's disk."""
    return folder + name if folder.endswith("/") else f"{folder}/{name}"


def folder_name(step: int, epoch: int, revision: int = 0) -> str:
    """The folder of the checkpoint of `step` in run epoch `epoch`. `revision`: how many checkpoints of this step were
    committed before it. A later one has values that changed without a step, as `session.assign` changes them."""
    return f"step-{step:012d}-epoch-{epoch:06d}" + (f"-values-{revision:06d}" if revision else "")


def parse_folder_name(name: str) -> tuple[int, int] | None:
    """`(epoch, step)`, which orders checkpoints by age, or None for a name that is not a checkpoint's.

    After a rollback the epoch rises while the step falls, so the epoch comes first. Of one step the names are in the
    order of their revisions.
    """
    match = _FOLDER.fullmatch(name)
    if match is None:
        return None
    step, epoch, revision = int(match[1]), int(match[2]), int(match[3] or 0)
    return (epoch, step) if folder_name(step, epoch, revision) == name else None


def shard_file_name(index: int, count: int) -> str:
    """The file of shard `index` of `count`."""
    return f"shard-{index:05d}-of-{count:05d}.safetensors"


def tensor_name(variable: str, part: int, parts: int, slot: str | None = None) -> str:
    """The name in a shard file of part number `part` of a variable that has `parts` of them, or of its slot."""
    values = variable if parts == 1 else f"{variable}/part_{part}"
    return values if slot is None else f"{values}@{slot}"


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
    return head + _checksum_line(head)


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
    if raw[-_END_NBYTES:] != _checksum_line(head):
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


def _checksum_line(head: bytes) -> bytes:
    return _END.format(hashlib.sha256(head).hexdigest()).encode()
