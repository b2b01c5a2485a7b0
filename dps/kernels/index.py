"""Kernels of a hash index from int64 keys to row numbers: buckets of eight keys, a cache line each.

A table has the arrays `keys` (buckets, 8) int64, `rows` (buckets, 8) uint32, a row number + 1, or EMPTY where there is
no key (so that a new table is memory that nobody has touched), and `passed` (buckets,) uint8: how many keys of other
buckets lie behind this one because it was full when they came (as in F14, Bronson and Shi 2019). A search ends at a
bucket that nobody passed, so a removed key leaves no mark. A count of 255 stays.

The bucket of a key is prefetched while PREFETCHED keys before it are searched, so that the processor waits for several
cache lines at the same time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dps.kernels.jit import compiled
from dps.kernels.rows import prefetch_line

WIDTH = 8
EMPTY, ONE = np.uint32(0), np.int64(1)
FULL = 255
PREFETCHED = 16
"""A power of 2."""
KEY_NBYTES, ROW_NBYTES = 8, 4

U = np.uint64
MIX1, MIX2 = U(0xBF58476D1CE4E5B9), U(0x94D049BB133111EB)
S30, S27, S31, S32, LOW32 = U(30), U(27), U(31), U(32), U(0xFFFFFFFF)


@compiled
def home_of(key: Any, buckets: Any) -> Any:
    """The bucket in which the search for a key begins: the upper half of its hash, scaled (SplitMix64's finaliser)."""
    x = U(key)
    x = (x ^ (x >> S30)) * MIX1
    x = (x ^ (x >> S27)) * MIX2
    x = x ^ (x >> S31)
    return np.int64(((x >> S32) * U(buckets)) >> S32)


@compiled
def prefetch_bucket(of_keys: Any, of_rows: Any, bucket: Any) -> None:
    """Have the processor read a bucket. `of_keys`, `of_rows`: the addresses of a table's arrays, int64."""
    prefetch_line(of_keys + bucket * WIDTH * KEY_NBYTES)  # type: ignore[call-arg]  # as in dps.kernels.rows
    prefetch_line(of_rows + bucket * WIDTH * ROW_NBYTES)


@compiled
def find_one(keys: Any, rows: Any, passed: Any, key: Any, home: Any) -> Any:
    """The place of a key, bucket * 8 + slot; -1 if it is not there. `keys` and `rows` are flat.

    All slots of a bucket are compared: a loop that ends early is mispredicted for nearly every key, which takes three
    times as long. Places are unsigned, because numba looks whether others are negative."""
    bucket, buckets = U(home), U(passed.size)
    for _ in range(passed.size):
        first, found = bucket * U(WIDTH), U(WIDTH)
        for slot in range(WIDTH):
            if keys[first + U(slot)] == key:
                found = U(slot) if rows[first + U(slot)] != EMPTY else found
        if found < U(WIDTH):
            return np.int64(first + found)
        if passed[bucket] == 0:
            return np.int64(-1)
        bucket = bucket + U(1)
        bucket = U(0) if bucket == buckets else bucket
    return np.int64(-1)


@compiled
def find_rows(found: Any, wanted: Any, keys: Any, rows: Any, passed: Any) -> Any:
    """Write the row of each of `wanted`, int64 (n,), to `found`, int64 (n,), for those that are there and whose number
    in `found` is below 0. Returns how many are below 0 after that."""
    buckets, missing, n = keys.shape[0], 0, wanted.size
    homes = np.empty(PREFETCHED, np.int64)
    of_keys, of_rows = np.int64(keys.ctypes.data), np.int64(rows.ctypes.data)
    flat_keys, flat_rows = keys.reshape(keys.size), rows.reshape(rows.size)
    for i in range(n + PREFETCHED):
        turn, at = i & (PREFETCHED - 1), i - PREFETCHED
        if at >= 0 and found[at] < 0:
            place = find_one(flat_keys, flat_rows, passed, wanted[at], homes[turn])
            if place >= 0:
                found[at] = np.int64(flat_rows[place]) - ONE
            else:
                missing += 1
        if i < n:
            home = home_of(wanted[i], buckets)
            homes[turn] = home
            prefetch_bucket(of_keys, of_rows, home)
    return missing


@compiled
def insert_one(keys: Any, rows: Any, passed: Any, key: Any, row: Any) -> Any:
    """Add a key that is not there, with a row number + 1. Returns False if all buckets are full; then nothing has
    changed."""
    bucket = home_of(key, keys.shape[0])
    first = bucket
    for distance in range(keys.shape[0]):
        for slot in range(WIDTH):
            if rows[bucket, slot] == EMPTY:
                keys[bucket, slot] = key
                rows[bucket, slot] = row
                for _ in range(distance):
                    if passed[first] < FULL:
                        passed[first] += 1
                    first = first + 1 if first + 1 < keys.shape[0] else 0
                return True
        bucket = bucket + 1 if bucket + 1 < keys.shape[0] else 0
    return False


@compiled
def remove_at(keys: Any, rows: Any, passed: Any, place: Any) -> None:
    """Remove the key at a place."""
    last = place // WIDTH
    bucket = home_of(keys[last, place % WIDTH], keys.shape[0])
    rows[last, place % WIDTH] = EMPTY
    while bucket != last:
        if passed[bucket] < FULL:
            passed[bucket] -= 1
        bucket = bucket + 1 if bucket + 1 < keys.shape[0] else 0


@compiled
def insert_keys(added: Any, numbers: Any, keys: Any, rows: Any, passed: Any) -> Any:
    """Add keys that are not there, int64 (n,), with their row numbers + 1, uint32 (n,). Returns how many were added."""
    of_keys, of_rows = np.int64(keys.ctypes.data), np.int64(rows.ctypes.data)
    for i in range(added.size):
        if i + PREFETCHED < added.size:
            prefetch_bucket(of_keys, of_rows, home_of(added[i + PREFETCHED], keys.shape[0]))
        if not insert_one(keys, rows, passed, added[i], numbers[i]):
            return i
    return added.size


@compiled
def remove_keys(removed: Any, freed: Any, keys: Any, rows: Any, passed: Any) -> None:
    """Remove keys, int64 (n,), and write the row of each to `freed`, int64 (n,): -1 for a key that is not there. A row
    that is 0 or more already is left."""
    for i in range(removed.size):
        if freed[i] < 0:
            home = home_of(removed[i], keys.shape[0])
            place = find_one(keys.reshape(keys.size), rows.reshape(rows.size), passed, removed[i], home)
            if place >= 0:
                freed[i] = np.int64(rows[place // WIDTH, place % WIDTH]) - ONE
                remove_at(keys, rows, passed, place)


@compiled
def move_buckets(start: Any, stop: Any, old: Any, new: Any) -> None:
    """Move all keys of these buckets of a table to another one, which has room. A table: (keys, rows, passed)."""
    keys, rows, passed = old
    of_keys, of_rows = np.int64(new[0].ctypes.data), np.int64(new[1].ctypes.data)
    for bucket in range(start, stop):
        if bucket + 1 < stop:
            for slot in range(WIDTH):
                prefetch_bucket(of_keys, of_rows, home_of(keys[bucket + 1, slot], new[0].shape[0]))
        for slot in range(WIDTH):
            if rows[bucket, slot] != EMPTY:
                key, row = keys[bucket, slot], rows[bucket, slot]
                remove_at(keys, rows, passed, bucket * WIDTH + slot)
                insert_one(new[0], new[1], new[2], key, row)
