"""Decides which checkpoint_dir a session may name, since chief and ps write there as their own user (decision 48)."""

from __future__ import annotations

import os

from dps.errors import CheckpointError


class CheckpointRoot:
    """The folder below which sessions name their checkpoint_dir."""

    def __init__(self, root: str | None = None, host: str = "") -> None:
        """`root`: the folder; "": others may join this run, and none was given; None: nobody else may join. `host`: the
        worker in whose process the chief is; "": it has one of its own."""
        self._root, self._host = root, host
        self._named = ""
        """What a session in the chief's process has named: it could write there without the chief."""

    def waits(self, name: str, wanted: str, own: bool, joined: bool) -> str:
        """What a session has to wait for before it may name this folder; "" if it may. `own`: it is in the chief's
        process. `joined`: its key has joined the run by a token. Raises CheckpointError if it may not."""
        if own:
            self._named = wanted
        root = "" if joined and self._root is None else self._root
        if not wanted or root is None or self._allows(wanted, root):
            return ""
        asks = f"{name} asks for checkpoints in {wanted}"
        if root:
            raise CheckpointError(
                f"{asks}, which is not below {root}, the folder for checkpoints of this run; name a checkpoint_dir "
                "below that (under dps launch it is OUTPUT_DIR), or start the run with another --checkpoint-root FOLDER"
            )
        if self._host and not self._named:
            return (
                f"{asks}; the chief allows that once {self._host}, which hosts it, has opened a session with the same"
            )
        raise CheckpointError(
            f"{asks}, but others may join this run and the chief was given no folder for checkpoints; start it with "
            "--checkpoint-root FOLDER (DPS_CHECKPOINT_ROOT, checkpoint_root=) and name a checkpoint_dir below that"
        )

    def allows(self, wanted: str) -> bool:
        """Whether a session may name this folder without waiting."""
        return self._root is None or self._allows(wanted, self._root)

    def _allows(self, wanted: str, root: str) -> bool:
        return is_below(wanted, root) if root else wanted == self._named


def is_below(path: str, root: str) -> bool:
    """Whether a path is a folder or lies below it, with all links followed."""
    top, found = os.path.realpath(root), os.path.realpath(path)
    return found == top or found.startswith(os.path.join(top, ""))
