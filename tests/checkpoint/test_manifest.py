from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from dps.checkpoint import Manifest, SavedPart, SavedShard, SavedVariable, ShardFile
from dps.checkpoint.files import seal, unseal
from dps.checkpoint.manifest import decode, decode_shards, encode
from dps.errors import CheckpointError


def shard(index: int, count: int) -> SavedShard:
    return SavedShard(ShardFile(f"shard-{index:05d}-of-{count:05d}.safetensors", 100, "ab" * 32), version=5 + index)


TABLE = SavedVariable(
    "emb/table", "float32", (7, 2), (SavedPart(0, 0, 4, 1, t=9), SavedPart(1, 4, 3, 0, t=8)),
    {"name": "Adam", "learning_rate": 0.1}, ("m", "v"),
)  # fmt: skip
BIAS = SavedVariable("bias", "float64", (), (SavedPart(0, 0, 1, 0),))
MANIFEST = Manifest(120, 3, (shard(0, 2), shard(1, 2)), (TABLE, BIAS), {"update": {"mode": "async"}, "at": [1, 2]})


def altered(**changes: Any) -> bytes:
    return seal({**unseal(encode(MANIFEST), "m", 1), **changes})


def test_a_manifest_comes_back_as_it_was() -> None:
    assert decode(encode(MANIFEST), "m") == MANIFEST


def test_when_it_was_saved_is_kept_and_not_known_of_older_ones() -> None:
    assert decode(encode(replace(MANIFEST, saved_at=1.7e9)), "m").saved_at == 1.7e9
    body = unseal(encode(MANIFEST), "m", 1)
    del body["saved_at"]
    assert decode(seal(body), "m").saved_at == 0.0


def test_the_same_manifest_has_the_same_bytes() -> None:
    assert encode(decode(encode(MANIFEST), "m")) == encode(MANIFEST)


def test_numbers_may_be_numpy_s() -> None:
    part = SavedPart(*np.array([0, 0, 7, 1, 9]))
    table = replace(TABLE, shape=tuple(np.array([7, 2])), parts=(part,))
    manifest = replace(MANIFEST, step=cast(int, np.int64(120)), variables=(table, BIAS))
    assert decode(encode(manifest), "m").variable("emb/table").parts == (SavedPart(0, 0, 7, 1, t=9),)


def test_the_tensors_of_parts_and_slots_have_their_names() -> None:
    assert TABLE.tensor(TABLE.parts[1]) == "emb/table/part_1"
    assert TABLE.tensor(TABLE.parts[0], "m") == "emb/table/part_0@m"
    assert BIAS.tensor(BIAS.parts[0]) == "bias"


def test_an_unknown_variable_is_told_with_those_there_are() -> None:
    with pytest.raises(CheckpointError, match="holds no variable 'table', it holds emb/table, bias; use the model"):
        MANIFEST.variable("table")


@pytest.mark.parametrize(
    "parts",
    [
        (),
        (SavedPart(0, 0, 6, 0),),
        (SavedPart(0, 0, 8, 0),),
        (SavedPart(0, 0, 4, 0), SavedPart(1, 3, 4, 0)),
        (SavedPart(0, 0, 3, 0), SavedPart(1, 4, 3, 0)),
        (SavedPart(1, 0, 7, 0),),
        (SavedPart(1, 4, 3, 0), SavedPart(0, 0, 4, 0)),
    ],
)
def test_parts_that_do_not_hold_every_row_once_are_refused(parts: tuple[SavedPart, ...]) -> None:
    with pytest.raises(ValueError, match="'emb/table'"):
        replace(TABLE, parts=parts)


@pytest.mark.parametrize("value", [-1, True, 1.0, "1", None])
def test_counts_are_whole_numbers_from_0(value: Any) -> None:
    for make in (
        lambda: SavedPart(0, 0, value, 0),
        lambda: SavedPart(0, 0, 1, 0, t=value),
        lambda: replace(MANIFEST, step=value),
        lambda: replace(MANIFEST, epoch=value),
        lambda: SavedShard(MANIFEST.shards[0].file, version=value),
        lambda: replace(BIAS, shape=(value,)),
    ):
        with pytest.raises(ValueError, match="wanted a whole number from 0"):
            make()


def test_a_shard_file_with_a_foreign_name_is_refused() -> None:
    foreign = SavedShard(ShardFile("../../etc/passwd", 1, ""), 0)
    with pytest.raises(ValueError, match=r"wanted 'shard-00001-of-00002\.safetensors'"):
        replace(MANIFEST, shards=(shard(0, 2), foreign))
    with pytest.raises(ValueError, match="shard 0 is in file"):
        replace(MANIFEST, shards=(shard(1, 2), shard(0, 2)))


def test_a_part_in_a_shard_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="'emb/table' has a part in shard 1 of 1"):
        replace(MANIFEST, shards=(shard(0, 1),))


def test_two_tensors_of_one_name_are_refused() -> None:
    clash = SavedVariable("bias@m", "float64", (), (SavedPart(0, 0, 1, 1),))
    with pytest.raises(ValueError, match="two tensors would be called 'bias@m'; rename a variable"):
        replace(MANIFEST, variables=(replace(BIAS, slots=("m",)), clash))
    with pytest.raises(ValueError, match="two tensors"):
        replace(MANIFEST, variables=(BIAS, BIAS))


@pytest.mark.parametrize(
    "changes",
    [
        {"step": "120"}, {"epoch": None}, {"shards": None}, {"shards": [{}]}, {"variables": [{"name": "w"}]},
        {"settings": None}, {"settings": 3}, {"shards": [], "variables": [{"name": "w", "dtype": "float32",
        "shape": [1], "optimizer": None, "slots": [], "t": [0], "parts": [[0, 0, 1, 0]]}]},
    ],
)  # fmt: skip
def test_a_sealed_document_that_is_no_manifest_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="m is not a manifest"):
        decode(altered(**changes), "m")


@pytest.mark.parametrize(
    "changes",
    [
        {"t": [9]}, {"t": [9, -1]}, {"parts": [[0, 0, 7]]}, {"parts": [[0, 0, 4, 0], [1, 4, 2, 1]]}, {"name": 3},
        {"slots": [3]}, {"shape": 7}, {"shape": [2**70, 2]}, {"dtype": None}, {"optimizer": 3},
    ],
)  # fmt: skip
def test_a_variable_that_does_not_fit_is_refused(changes: dict[str, Any]) -> None:
    body = unseal(encode(MANIFEST), "m", 1)
    body["variables"][0] |= changes
    with pytest.raises(CheckpointError, match="m is not a manifest"):
        decode(seal(body), "m")


def test_a_manifest_of_a_newer_dps_is_refused() -> None:
    with pytest.raises(CheckpointError, match="of a newer dps"):
        decode(altered(format_version=2), "m")


def test_settings_that_are_not_json_are_a_type_error() -> None:
    with pytest.raises(TypeError):
        encode(replace(MANIFEST, settings={"x": object()}))


@pytest.mark.parametrize(
    "name", ['a"b', "back\\slash", "\u00f6/\U0001f600", 'x", "dtype": ', "new\nline", ",\n  {", "\\"]
)
def test_a_variable_may_have_any_name(name: str) -> None:
    named = [replace(BIAS, name=n) for n in ("first", name, "last")]
    manifest = replace(MANIFEST, variables=(*named, replace(TABLE, name=name + "2")))
    assert decode(encode(manifest), "m") == manifest


def test_each_variable_stands_on_a_line_and_what_they_share_is_read_once() -> None:
    alike = tuple(BIAS.named(f"b{i}") for i in range(100))
    data = encode(replace(MANIFEST, variables=(TABLE, *alike)))
    assert sum(line.startswith('  {"name": "b') for line in data.decode().splitlines()) == 100
    again = decode(data, "m")
    assert again.variables[1:] == alike == tuple(replace(BIAS, name=f"b{i}") for i in range(100))
    assert all(variable.parts is again.variables[1].parts for variable in again.variables[1:])


def test_a_manifest_of_an_older_dps_is_read() -> None:
    older = seal(unseal(encode(MANIFEST), "m", 1))  # a variable took several lines
    assert b'\n  {\n   "name": "emb/table",\n' in older
    assert decode(older, "m") == MANIFEST
    assert decode_shards(older, "m") == decode_shards(encode(MANIFEST), "m") == (MANIFEST.name, MANIFEST.shards)


def test_tensors_of_one_name_are_refused_where_names_alone_do_not_show_it() -> None:
    split = replace(TABLE, name="w", slots=())
    with pytest.raises(ValueError, match="two tensors would be called 'w/part_1'"):
        replace(MANIFEST, variables=(split, replace(BIAS, name="w/part_1")))
    with pytest.raises(ValueError, match="two tensors would be called 'bias@m'"):
        replace(MANIFEST, variables=(replace(BIAS, slots=("m", "m")),))
