"""Reads rows of one variable from a file that a run did not write: `dps.init.FromFile`."""

from __future__ import annotations

from dps.checkpoint.files import MANIFEST_FILE, join
from dps.checkpoint.folder import candidates, load
from dps.checkpoint.manifest import Manifest
from dps.checkpoint.restore import read_part
from dps.checkpoint.shard import Array, ShardHeader, read_header, read_tensor_rows
from dps.checkpoint.storage import Storage
from dps.errors import CheckpointError, ConfigError

NAMED = 10
"""How many names of a file a message lists."""


class VariableSource:
    """A tensor of a safetensors file, or a variable of one checkpoint of dps. Files are not trusted."""

    def __init__(self, storage: Storage, path: str, wanted: str, name: str, shape: tuple[int, ...], dtype: str) -> None:
        """`wanted`: the name in the file; `name`, `shape`, `dtype` ("float32"): of the variable, which is to be the
        same. Reads the table of contents. Raises ConfigError if the variable is not there or is another one, and
        CheckpointError for a file that is missing or damaged."""
        self._storage, self._path, self._wanted = storage, path.rstrip("/") or path, wanted
        self._manifest: Manifest | None = None
        self._headers: dict[str, ShardHeader] = {}
        if storage.exists(join(self._path, MANIFEST_FILE)):
            self._folder, _, own = self._path.rpartition("/")
            self._folder = self._folder or "."
            self._manifest = load(storage, self._folder, own, verify=False)
            found = {v.name: (v.shape, v.dtype) for v in self._manifest.variables}
        else:
            self._check_is_file(name)
            header = self._headers[self._path] = read_header(storage, self._path)
            found = {tensor: (entry.shape, entry.dtype) for tensor, entry in header.tensors.items()}
        if wanted not in found:
            there = ", ".join([*found][:NAMED]) + (", ..." if len(found) > NAMED else "")
            raise ConfigError(
                f"{name}: {path} holds no {wanted!r}; it has {there or 'nothing'}: give FromFile one of these names"
            )
        if found[wanted] != (shape, dtype):
            has = f"{found[wanted][1]} {found[wanted][0]}"
            raise ConfigError(f"{name}: {wanted!r} in {path} is {has}, and the variable is {dtype} {shape}")

    def _check_is_file(self, name: str) -> None:
        """Raise an error with what to try, unless the path is a file."""
        if not self._storage.exists(self._path):
            raise ConfigError(f"{name}: there is no {self._path} where its ps runs; give a path that every ps can read")
        try:
            newest = candidates(self._storage, self._path)
        except CheckpointError:  # it is no folder
            return
        if newest:
            raise ConfigError(
                f"{name}: {self._path} is a folder of checkpoints, which may change; name one of them, as "
                f"{join(self._path, newest[0])}"
            )

    def read(self, row0: int, rows: int) -> Array:
        """Rows `row0` to `row0 + rows`, flat; a scalar is one row. Raises CheckpointError for a damaged file."""
        if self._manifest is not None:
            where = self._storage, self._folder, self._manifest
            return read_part(*where, self._wanted, row0, rows, None, self._headers).reshape(-1)
        header = self._headers[self._path]
        return read_tensor_rows(self._storage, self._path, self._wanted, row0, rows, header).reshape(-1)
