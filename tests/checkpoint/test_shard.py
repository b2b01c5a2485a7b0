from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from dps.checkpoint import MemoryStorage, check_shard, read_header, read_tensor_rows, write_shard
from dps.errors import CheckpointError
from tests.checkpoint.damage import corrupt, truncate

from .model import Array

PATH = "f/shard-00000-of-00001.safetensors"
DTYPES = ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8",
          "bool", "complex64"]  # fmt: skip


def written(tensors: dict[str, Array]) -> MemoryStorage:
    storage = MemoryStorage()
    write_shard(storage, "f", 0, 1, tensors, {"epoch": "3"})
    return storage


def with_header(header: Any, data: bytes = b"", nbytes: int | None = None) -> MemoryStorage:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    storage = MemoryStorage()
    storage.write(PATH, [(len(text) if nbytes is None else nbytes).to_bytes(8, "little"), text, data])
    return storage


def test_a_shard_file_is_read_by_the_safetensors_library() -> None:
    tensors: dict[str, Array] = {"w": np.arange(6, dtype=np.float32).reshape(3, 2), "n": np.array(7, dtype=np.int64)}
    loaded = safetensors.numpy.load(bytes(written(tensors).read(PATH)))
    assert sorted(loaded) == ["n", "w"]
    np.testing.assert_array_equal(loaded["w"], [[0, 1], [2, 3], [4, 5]])
    assert loaded["n"].shape == () and loaded["n"] == 7


def test_the_shard_file_says_its_name_size_and_sha256() -> None:
    storage = MemoryStorage()
    shard = write_shard(storage, "f", 1, 2, {"w": np.zeros(3, np.float32)}, {})
    data = bytes(storage.read("f/shard-00001-of-00002.safetensors"))
    assert shard.file == "shard-00001-of-00002.safetensors"
    assert (shard.nbytes, shard.digest) == (len(data), hashlib.sha256(data).hexdigest())


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_comes_back_bit_for_bit(dtype: str) -> None:
    bits = np.arange(6 * np.dtype(dtype).itemsize, dtype=np.uint8)
    values = (bits % 2 == 0).reshape(6) if dtype == "bool" else bits.view(dtype)
    back = read_tensor_rows(written({"w": values}), PATH, "w", 0, 6)
    assert back.dtype == values.dtype
    assert back.tobytes() == values.tobytes()


@pytest.mark.skipif(importlib.util.find_spec("ml_dtypes") is None, reason="needs ml-dtypes")
def test_bfloat16_comes_back_bit_for_bit() -> None:
    values = np.arange(4, dtype=np.uint16).view(np.dtype(importlib.import_module("ml_dtypes").bfloat16))
    back = read_tensor_rows(written({"w": values}), PATH, "w", 1, 3)
    assert back.dtype.name == "bfloat16"
    assert back.tobytes() == values[1:].tobytes()


def test_bfloat16_without_ml_dtypes_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    storage = with_header({"w": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}, bytes(2))
    with pytest.raises(CheckpointError, match=r"pip install 'dps\[bfloat16\]'"):
        read_tensor_rows(storage, PATH, "w", 0, 1)


def test_views_with_strides_and_big_endian_arrays_are_stored_by_value() -> None:
    table = np.arange(12, dtype=np.int32).reshape(3, 4)
    storage = written({"cut": table[::2, 1:3], "turned": table.T, "big": table.astype(">i4")})
    np.testing.assert_array_equal(read_tensor_rows(storage, PATH, "cut", 0, 2), [[1, 2], [9, 10]])
    np.testing.assert_array_equal(read_tensor_rows(storage, PATH, "turned", 1, 1), [[1, 5, 9]])
    big = read_tensor_rows(storage, PATH, "big", 0, 3)
    np.testing.assert_array_equal(big, table)
    assert big.dtype == np.dtype("int32")


def test_only_the_bytes_of_the_wanted_rows_are_read() -> None:
    class Counting(MemoryStorage):
        def read_range(self, path: str, offset: int, n: int) -> bytes | memoryview:
            ranges.append(n)
            return super().read_range(path, offset, n)

    ranges: list[int] = []
    storage = Counting()
    write_shard(storage, "f", 0, 1, {"w": np.arange(3000, dtype=np.float32).reshape(1000, 3)}, {})
    header = read_header(storage, PATH)
    ranges.clear()
    rows = read_tensor_rows(storage, PATH, "w", 10, 2, header)
    np.testing.assert_array_equal(rows, [[30, 31, 32], [33, 34, 35]])
    assert ranges == [24]


def test_the_rows_belong_to_the_caller() -> None:
    storage = written({"w": np.zeros(3, np.float32)})
    rows = read_tensor_rows(storage, PATH, "w", 0, 3)
    rows += 1
    np.testing.assert_array_equal(read_tensor_rows(storage, PATH, "w", 0, 3), [0, 0, 0])


def test_a_scalar_is_one_row_with_shape_nothing() -> None:
    storage = written({"s": np.array(2.5)})
    value = read_tensor_rows(storage, PATH, "s", 0, 1)
    assert value.shape == () and value == 2.5
    for row0, rows in [(0, 0), (1, 0), (0, 2), (1, 1)]:
        with pytest.raises(CheckpointError, match="it holds 1"):
            read_tensor_rows(storage, PATH, "s", row0, rows)


def test_tensors_without_elements_and_shards_without_tensors_work() -> None:
    storage = written({"e": np.zeros((0, 4), np.float32), "f": np.zeros((3, 0), np.float32)})
    assert read_tensor_rows(storage, PATH, "e", 0, 0).shape == (0, 4)
    assert read_tensor_rows(storage, PATH, "f", 1, 2).shape == (2, 0)
    assert read_header(written({}), PATH).tensors == {}


def test_a_shard_without_tensors_and_metadata_is_read_by_us_and_by_the_library() -> None:
    storage = MemoryStorage()
    write_shard(storage, "f", 0, 1, {}, {})
    header = read_header(storage, PATH)
    assert (header.tensors, header.metadata) == ({}, {})
    assert safetensors.numpy.load(bytes(storage.read(PATH))) == {}


def test_metadata_comes_back() -> None:
    assert read_header(written({"w": np.zeros(1)}), PATH).metadata == {"epoch": "3"}


def test_rows_and_tensors_that_are_not_there_are_named() -> None:
    storage = written({"w": np.zeros((5, 2))})
    with pytest.raises(CheckpointError, match="rows 3 to 6 of 'w' were wanted, it holds 5"):
        read_tensor_rows(storage, PATH, "w", 3, 3)
    with pytest.raises(CheckpointError, match="holds no tensor 'v'"):
        read_tensor_rows(storage, PATH, "v", 0, 1)
    with pytest.raises(ValueError, match="wanted 0 or more of each"):
        read_tensor_rows(storage, PATH, "w", -1, 1)


@pytest.mark.parametrize("values", [np.array(["text"]), np.zeros(1, np.complex128), np.array([object()])])
def test_a_dtype_that_cannot_be_stored_is_named(values: Array) -> None:
    with pytest.raises(CheckpointError, match=f"'w' has dtype {values.dtype.name}; .*convert it"):
        written({"w": values})


def test_a_variable_cannot_take_the_name_of_the_metadata() -> None:
    with pytest.raises(CheckpointError, match="choose another name"):
        written({"__metadata__": np.zeros(1)})


def test_a_shard_of_a_committed_checkpoint_is_never_rewritten() -> None:
    storage = written({"w": np.zeros(1)})
    storage.write("f/manifest.json", [b"{}"])
    with pytest.raises(CheckpointError, match="finished checkpoint and is not written again; save at a later step"):
        write_shard(storage, "f", 0, 1, {"w": np.ones(1)}, {})
    assert read_tensor_rows(storage, PATH, "w", 0, 1) == 0


def test_a_shard_index_beyond_the_count_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="got the shard index 2, wanted 0 to 1"):
        write_shard(MemoryStorage(), "f", 2, 2, {}, {})


def test_missing_shortened_and_altered_files_are_told_apart() -> None:
    storage = MemoryStorage()
    shard = write_shard(storage, "f", 0, 1, {"w": np.zeros(4)}, {})
    check_shard(storage, "f", shard)
    corrupt(storage, PATH, shard.nbytes - 1)
    check_shard(storage, "f", shard, digest=False)
    with pytest.raises(CheckpointError, match=r"is altered: its SHA-256 is [0-9a-f]{64}, wanted " + shard.digest):
        check_shard(storage, "f", shard)
    truncate(storage, PATH, shard.nbytes - 1)
    with pytest.raises(CheckpointError, match=f"has {shard.nbytes - 1} bytes; its manifest says {shard.nbytes}"):
        check_shard(storage, "f", shard, digest=False)
    storage.remove_tree(PATH)
    with pytest.raises(CheckpointError, match="safetensors is missing"):
        check_shard(storage, "f", shard)


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"not json", "not JSON"),
        (b"\xff\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"w": {}, "w": {}}', "a name occurs twice"),
        (b'{"w": {"dtype": "F32", "shape": [' + b"9" * 5000 + b'], "data_offsets": [0, 8]}}', "not JSON"),
        ([], "is a list"),
        ({"__metadata__": {"a": 1}}, "from text to text"),
        ({"__metadata__": 3}, "from text to text"),
        ({"w": []}, "not an object"),
        ({"w": {}}, "dtype None"),
        ({"w": entry(dtype="F31")}, "dtype 'F31'"),
        ({"w": entry(dtype=["F32"])}, "dtype"),
        ({"w": entry(shape=[-2])}, "shape"),
        ({"w": entry(shape=[2.0])}, "shape"),
        ({"w": entry(shape=[True, 2])}, "shape"),
        ({"w": entry(shape="2")}, "shape"),
        ({"w": entry(shape=None)}, "shape"),
        ({"w": entry(shape=[1] * 33)}, "shape"),
        ({"w": entry(shape=[2**62])}, "more than any memory holds"),
        ({"w": entry(shape=[0, 10**30], offsets=[0, 0])}, "more than any memory holds"),
        ({"w": entry(shape=[3])}, "but 8 bytes"),
        ({"w": entry(shape=[0])}, "but 8 bytes"),
        ({"w": entry(offsets=[8, 0])}, "data_offsets"),
        ({"w": entry(offsets=[-8, 0])}, "data_offsets"),
        ({"w": entry(offsets=[0, 8, 8])}, "data_offsets"),
        ({"w": entry(offsets=[0, None])}, "data_offsets"),
        ({"w": entry(offsets=[8, 16])}, "gap"),
        ({"w": entry(shape=[10**9], offsets=[0, 4 * 10**9])}, "end at byte"),
        ({}, "end at byte"),
        ({"w": entry(), "v": entry(shape=[1], offsets=[4, 8])}, "overlaps"),
        ({"w": entry(), "v": entry()}, "overlaps"),
    ],
)
def test_a_header_that_lies_is_refused_with_the_reason(header: Any, reason: str) -> None:
    with pytest.raises(CheckpointError, match=f"not a whole shard file: .*{reason}"):
        read_header(with_header(header, bytes(8)), PATH)


@pytest.mark.parametrize("nbytes", [3, 11, 10**6, 2**63, 2**64 - 1])
def test_a_header_longer_than_the_file_is_refused(nbytes: int) -> None:
    with pytest.raises(CheckpointError, match="not a whole shard file"):
        read_header(with_header(b"{}", nbytes=nbytes), PATH)


def test_a_file_cut_anywhere_is_refused() -> None:
    whole = written({"w": np.arange(3, dtype=np.float32), "s": np.array(1.0)})
    size = whole.size(PATH)
    for n in range(size):
        storage = MemoryStorage()
        storage.write(PATH, [bytes(whole.read(PATH))[:n]])
        with pytest.raises(CheckpointError):
            read_header(storage, PATH)


@given(st.data())
def test_a_damaged_header_is_refused_or_harmless_but_never_another_error(data: st.DataObject) -> None:
    storage = written({"w": np.arange(8, dtype=np.float32).reshape(4, 2), "s": np.array(1.0)})
    raw = bytearray(storage.read(PATH))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 49))] = data.draw(st.integers(0, 255))
    storage.write(PATH, [bytes(raw)])
    try:
        header = read_header(storage, PATH)
        for name, found in header.tensors.items():
            rows = found.shape[0] if found.shape else 1
            read_tensor_rows(storage, PATH, name, 0, rows, header)
    except CheckpointError as error:
        assert PATH in str(error) or "not known here" in str(error)
