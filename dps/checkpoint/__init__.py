"""Checkpoints: shard files, manifest, atomic commit, retention, resharding on restore, and the chief's journal.

Each ps writes its shard with `write_shard`. When all have done so, the chief calls `commit` and `retain`. At its start
a run gets a Manifest from `newest_whole`, and each ps reads its rows with a `RowReader`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dps.process.lazy_imports import at_first_use

if TYPE_CHECKING:
    from dps.checkpoint.files import folder_name, parse_folder_name, shard_file_name, tensor_name
    from dps.checkpoint.folder import (
        candidates,
        commit,
        keep_position,
        last_epoch,
        load,
        load_told,
        newest_to_begin,
        newest_whole,
        retain,
    )
    from dps.checkpoint.journal import Journal, JournalState
    from dps.checkpoint.manifest import Manifest, SavedPart, SavedShard, SavedVariable
    from dps.checkpoint.memory import MemoryStorage
    from dps.checkpoint.restore import RowReader, applied_to, part_t, read_part
    from dps.checkpoint.shard import (
        ShardFile,
        ShardHeader,
        TensorRun,
        check_shard,
        read_header,
        read_tensor_rows,
        write_runs,
        write_shard,
    )
    from dps.checkpoint.storage import LocalStorage, Storage

__all__ = [
    "Journal",
    "JournalState",
    "LocalStorage",
    "Manifest",
    "MemoryStorage",
    "RowReader",
    "SavedPart",
    "SavedShard",
    "SavedVariable",
    "ShardFile",
    "ShardHeader",
    "Storage",
    "TensorRun",
    "applied_to",
    "candidates",
    "check_shard",
    "commit",
    "folder_name",
    "keep_position",
    "last_epoch",
    "load",
    "load_told",
    "newest_to_begin",
    "newest_whole",
    "parse_folder_name",
    "part_t",
    "read_header",
    "read_part",
    "read_tensor_rows",
    "retain",
    "shard_file_name",
    "tensor_name",
    "write_runs",
    "write_shard",
]

if not TYPE_CHECKING:
    __getattr__ = at_first_use(
        __name__,
        {
            "candidates": "folder", "commit": "folder", "keep_position": "folder",
            "last_epoch": "folder",
            "load": "folder", "load_told": "folder", "newest_to_begin": "folder", "newest_whole": "folder",
            "retain": "folder",
            "Journal": "journal", "JournalState": "journal",
            "Manifest": "manifest", "SavedPart": "manifest", "SavedShard": "manifest", "SavedVariable": "manifest",
            "MemoryStorage": "memory",
            "folder_name": "files", "parse_folder_name": "files", "shard_file_name": "files", "tensor_name": "files",
            "applied_to": "restore", "part_t": "restore", "read_part": "restore",
            "ShardFile": "shard", "ShardHeader": "shard", "check_shard": "shard",
            "read_header": "shard", "read_tensor_rows": "shard",
            "RowReader": "restore", "TensorRun": "shard", "write_runs": "shard", "write_shard": "shard",
            "LocalStorage": "storage", "Storage": "storage",
        },
    )  # fmt: skip
