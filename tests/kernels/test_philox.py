"""First values that kernels make: their bits, on this and every other machine, and their distributions."""

from __future__ import annotations

import itertools
import math
import os
import platform
import subprocess
import sys
from functools import cache
from pathlib import Path
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import llvmlite.binding as llvm  # type: ignore[import-untyped]
import numpy as np
import pytest
from hypothesis import given, settings

import dps
from dps.kernels import philox
from dps.kernels.first_values import SCRATCH, FirstValues, key_of, made

MOST = 0xFFFFFFFF
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((MOST,) * 4, (MOST, MOST), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]  # fmt: skip
"""Counter, key and words, of Random123's kat_vectors (philox4x32, 10 rounds)."""
PLACES = 0, 1, 511, 1029, 2047
FROZEN = [
    (
        dps.init.Uniform(low=-0.05, high=0.05, seed=3),
        "float32",
        [0xBD44E918, 0xBC9866EA, 0xBBA3AAC0, 0xBD1B208D, 0x3D1AC1A5],
    ),
    (
        dps.init.Uniform(low=-0.05, high=0.05, seed=3),
        "float64",
        [0xBFA89D22FFEEC684, 0xBF930CDD0067CCA0, 0xBF7475570C343F70, 0xBF754569BF34EE40, 0xBF9D8E37F1451034],
    ),
    (
        dps.init.Normal(stddev=0.01, mean=0.0, seed=1),
        "float32",
        [0xBB8F30CD, 0xBB0C97A2, 0x3BB959E1, 0x3CC5AB64, 0xBAE05CE7],
    ),
    (
        dps.init.Normal(stddev=0.01, mean=0.0, seed=1),
        "float64",
        [0xBF71E619B8BD045F, 0xBF6192F44AB7C10F, 0x3F772B3BEF0CB064, 0x3F4F7D5A8CA3A790, 0xBF878FF2B1FAC921],
    ),
    (
        dps.init.TruncatedNormal(stddev=0.5, mean=1.0, seed=0),
        "float32",
        [0x3F3CBCB6, 0x3F6984A2, 0x3FC06E7B, 0x3F98611A, 0x3F7B07A6],
    ),
    (
        dps.init.TruncatedNormal(stddev=0.5, mean=1.0, seed=0),
        "float64",
        [0x3FE79796BD2DD7F5, 0x3FED30944569D52E, 0x3FF80DCF69997030, 0x3FF23760F70CB7C0, 0x3FE79D98708443C8],
    ),
    (dps.init.GlorotUniform(seed=2), "float32", [0x3DFDEB14, 0x3DFD2554, 0x3BD94F00, 0xBD9FA1B8, 0xBE03E8A4]),
    (
        dps.init.GlorotUniform(seed=2),
        "float64",
        [0x3FBFBD628B165BD4, 0x3FBFA4AA9734B574, 0x3F7B29E4637E9EC0, 0x3FB1948F2A60D048, 0xBFBB6E627327B248],
    ),
    (dps.init.GlorotNormal(seed=0), "float32", [0xBDB09826, 0xBCEC1965, 0x3E292935, 0x3D80033D, 0xBBD0C79A]),
    (
        dps.init.GlorotNormal(seed=0),
        "float64",
        [0xBFB61304ADC7F890, 0xBF9D832C84089620, 0x3FC52526B56BEC3A, 0x3FA74677943B62EF, 0xBFB6033F8B4C714B],
    ),
    (dps.init.HeUniform(seed=0), "float32", [0x3E03A42A, 0x3D3730F0, 0xBDB06EA4, 0xBE580F82, 0x3C22C920]),
    (
        dps.init.HeUniform(seed=0),
        "float64",
        [0x3FC0748559453F7E, 0x3FA6E61E053D8EE8, 0xBFB60DD42090DBD0, 0xBFCE3AFDCEDE4E1F, 0x3FC069CDC80A4786],
    ),
    (
        dps.init.HeNormal(seed=9223372036854775807),
        "float32",
        [0xBCD8014A, 0x3D39076C, 0xBE3FCC12, 0xBCA9DB5E, 0xBEB4850E],
    ),
    (
        dps.init.HeNormal(seed=9223372036854775807),
        "float64",
        [0xBF9B002944B3D1C2, 0x3FA720ED78356C4B, 0xBFC7F9822DE8747C, 0x3F921F74ED1C2882, 0xBFB7F520756C5591],
    ),
]
"""The bits of these elements of a (64, 32) variable "user/table"."""
RANDOM = [
    dps.init.Uniform(-0.5, 2.0), dps.init.Normal(0.25, mean=1.0), dps.init.TruncatedNormal(0.25, mean=1.0),
    dps.init.GlorotUniform(), dps.init.GlorotNormal(), dps.init.HeUniform(), dps.init.HeNormal(),
]  # fmt: skip


@cache
def plain() -> Any:
    """The kernels' own source, as Python and numpy compute it."""
    source = Path(philox.__file__).read_text().replace("from dps.kernels.jit import compiled", "compiled = lambda f: f")
    namespace: dict[str, Any] = {"__name__": "plain"}
    exec(compile(source, philox.__file__, "exec"), namespace)
    return SimpleNamespace(**namespace)


def bits(array: Any) -> Any:
    return array.reshape(-1).view(f"u{array.itemsize}")


def philox_words(counter: tuple[int, ...], key: tuple[int, int]) -> tuple[int, ...]:
    """Philox4x32-10 with the numbers of Python, which know no size."""
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(10):
        left, right = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (right >> 32) ^ b ^ k0, right & MOST, (left >> 32) ^ d ^ k1, left & MOST
        k0, k1 = (k0 + 0x9E3779B9) & MOST, (k1 + 0xBB67AE85) & MOST
    return a, b, c, d


def test_the_generator_is_philox_with_its_published_words() -> None:
    for counter, key, wanted in KNOWN:
        assert philox_words(counter, key) == wanted
    words = np.empty(philox.GROUP, np.uint32)
    for group, keys in (0, (0, 0)), (0, (1, 2)), (3, (MOST, 0)), ((1 << 38) - 1, (7, 0xDEADBEEF)):
        philox.fill_words(words, group, np.uint64(keys[0]), np.uint64(keys[1]))
        for place in 0, 1, 255:
            counter = group * philox.BLOCKS + place
            wanted = philox_words((counter & MOST, counter >> 32, 0, 0), keys)
            assert tuple(words[place :: philox.BLOCKS]) == wanted


@pytest.mark.parametrize(("init", "dtype", "wanted"), FROZEN, ids=lambda value: getattr(value, "kind", None))
def test_the_bits_of_each_initializer_stay_as_they_are(init: Any, dtype: str, wanted: list[int]) -> None:
    assert bits(made(init, "user/table", (64, 32), dtype))[list(PLACES)].tolist() == wanted


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from([0, 1, 2]), first=st.integers(0, 1 << 40), n=st.integers(1, 1500),
    key=st.tuples(st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 32) - 1)), single=st.booleans(),
)  # fmt: skip
def test_compiled_kernels_and_plain_python_compute_the_same_bits(
    kind: int, first: int, n: int, key: tuple[int, int], single: bool
) -> None:
    number: Any = np.float32 if single else np.float64
    found, wanted = np.empty(n, number), np.empty(n, number)
    keys = tuple(map(np.uint64, key))
    scalars = number(0.1), number(0.3), number(0.39 if kind == 0 else math.inf)
    name = "fill32" if single else "fill64"
    getattr(philox, name)(found, first, *keys, kind, *scalars)
    getattr(plain(), name)(wanted, first, *keys, kind, *scalars)
    assert np.array_equal(bits(found), bits(wanted))


@settings(max_examples=40, deadline=None)
@given(
    init=st.sampled_from(RANDOM), dtype=st.sampled_from(["float16", "float32", "float64"]),
    cuts=st.lists(st.integers(0, 5000), max_size=6),
)  # fmt: skip
def test_any_cut_into_ranges_gives_the_same_bits(init: Any, dtype: str, cuts: list[int]) -> None:
    values, whole = FirstValues(init, "w", (500, 10), dtype), made(init, "w", (500, 10), dtype).reshape(-1)
    edges = sorted({0, 5000, *cuts})
    pieces = []
    for start, stop in itertools.pairwise(edges):
        piece = np.empty(stop - start, dtype)
        values.fill(piece, start)
        pieces.append(piece)
    assert np.array_equal(bits(np.concatenate(pieces)), bits(whole))


def test_halves_are_rounded_single_numbers_also_over_several_pieces() -> None:
    size, init = SCRATCH + 1000, dps.init.Normal(0.02)
    single = made(init, "w", (size,), "float32")
    assert np.array_equal(made(init, "w", (size,), "float16"), single.astype(np.float16))
    ml_dtypes = pytest.importorskip("ml_dtypes")
    rounded = made(init, "w", (size,), ml_dtypes.bfloat16)
    assert np.array_equal(rounded.view(np.uint16), single.astype(ml_dtypes.bfloat16).view(np.uint16))


def test_the_key_depends_on_seed_and_name_alone() -> None:
    assert key_of(1, "a/w") == key_of(1, "a/w")
    assert len({key_of(seed, name) for seed in (0, 1, 11) for name in ("w", "1w", "a/w", "ü", "\ud800")}) == 15


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_normal_numbers_are_the_quantiles_of_their_words(dtype: str) -> None:
    keys = key_of(5, "w")
    words = np.empty(philox.GROUP, np.uint32)
    found = made(dps.init.Normal(1.0, seed=5), "w", (512,), dtype)
    philox.fill_words(words, 0, *keys)
    if dtype == "float32":
        sign, q = words[:512] >> 31, ((words[:512] & 0x7FFFFFFF) + 0.5) * 2.0**-32
    else:
        pair = (words[:512].astype(np.uint64) << np.uint64(32)) | words[512:]
        rest = (pair >> np.uint64(11)) & np.uint64((1 << 52) - 1)
        sign, q = words[:512] >> 31, (rest.astype(np.float64) + 0.5) * 2.0**-53
    wanted = np.array([NormalDist().inv_cdf(0.5 + p) for p in q]) * np.where(sign, -1, 1)
    assert np.abs(found - wanted).max() < (1e-6 if dtype == "float32" else 1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tails_of_normal_numbers_reach_as_far_as_their_bits(dtype: str) -> None:
    """The words of the least and the largest probability, and those on both sides of where the formula changes."""
    tail = 2.0**-33 if dtype == "float32" else 2.0**-54
    tails = np.array([tail, 1e-9, 1.38e-11 if dtype == "float64" else 1e-8, 0.0749, 0.0750], dtype)
    function = philox.outside32 if dtype == "float32" else philox.outside64
    for t in tails:
        assert function(t) == pytest.approx(-NormalDist().inv_cdf(float(t)), rel=1e-6 if dtype == "float32" else 1e-13)


def uniform_of(init: Any, x: Any, shape: tuple[int, ...]) -> Any:
    """The distribution function of an initializer at sorted numbers."""
    drawn, normal = init.drawn(shape), NormalDist()
    if drawn.kind == "uniform":
        return (x - drawn.low) / (drawn.high - drawn.low)
    z = (x - drawn.mean) / drawn.stddev
    at = np.interp(z, grid := np.linspace(-7, 7, 20001), [normal.cdf(g) for g in grid])
    low = normal.cdf(-2) if drawn.kind == "truncated_normal" else 0.0
    return (at - low) / (1 - 2 * low)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("init", RANDOM, ids=lambda init: init.kind)
def test_values_have_their_distribution(init: Any, dtype: str) -> None:
    """Mean and standard deviation within 5 of their errors; the Kolmogorov-Smirnov distance below its 1 in 100,000."""
    shape = 500, 400
    values = made(init, "w", shape, dtype).astype(np.float64).reshape(-1)
    drawn, n = init.drawn(shape), values.size
    if drawn.kind == "uniform":
        mean, stddev = (drawn.low + drawn.high) / 2, (drawn.high - drawn.low) / math.sqrt(12)
        assert drawn.low <= values.min() < drawn.low + 1e-3 and drawn.high - 1e-3 < values.max() < drawn.high
    else:
        mean, cut = drawn.mean, drawn.kind == "truncated_normal"
        stddev = drawn.stddev * (0.87962566103423978 if cut else 1.0)
        reach = np.abs(values - mean).max() / drawn.stddev
        assert 1.99 < reach <= 2.000001 if cut else 4.0 < reach < 6.5
    assert abs(values.mean() - mean) < 5 * stddev / math.sqrt(n)
    assert abs(values.std() / stddev - 1) < 5 / math.sqrt(2 * n)
    empirical = np.arange(1, n + 1) / n
    distance = np.abs(empirical - uniform_of(init, np.sort(values), shape)).max()
    assert distance < 2.47 / math.sqrt(n)
    lag = np.corrcoef(values[:-1], values[1:])[0, 1], np.corrcoef(values[:-256], values[256:])[0, 1]
    assert max(map(abs, lag)) < 5 / math.sqrt(n)


def test_two_variables_and_two_seeds_have_values_of_their_own() -> None:
    found = [made(dps.init.Normal(1.0, seed=seed), name, (10000,), "float32") for seed in (0, 1) for name in "ab"]
    correlations = np.corrcoef(found)[np.triu_indices(4, 1)]
    assert np.abs(correlations).max() < 0.05


def test_constants_are_exact_and_a_negative_zero_keeps_its_sign() -> None:
    assert made(dps.init.Constant(2**63), "w", (3,), "uint64").tolist() == [2**63] * 3
    assert made(dps.init.Constant(-7), "w", (2,), "int8").tolist() == [-7, -7]
    assert made(dps.init.Ones(), "w", (2,), "bool").tolist() == [True, True]
    assert np.signbit(made(dps.init.Constant(-0.0), "w", (2,), "float32")).all()
    assert made(dps.init.Zeros(), "w", (), "int64").shape == ()
    assert made(dps.init.Normal(0.0, mean=3.0), "w", (5,), "float32").tolist() == [3.0] * 5
    assert made(dps.init.Uniform(0.25, 0.25), "w", (5,), "float32").tolist() == [0.25] * 5


BITS = """
import numpy as np
from tests.kernels.test_philox import FROZEN, PLACES, bits
from dps.kernels.first_values import made
for init, dtype, wanted in FROZEN:
    assert bits(made(init, "user/table", (64, 32), dtype))[list(PLACES)].tolist() == wanted, (init, dtype)
"""


@pytest.mark.nightly
@pytest.mark.parametrize("target", ["x86-64", "haswell", "skylake-avx512"])
def test_code_for_other_processors_computes_the_same_bits(target: str, tmp_path: Path) -> None:
    """For one without vectors of four numbers and without fused products, and for those that have them."""
    features = {
        "x86-64": "+sse2", "haswell": "+avx2,+fma,+bmi,+bmi2",
        "skylake-avx512": "+avx2,+fma,+bmi,+bmi2,+avx512f,+avx512dq,+avx512vl,+avx512bw",
    }[target]  # fmt: skip
    here = llvm.get_host_cpu_features()
    if platform.machine() != "x86_64" or not all(here.get(name[1:]) for name in features.split(",")):
        pytest.skip("this processor cannot run that code")
    own = {"NUMBA_CPU_NAME": target, "NUMBA_CPU_FEATURES": features, "NUMBA_CACHE_DIR": str(tmp_path)}
    root = Path(__file__).parents[2]
    environ = {**os.environ, **own, "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", BITS], env=environ, cwd=root, check=False, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
