"""Input: datasets that are read, prepared and batched, and queues that tasks share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dps.process.lazy_imports import at_first_use

if TYPE_CHECKING:
    from dps.data.dataset import Dataset as Dataset
    from dps.data.dataset import Iterator as Iterator
    from dps.data.dataset import from_arrays as from_arrays
    from dps.data.dataset import from_files as from_files
    from dps.data.dataset import from_generator as from_generator
    from dps.data.dataset import from_tensors as from_tensors
    from dps.data.remote_dataset import RemoteDataset as RemoteDataset
    from dps.data.remote_dataset import RemotePass as RemotePass
    from dps.data.remote_dataset import remote as remote
    from dps.data.saver import InputSaver as InputSaver
    from dps.data.saver import saved_position as saved_position
    from dps.data.serving import Serving as Serving
    from dps.data.serving import serve as serve
    from dps.data.shared_queue import Queue as Queue
    from dps.data.shared_queue import queue as queue

_NAMES = {
    "Dataset": "dataset", "Iterator": "dataset", "from_arrays": "dataset", "from_files": "dataset",
    "from_generator": "dataset", "from_tensors": "dataset", "Queue": "shared_queue", "queue": "shared_queue",
    "RemoteDataset": "remote_dataset", "RemotePass": "remote_dataset", "remote": "remote_dataset",
    "InputSaver": "saver", "saved_position": "saver", "Serving": "serving", "serve": "serving",
}  # fmt: skip

__all__ = [*_NAMES]  # noqa: PLE0604
__getattr__ = at_first_use(__name__, _NAMES)
