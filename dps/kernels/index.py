"""Kernels of a hash index from int64 keys to row numbers: buckets of five keys with their rows, a cache line each.

A table is one array `lines` (buckets, 8) int64 that begins at a cache line (`new_lines`): a bucket has five keys, then
five row numbers + 1 as uint32, or EMPTY where there is no key (so that a new table is memory that nobody has touched),
and at last, as uint32, how many keys of other buckets lie behind this one because it was full when they came (as in
F14, Bronson and Shi 2019). A search ends at a bucket that nobody passed, so a removed key leaves no mark.

The bucket of a key is prefetched while PREFETCHED keys before it are searched, so that the processor waits for several
cache lines at the same time.
"""

from __future__ import annotations

import contextlib
import mmap
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from dps.kernels.jit import compiled
from dps.kernels.rows import prefetch_line

WIDTH = 5
"""Keys of a bucket."""
HUGE_NBYTES = 1 << 21
LINE, WORDS = 64, 16
"""Bytes of a bucket, and how many uint32 they are."""
ROWS, PASSED = 10, 15
"""Of these uint32 the first row number, and the count."""
EMPTY, ONE, KEYS = np.uint32(0), np.int64(1), np.int64((1 << WIDTH) - 1)
PREFETCHED = 16
"""A power of 2."""

U = np.uint64
MIX1, MIX2 = U(0xBF58476D1CE4E5B9), U(0x94D049BB133111EB)
S30, S27, S31, S32, LOW32 = U(30), U(27), U(31), U(32), U(0xFFFFFFFF)


def new_lines(buckets: int) -> Any:
    """A table without keys, int64 (buckets, 8), in memory that nobody has touched. numpy's own may have been used: then
    a ps fills it with zeros, 1 ms for 2 MB."""
    memory = mmap.mmap(-1, buckets * LINE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE") and buckets * LINE >= HUGE_NBYTES:
        with contextlib.suppress(OSError):  # a system without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.int64).reshape(buckets, LINE // 8)


@intrinsic
def equal_in_line(context: Any, address: Any, key: Any) -> Any:
    """Which of the eight int64 at an address equal a key: bit n for number n. A seventh of a search's time less than
    one comparison after the other."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        line, bit = ir.VectorType(ir.IntType(64), 8), ir.IntType(32)
        some = ir.Constant(line, ir.Undefined)
        one = builder.insert_element(some, args[1], bit(0))
        every = builder.shuffle_vector(one, some, ir.Constant(ir.VectorType(bit, 8), [0] * 8))
        found = builder.load(builder.inttoptr(args[0], line.as_pointer()), align=8)
        mask = builder.bitcast(builder.icmp_signed("==", found, every), ir.IntType(8))
        return builder.zext(mask, ir.IntType(64))

    return types.int64(types.int64, types.int64), generate


@intrinsic
def lowest_bit(context: Any, mask: Any) -> Any:
    """The number of the lowest bit of an int64 that is set; one is."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), generate


@compiled
def home_of(key: Any, buckets: Any) -> Any:
    """The bucket in which the search for a key begins: the upper half of its hash, scaled (SplitMix64's finaliser)."""
    x = U(key)
    x = (x ^ (x >> S30)) * MIX1
    x = (x ^ (x >> S27)) * MIX2
    x = x ^ (x >> S31)
    return np.int64(((x >> S32) * U(buckets)) >> S32)


@compiled
def prefetch_bucket(lines: Any, bucket: Any) -> None:
    """Have the processor read a bucket."""
    prefetch_line(np.int64(lines.ctypes.data) + bucket * LINE)  # type: ignore[call-arg]  # as in dps.kernels.rows


@compiled
def words_of(lines: Any) -> Any:
    """A table as uint32, flat."""
    return lines.reshape(lines.size).view(np.uint32)


@compiled
def find_one(lines: Any, words: Any, key: Any, home: Any) -> Any:
    """The place of a key's row among a table's uint32; -1 if the key is not there.

    All keys of a bucket are compared together: a loop that ends early is mispredicted for nearly every key, which takes
    three times as long. A place that is empty may still have a key. Indices are unsigned, because numba looks whether
    others are negative."""
    start, bucket = np.int64(lines.ctypes.data), home
    for _ in range(lines.shape[0]):
        same = equal_in_line(start + bucket * LINE, key) & KEYS  # type: ignore[call-arg]  # as in dps.kernels.rows
        while same:
            place = bucket * WORDS + ROWS + lowest_bit(same)
            if words[U(place)] != EMPTY:
                return place
            same &= same - ONE
        if words[U(bucket * WORDS + PASSED)] == 0:
            return np.int64(-1)
        bucket = bucket + ONE if bucket + ONE < lines.shape[0] else np.int64(0)
    return np.int64(-1)


@compiled
def find_rows(found: Any, wanted: Any, lines: Any) -> Any:
    """Write the row of each of `wanted`, int64 (n,), to `found`, int64 (n,), for those that are there and whose number
    in `found` is below 0. Returns how many are below 0 after that."""
    buckets, missing, n, words = lines.shape[0], 0, wanted.size, words_of(lines)
    homes = np.empty(PREFETCHED, np.int64)
    for i in range(n + PREFETCHED):
        turn, at = i & (PREFETCHED - 1), i - PREFETCHED
        if at >= 0 and found[at] < 0:
            place = find_one(lines, words, wanted[at], homes[turn])
            if place >= 0:
                found[at] = np.int64(words[U(place)]) - ONE
            else:
                missing += 1
        if i < n and found[i] < 0:
            home = home_of(wanted[i], buckets)
            homes[turn] = home
            prefetch_bucket(lines, home)
    return missing


@compiled
def insert_one(lines: Any, words: Any, key: Any, row: Any) -> Any:
    """Add a key that is not there, with a row number + 1. Returns False if all buckets are full; then nothing has
    changed."""
    bucket = home_of(key, lines.shape[0])
    first = bucket
    for distance in range(lines.shape[0]):
        for slot in range(WIDTH):
            if words[bucket * WORDS + ROWS + slot] == EMPTY:
                lines[bucket, slot] = key
                words[bucket * WORDS + ROWS + slot] = row
                for _ in range(distance):
                    words[first * WORDS + PASSED] += 1
                    first = first + 1 if first + 1 < lines.shape[0] else 0
                return True
        bucket = bucket + 1 if bucket + 1 < lines.shape[0] else 0
    return False


@compiled
def remove_at(lines: Any, words: Any, place: Any) -> None:
    """Remove the key whose row is at a place."""
    last, slot = place // WORDS, place % WORDS - ROWS
    bucket = home_of(lines[last, slot], lines.shape[0])
    words[place] = EMPTY
    while bucket != last:
        words[bucket * WORDS + PASSED] -= 1
        bucket = bucket + 1 if bucket + 1 < lines.shape[0] else 0


@compiled
def insert_keys(added: Any, numbers: Any, lines: Any) -> Any:
    """Add keys that are not there, int64 (n,), with their row numbers + 1, uint32 (n,). Returns how many were added."""
    words = words_of(lines)
    for i in range(added.size):
        if i + PREFETCHED < added.size:
            prefetch_bucket(lines, home_of(added[i + PREFETCHED], lines.shape[0]))
        if not insert_one(lines, words, added[i], numbers[i]):
            return i
    return added.size


@compiled
def remove_keys(removed: Any, freed: Any, lines: Any) -> None:
    """Remove keys, int64 (n,), and write the row of each to `freed`, int64 (n,): -1 for a key that is not there. A row
    that is 0 or more already is left."""
    words = words_of(lines)
    for i in range(removed.size):
        if freed[i] < 0:
            place = find_one(lines, words, removed[i], home_of(removed[i], lines.shape[0]))
            if place >= 0:
                freed[i] = np.int64(words[place]) - ONE
                remove_at(lines, words, place)


@compiled
def move_buckets(start: Any, stop: Any, old: Any, new: Any) -> None:
    """Move all keys of these buckets of a table to another one, which has room."""
    old_words, new_words = words_of(old), words_of(new)
    for bucket in range(start, stop):
        if bucket + 2 < stop:
            for slot in range(WIDTH):
                if old_words[(bucket + 2) * WORDS + ROWS + slot] != EMPTY:
                    prefetch_bucket(new, home_of(old[bucket + 2, slot], new.shape[0]))
        for slot in range(WIDTH):
            place = bucket * WORDS + ROWS + slot
            if old_words[place] != EMPTY:
                key, row = old[bucket, slot], old_words[place]
                remove_at(old, old_words, place)
                insert_one(new, new_words, key, row)


@compiled
def write_keys(out: Any, lines: Any) -> None:
    """Write each key of a table to `out`, int64, at its row number."""
    words = words_of(lines)
    for bucket in range(lines.shape[0]):
        for slot in range(WIDTH):
            row = words[bucket * WORDS + ROWS + slot]
            if row != EMPTY:
                out[np.int64(row) - ONE] = lines[bucket, slot]
