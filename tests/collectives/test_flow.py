"""One operation as a state machine: any order of messages, lost and doubled ones, gives all the same sum."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dps.collectives.flow import Flow
from dps.collectives.memory import PLACE_NBYTES, BoardSlot
from dps.collectives.messages import Phase
from dps.collectives.routes import ALGORITHMS, Algorithm, RunSegment, gather, owned, parts_of, slots
from dps.errors import ProtocolError
from dps.kernels.gradients import largest, total


def flows(
    size: int, count: int, most: int, algorithm: Algorithm, rng: Any, op: Any = total, window: int = 3
) -> list[Flow]:
    parts = parts_of(count, size, most)
    own = [(rng.normal(size=count) * 10.0 ** rng.integers(-5, 5, count)).astype(np.float32) for _ in range(size)]
    empty = [np.full(count, np.nan, np.float32) for _ in range(size)]
    return [Flow("sum", r, size, parts, algorithm, own[r], empty[r], op, window) for r in range(size)]


def deliver(made: list[Flow], draw: random.Random, loss: float = 0.0, double: float = 0.0) -> int:
    """Deliver messages in any order until all flows are done; how many were sent."""
    under_way: list[tuple[int, Any]] = []
    sent = 0
    for flow in made:
        flow.send_first_pieces()
    for _ in range(100_000):
        for flow in made:
            sends, flow.out = flow.out, []
            for send in sends:
                sent += 1
                copies = (draw.random() >= loss) + (draw.random() < double)
                under_way += [(flow.rank, send)] * copies
        if not under_way:
            if all(flow.is_done for flow in made):
                return sent
            for flow in made:
                flow.ask_missing_pieces()
            continue
        rank, (to, index, phase, own) = under_way.pop(draw.randrange(len(under_way)))
        source = made[rank]
        data = None if phase is Phase.ASK else (source.given if own else source.result)[source.span(index)].copy()
        made[to].take_piece(rank, index, phase, data)
    raise AssertionError("the operation does not end")


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 6), st.integers(0, 50), st.integers(1, 20), st.integers(0, 10**6), st.sampled_from([0.0, 0.3]),
    st.sampled_from([0.0, 0.3]),
)  # fmt: skip
def test_all_get_the_same_bits(
    name: str, size: int, count: int, most: int, seed: int, loss: float, double: float
) -> None:  # fmt: skip
    made = flows(size, count, most, ALGORITHMS[name], np.random.default_rng(seed))
    brought = [flow.given.copy() for flow in made]
    deliver(made, random.Random(seed), loss, double)
    for flow in made:
        assert flow.result.tobytes() == made[0].result.tobytes()
    np.testing.assert_allclose(made[0].result, np.sum(brought, axis=0, dtype=np.float64), rtol=1e-3, atol=1)
    if name in ("all", "direct"):  # in the order of ranks, as replicas of one machine are summed
        wanted = brought[0]
        for other in brought[1:]:
            wanted = wanted + other
        assert made[0].result.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_bits_do_not_depend_on_the_timing(name: str) -> None:
    found = set()
    for seed in range(10):
        made = flows(5, 60, 7, ALGORITHMS[name], np.random.default_rng(1))
        deliver(made, random.Random(seed))
        found.add(made[0].result.tobytes())
    assert len(found) == 1


@pytest.mark.parametrize(("name", "each"), [("direct", 2 * 3), ("ring", 2 * 3), ("tree", 2 * 3), ("all", 3 * 4)])
def test_each_piece_travels_as_often_as_it_must(name: str, each: int) -> None:
    made = flows(4, 80, 5, ALGORITHMS[name], np.random.default_rng(1))
    assert deliver(made, random.Random(1)) == each * len(made[0].parts)


def test_a_maximum_and_a_not_a_number() -> None:
    made = flows(3, 9, 4, ALGORITHMS["ring"], np.random.default_rng(1), largest)
    brought = np.array([flow.given for flow in made])
    deliver(made, random.Random(1))
    assert (made[2].result == brought.max(axis=0)).all()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(0, 99), st.sampled_from([0.0, 0.4]))
def test_gathered_parts_lie_one_after_the_other(counts: list[int], seed: int, loss: float) -> None:
    size, parts, made = len(counts), slots(counts, 4), []
    for rank in range(size):
        run = np.zeros(sum(counts))
        first = sum(counts[:rank])
        run[first : first + counts[rank]] = rank + 1
        made.append(Flow("gather", rank, size, parts, gather, run, run, total))
    deliver(made, random.Random(seed), loss)
    for flow in made:
        assert flow.result.tolist() == [rank + 1 for rank, count in enumerate(counts) for _ in range(count)]


def test_what_is_missing_comes_from_who_has_it_when_members_are_lost() -> None:
    made = flows(3, 30, 5, ALGORITHMS["direct"], np.random.default_rng(1))
    deliver(made, random.Random(1))
    late = flows(3, 30, 5, ALGORITHMS["direct"], np.random.default_rng(1))[1]
    late.send_first_pieces()
    late.out.clear()
    late.ask_source(0)
    deliver_to = [made[0], late]
    for to, index, phase, _ in late.out:
        deliver_to[to].take_piece(1, index, phase, None)
    for _, index, phase, _ in made[0].out:
        late.take_piece(0, index, phase, made[0].result[late.span(index)])
    assert late.is_done and late.result.tobytes() == made[0].result.tobytes()


def test_no_more_than_the_window_is_under_way() -> None:
    flow = flows(2, 100, 5, ALGORITHMS["all"], np.random.default_rng(1), window=4)[0]
    flow.send_first_pieces()
    assert len(flow.out) == 4
    flow.take_piece(1, 0, Phase.UP, np.zeros(5, np.float32))
    assert len(flow.out) == 5


def test_what_is_no_piece_of_it_is_refused() -> None:
    flow = flows(2, 10, 5, ALGORITHMS["all"], np.random.default_rng(1))[0]
    for index, data in [(7, np.zeros(5, np.float32)), (0, np.zeros(4, np.float32)), (0, np.zeros(5)), (0, None)]:
        with pytest.raises(ProtocolError):
            flow.take_piece(1, index, Phase.UP, data)


def test_parts_cover_a_run_once() -> None:
    for count in (0, 1, 7, 100):
        for size in (1, 3):
            parts = parts_of(count, size, 8)
            assert [index for part in parts for index in range(part.start, part.stop)] == list(range(count))
    assert slots([3, 0, 2], 2) == [RunSegment(0, 2, 0), RunSegment(2, 3, 0), RunSegment(3, 5, 2)]


def test_sums_are_taken_in_their_order() -> None:
    rng = np.random.default_rng(2)
    for count in range(1, 10):
        arrays = [rng.normal(size=33).astype(np.float32) for _ in range(count)]
        wanted = arrays[0]
        for other in arrays[1:]:
            wanted = wanted + other
        out = np.empty(33, np.float32)
        total(out, arrays)
        assert out.tobytes() == wanted.tobytes()


def test_arrays_are_owned_whole_if_that_is_nearly_fair() -> None:
    parts, first = owned([50, 52, 48, 50], 2, 60)
    assert first == [0, 102] and [(p.start, p.stop, p.root) for p in parts] == [
        (0, 60, 0), (102, 162, 1), (60, 102, 0), (162, 200, 1),
    ]  # fmt: skip
    assert owned([100], 2, 1000)[1] == [0, 50] and owned([0, 3], 4, 9)[1] == [0, 0, 1, 2]
    for sizes in ([], [0], [7], [3, 90, 2, 2], [1] * 9):
        for size in (1, 2, 5):
            covered = sorted(index for part in owned(sizes, size, 4)[0] for index in range(part.start, part.stop))
            assert covered == list(range(sum(sizes)))


def test_a_part_on_a_board_is_seen_when_it_is_whole() -> None:
    board = np.zeros(2 * (PLACE_NBYTES + 256), np.uint8)
    own, other = (BoardSlot(board, 1) for _ in range(2))
    own.part_memory(8)[:] = 7
    assert other.read_part(3, 8) is None
    own.publish_part(3, "all_reduce")
    found = other.read_part(3, 8)
    assert found is not None and found[0] == "all_reduce" and found[1].tolist() == [7] * 8
    assert other.read_part(4, 8) is None and BoardSlot(board, 0).read_part(3, 8) is None
