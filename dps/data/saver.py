"""Positions of datasets in checkpoints: saved beside the variables, and found again."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from dps.checkpoint.files import MANIFEST_FILE, POSITION_FILE, is_path, join
from dps.checkpoint.folder import candidates, load
from dps.data.dataset import Iterator
from dps.data.remote_dataset import RemoteDataset
from dps.errors import CheckpointError, ConfigError
from dps.hooks.saver import CheckpointSaver
from dps.transport.current import runtime

if TYPE_CHECKING:
    from dps.checkpoint.storage import Storage
    from dps.hooks.hook import Loop


class InputSaver(CheckpointSaver):
    """Save checkpoints as `dps.CheckpointSaver` does, with the position of a dataset in each.

    The position is read before the variables are: what it counts as finished, the checkpoint has. What is pushed
    between the two may come again after a restore.

    Args:
        source: An iterator of this worker, or a remote dataset.
        steps: Save every so many global steps.
        seconds: Save every so many seconds; 600 when neither is given.

    Raises:
        ConfigError: Neither an iterator nor a remote dataset; or as of `dps.CheckpointSaver`.

    Example:
        ```python
        dataset = dps.data.from_arrays(np.arange(12.0)).shuffle(12, seed=1).batch(3)
        batches = dataset.iterator(dps.data.saved_position("run"))
        with dps.Session(server, {"w": np.zeros(3)}, optimizer=dps.optim.SGD(0.1),
                         checkpoint_dir="run",
                         hooks=[dps.data.InputSaver(batches, steps=2)]) as session:
            for batch in batches:
                session.push({"w": batch})
        assert list(dataset.iterator(dps.data.saved_position("run"))) == []
        ```
    """

    def __init__(
        self, source: Iterator | RemoteDataset, steps: int | None = None, seconds: float | None = None
    ) -> None:
        if not isinstance(source, Iterator | RemoteDataset):
            raise ConfigError(
                f"InputSaver: got a {type(source).__name__}, wanted an iterator of a dataset, or a remote dataset"
            )
        super().__init__(steps, seconds)
        self._source = source

    def _save(self, session: Loop) -> None:
        if session.checkpoint_dir is not None:
            super()._save(session)

    def _write(self, session: Loop) -> str:
        source = self._source
        position = source.position() if isinstance(source, RemoteDataset) else source.position
        return session.save(position=json.dumps(position).encode())


def saved_position(checkpoint_dir: str | os.PathLike[str], name: str | None = None) -> dict[str, Any] | None:
    """The position that `InputSaver` saved with a checkpoint.

    Args:
        checkpoint_dir: The run's checkpoint_dir.
        name: The checkpoint. None: the newest one that has a position.

    Returns:
        The position, for `dataset.iterator(position)` or `dps.data.serve(position=...)`; None where there is no
        checkpoint, or none with a position, or where the one of that name has none.

    Raises:
        CheckpointError: There is no whole checkpoint of that name, or the position cannot be read.
        ConfigError: A checkpoint_dir that is no path.

    Example:
        ```pycon
        >>> dps.data.saved_position("no-run") is None
        True
        ```
    """
    if not is_path(checkpoint_dir):
        raise ConfigError(f"saved_position: got the checkpoint_dir {checkpoint_dir!r:.80}, wanted a path")
    storage, checkpoint_dir = runtime().storage, os.fspath(checkpoint_dir)
    if name is not None:
        load(storage, checkpoint_dir, name, verify=False)
    for found in [name] if name is not None else candidates(storage, checkpoint_dir):
        folder = join(checkpoint_dir, found)
        if not storage.exists(join(folder, MANIFEST_FILE)):
            continue
        path = join(folder, POSITION_FILE)
        if storage.exists(path):
            own: dict[str, Any] = _read_position(storage, path)
            return own
    return None


def _read_position(storage: Storage, path: str) -> Any:
    try:
        return json.loads(bytes(storage.read(path)))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None
