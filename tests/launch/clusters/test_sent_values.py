"""Arguments and results between processes: plain values and arrays come back as they went."""

from __future__ import annotations

import collections
import os
import threading
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dps.launch.clusters.worker import ReportPipe, as_number, read_value, write_value
from dps.variables import items

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(0, 9), inner),
    max_leaves=20,
)


def there_and_back(value: object) -> Any:
    return items.unpack(*items.pack(value, as_number))


def same(left: object, right: object) -> bool:
    """Equal, and tuples are tuples, True is not 1."""
    if isinstance(left, list | tuple):
        return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))  # type: ignore[arg-type]
    if isinstance(left, dict):
        return isinstance(right, dict) and left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    return type(left) is type(right) and left == right


@given(plain)
def test_plain_values_come_back(value: object) -> None:
    assert same(there_and_back(value), value)


@given(
    arrays.arrays(st.sampled_from(["f4", "f8", "i8", "u1", "?", ">i2"]), arrays.array_shapes(min_dims=0, min_side=0))
)
def test_arrays_come_back_with_dtype_and_shape_and_may_be_written(array: np.ndarray) -> None:
    found = there_and_back({"a": [array.T]})["a"][0]
    assert found.dtype == array.dtype.newbyteorder("=") and found.shape == array.T.shape and found.flags.writeable
    assert found.tobytes() == array.T.astype(found.dtype).tobytes()


def test_bfloat16_comes_back_as_bfloat16() -> None:
    back = there_and_back(np.array([1.5, -2.0], ml_dtypes.bfloat16))
    assert (back.dtype, back.astype(np.float32).tolist()) == (ml_dtypes.bfloat16, [1.5, -2.0])


def test_numpy_numbers_become_plain_ones() -> None:
    assert same(there_and_back([np.float64(0.5), np.int64(3), np.bool_(True)]), [0.5, 3, True])


def test_a_dict_of_a_class_of_its_own_becomes_a_plain_one() -> None:
    assert same(there_and_back([collections.Counter("aab")]), [{"a": 2, "b": 1}])


@pytest.mark.parametrize("value", [object(), {1, 2}, lambda: 0])
def test_what_cannot_travel_is_named_by_its_type(value: object) -> None:
    with pytest.raises(TypeError, match=f"a {type(value).__name__} cannot travel between tasks"):
        items.pack([value], as_number)


def test_an_array_of_objects_cannot_travel() -> None:
    with pytest.raises(TypeError, match="array 0 is ndarray of dtype object; wanted an array of numbers"):
        items.pack([np.array(["x"], object)], as_number)


def test_values_follow_one_another_through_a_pipe_until_it_is_closed() -> None:
    out, into = os.pipe()
    write_value(into, {"progress": 1})
    write_value(into, [2])
    values = [np.zeros((0, 3)), np.array(1.5, ml_dtypes.bfloat16), np.arange(6, dtype=">i4").reshape(2, 3).T]
    write_value(into, (values, {"one": True}))
    os.close(into)
    assert (read_value(out), read_value(out)) == ({"progress": 1}, [2])
    found, rest = read_value(out)
    assert rest == {"one": True} and all(map(np.array_equal, found, values)) and found[0].flags.writeable
    with pytest.raises(EOFError):
        read_value(out)
    os.close(out)


def test_rows_of_progress_travel_together_and_before_what_is_sent_after_them() -> None:
    """Each message wakes the process that reads it: a row of its own for each push took a quarter of a small step."""
    out, into = os.pipe()
    told = ReportPipe(into)
    for number in range(300):
        told.add_row({"step": number})
    told.send({"result": "done"})
    told.add_row({"step": 300})  # the thread sends it
    heard = [read_value(out)]
    while "result" not in heard[-1]:
        heard.append(read_value(out))
    rows = [row for report in heard[:-1] for row in report["progress"]]
    assert rows == [{"step": number} for number in range(300)] and len(heard) < 30
    last = read_value(out)
    assert last["progress"] == [{"step": 300}] and 0 <= last["ago_s"][0] < 5
    os.close(out)
    told.add_row({"step": 301})  # nobody reads
    told.close()  # the descriptor's number may be another pipe's before the thread sends


def test_rows_of_several_threads_are_all_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dps.launch.clusters.worker.TOGETHER_S", 0.0005)
    out, into = os.pipe()
    told, heard = ReportPipe(into), list[int]()

    def read() -> None:
        while "result" not in (report := read_value(out)):
            heard.extend(row["step"] for row in report["progress"])

    def push(first: int) -> None:
        for number in range(first, first + 2000):
            told.add_row({"step": number})

    threads = [threading.Thread(target=push, args=(2000 * n,)) for n in range(4)]
    reader = threading.Thread(target=read)
    for thread in (reader, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    told.send({"result": None})
    reader.join()
    told.close()
    os.close(out)
    assert sorted(heard) == list(range(8000))
    assert all(sorted(own) == own for n in range(4) if (own := [h for h in heard if h // 2000 == n]))


def test_a_pipe_that_is_closed_is_written_to_no_more(tmp_path: Path) -> None:
    """A thread of the program may push on. The descriptor's number may be another file's by then."""
    out, into = os.pipe()
    told = ReportPipe(into)
    told.add_row({"step": 1})
    told.close()
    assert read_value(out)["progress"] == [{"step": 1}]
    other = os.open(tmp_path / "other", os.O_CREAT | os.O_WRONLY)
    os.dup2(other, into)
    told.add_row({"step": 2})
    told.send({"result": None})
    for descriptor in {other, into, out}:
        os.close(descriptor)
    assert (tmp_path / "other").read_bytes() == b""
