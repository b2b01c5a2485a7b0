"""Weights in a file: all parameters of a model by name, in the safetensors format, which other programs read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from dps.errors import CheckpointError
from dps.own_files import make_folder, opener
from dps.variables.tree import leaves


def save(path: str | os.PathLike[str], values: Mapping[str, Any]) -> None:
    """Write a file, or leave the one that is there as it is. Raises CheckpointError."""
    from safetensors.numpy import save_file

    path = os.fspath(path)
    folder, unfinished = os.path.dirname(path), f"{path}.unfinished"
    try:
        if folder:
            make_folder(folder)
        with open(unfinished, "wb", opener=opener):  # with its mode
            pass
        save_file({name: array.copy() for name, array in leaves(values)}, unfinished)
        os.replace(unfinished, path)
    except OSError as error:
        raise CheckpointError(f"save_weights: {path} cannot be written: {error}") from None


def load(path: str | os.PathLike[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays of a file by name, which are as many and of the same shapes as `values`. Raises CheckpointError."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = os.fspath(path)
    try:
        found: dict[str, Any] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"load_weights: {path} cannot be read: {error}") from None
    wanted = dict(leaves(values))
    for name in [*wanted, *found]:
        has = found[name].shape if name in found else "no such array"
        needs = wanted[name].shape if name in wanted else "no such parameter"
        if has != needs:
            raise CheckpointError(f"load_weights: {path} has {has} for {name}, the model has {needs}")
    return found
