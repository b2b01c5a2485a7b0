"""The checkpoints in a checkpoint_dir: commits one, finds the newest whole one, deletes old ones.

The newest is the one with the highest epoch, then the highest step. The epoch comes first because a rollback starts a
new epoch at an earlier step: later checkpoints of the abandoned epoch have higher steps, but are no longer valid.

All functions block on the storage. Only the chief commits and deletes.
"""

from __future__ import annotations

from collections.abc import Callable

from dps.checkpoint.files import JOURNAL_FILE, MANIFEST_FILE, POSITION_FILE, join, parse_folder_name
from dps.checkpoint.manifest import Manifest, decode, decode_shards, encode
from dps.checkpoint.shard import check_shard
from dps.checkpoint.storage import TEMPORARY, Storage
from dps.errors import CheckpointError

ONE_FOLDER = (
    "checkpoint_dir has to be one folder that the chief and every ps see, such as one of a network file system; "
    "folders that each host has of its own under the same path are not one"
)

NAMED = 10
"""How many checkpoints an error names, the newest first."""


def keep_position(storage: Storage, checkpoint_dir: str, name: str, position: bytes) -> None:
    """Keep the position of the input, if there is one, in a checkpoint's folder."""
    if position:
        storage.write(join(join(checkpoint_dir, name), POSITION_FILE), [position])


def commit(storage: Storage, checkpoint_dir: str, manifest: Manifest, position: bytes = b"") -> str:
    """Commit a checkpoint whose shards are written: write its manifest, atomically, after the position of its input.
    Returns the checkpoint's name.

    It first checks each shard's size, which detects a checkpoint_dir that the ps tasks do not share with the chief.
    Committing the same manifest twice is harmless; another one under the same step and epoch is refused.
    """
    folder = join(checkpoint_dir, manifest.name)
    path, data = join(folder, MANIFEST_FILE), encode(manifest)
    if storage.exists(path):
        if decode(storage.read(path), path) == decode(data, path):
            return manifest.name
        raise CheckpointError(f"{path} is there already, with other content; save at a later step or in a new epoch")
    for index, shard in enumerate(manifest.shards):
        try:
            check_shard(storage, folder, shard.file, digest=False)
        except CheckpointError as error:
            raise CheckpointError(
                f"checkpoint {manifest.name} is not committed, shard {index} of {len(manifest.shards)} is not here, at "
                f"the chief, as its ps wrote it: {error}; {ONE_FOLDER}"
            ) from error
    keep_position(storage, checkpoint_dir, manifest.name, position)
    storage.write(path, [data])
    return manifest.name


def candidates(storage: Storage, checkpoint_dir: str) -> list[str]:
    """The names of the checkpoint folders, newest first, by name alone: finished or not. Other files are ignored."""
    found = [(key, name) for name in storage.names(checkpoint_dir) if (key := parse_folder_name(name)) is not None]
    return [name for _, name in sorted(found, reverse=True)]


def last_epoch(storage: Storage, checkpoint_dir: str) -> int:
    """The highest run epoch of the checkpoint folders, by name alone: finished or not; 0 without any."""
    names = candidates(storage, checkpoint_dir)
    return max((found[0] for name in names if (found := parse_folder_name(name)) is not None), default=0)


def load(storage: Storage, checkpoint_dir: str, name: str, verify: bool = True) -> Manifest:
    """The manifest of checkpoint `name`. Raises CheckpointError, with the reason, if the checkpoint is not whole.

    Reasons: there is none of this name; it is not finished; the manifest is truncated, altered or of a newer format
    version; a shard is missing or has another size or (with `verify`, which reads all files) another digest.
    """
    folder = join(checkpoint_dir, name)
    path = join(folder, MANIFEST_FILE)
    if not storage.exists(path):
        if not storage.exists(folder):
            raise CheckpointError(
                f"there is no checkpoint {name!r:.100} in {checkpoint_dir}; {_there(storage, checkpoint_dir)}"
            )
        raise CheckpointError(f"{folder} has no {MANIFEST_FILE}: it was never finished; use an older checkpoint")
    manifest = decode(storage.read(path), path)
    if manifest.name != name:
        raise CheckpointError(f"{path} is the manifest of {manifest.name}; give its folder that name again")
    for shard in manifest.shards:
        check_shard(storage, folder, shard.file, digest=verify)
    return manifest


def _there(storage: Storage, checkpoint_dir: str) -> str:
    """Which finished checkpoints there are, the newest first."""
    names = candidates(storage, checkpoint_dir)
    there = [name for name in names if storage.exists(join(join(checkpoint_dir, name), MANIFEST_FILE))]
    if not there:
        return "it has none"
    more = ", ..." if len(there) > NAMED else ""
    return f"there are {', '.join(there[:NAMED])}{more}: give one of these; keep_checkpoints deletes older ones"


def load_told(storage: Storage, checkpoint_dir: str, name: str, who: str) -> Manifest:
    """As `load`, at a ps (`who`) that is told to restore what the chief has found whole. Nothing is verified again."""
    try:
        return load(storage, checkpoint_dir, name, verify=False)
    except CheckpointError as error:
        raise CheckpointError(
            f"the chief has {name} in {checkpoint_dir}, {who} has not: {error}; {ONE_FOLDER}"
        ) from error


def newest_whole(storage: Storage, checkpoint_dir: str, log: Callable[[str], None]) -> Manifest | None:
    """The newest whole checkpoint, or None. `log` gets one line for each newer one that is not whole."""
    return _find_whole(storage, checkpoint_dir, log)[0]


def newest_to_begin(storage: Storage, checkpoint_dir: str, log: Callable[[str], None]) -> Manifest | None:
    """As `newest_whole`, for a run that begins. Raises CheckpointError if there are finished checkpoints and none of
    them is whole: such a run would begin anew, without what was trained."""
    newest, skipped = _find_whole(storage, checkpoint_dir, log)
    for name, error in skipped.items() if newest is None else ():
        if storage.exists(join(join(checkpoint_dir, name), MANIFEST_FILE)):
            raise CheckpointError(
                f"no checkpoint in {checkpoint_dir} is whole, and the run does not begin anew beside them; of the "
                f"newest: {error}; put the files back, or choose another checkpoint_dir to begin anew"
            ) from error
    return newest


def _find_whole(
    storage: Storage, checkpoint_dir: str, log: Callable[[str], None]
) -> tuple[Manifest | None, dict[str, CheckpointError]]:
    """The newest whole checkpoint, or None, and why each newer one is not whole, by name, the newest first."""
    skipped: dict[str, CheckpointError] = {}
    for name in candidates(storage, checkpoint_dir):
        try:
            return load(storage, checkpoint_dir, name), skipped
        except CheckpointError as error:
            log(f"checkpoint {name} is skipped: {' '.join(str(error).split())}")
            skipped[name] = error
    return None, skipped


def retain(storage: Storage, checkpoint_dir: str, keep: int) -> list[str]:
    """Delete old checkpoints; returns the deleted names.

    It keeps the `keep` newest whole checkpoints (at least one). It deletes folders without a manifest that are older
    than the newest whole checkpoint, because nobody will finish them. A finished but damaged checkpoint does not count,
    and is kept for a person to inspect. Whole means here that the manifest's checksum and all sizes match; digests and
    variables are not checked. Temporary files of a killed chief's journal are deleted, too.
    """
    if keep < 1:
        raise ValueError(f"keep is {keep}; wanted 1 or more checkpoints to keep")
    doomed, whole = [], 0
    for name in candidates(storage, checkpoint_dir):
        if not storage.exists(join(join(checkpoint_dir, name), MANIFEST_FILE)):
            unwanted = whole > 0
        elif unwanted := _is_whole(storage, checkpoint_dir, name):
            whole += 1
            unwanted = whole > keep
        if unwanted:
            doomed.append(name)
    for name in reversed(doomed):
        folder = join(checkpoint_dir, name)
        # The manifest first: a kill in between then leaves an unfinished checkpoint, not a damaged one.
        storage.remove_tree(join(folder, MANIFEST_FILE))
        storage.remove_tree(folder)
    for name in storage.names(checkpoint_dir):
        if name.startswith(f".{JOURNAL_FILE}.") and name.endswith(TEMPORARY):
            storage.remove_tree(join(checkpoint_dir, name))
    return doomed


def _is_whole(storage: Storage, checkpoint_dir: str, name: str) -> bool:
    folder = join(checkpoint_dir, name)
    path = join(folder, MANIFEST_FILE)
    try:
        own, shards = decode_shards(storage.read(path), path)
        for shard in shards:
            check_shard(storage, folder, shard.file, digest=False)
    except CheckpointError:
        return False
    return own == name
