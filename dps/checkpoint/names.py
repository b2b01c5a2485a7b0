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

import re

MANIFEST_FILE = "manifest.json"
POSITION_FILE = "input.json"
JOURNAL_FILE = "journal.json"
LOCK_FILE = "run.lock"

_FOLDER = re.compile(r"step-([0-9]{12,18})-epoch-([0-9]{6,18})(?:-values-([0-9]{6,18}))?")


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
