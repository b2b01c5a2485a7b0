"""Random numbers whose bits depend on a key and on the position of the element alone: first values of variables.

The generator is Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"), which is a function
of a counter. Elements come in groups, so that the loops below run in vector registers: the words of group `g` are the
four words of the counters `256 g` to `256 g + 255`, first words first. An element of float32 takes one word of the
1,024, an element of float64 two words of 512 pairs. A range may begin and end anywhere in a group.

Normal numbers are the inverse of the normal distribution function at one uniform number (Wichura 1988, AS 241: PPND7
for float32, PPND16 for float64), so that a truncated normal needs no rejection and an element's value does not depend
on its neighbours. Logarithms are polynomials of this file (float32: Cephes; float64: fdlibm). Besides these there are
only +, -, *, / and square roots, which IEEE 754 rounds exactly, and nothing is contracted (`compiled`). So each CPU
computes the same bits.

All integers are uint64, because numba converts a mixture of signs to floats.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dps.kernels.jit import compiled

GROUP = 1024
"""The words of a group."""
BLOCKS = GROUP // 4
"""The counters of a group."""
PAIRS = GROUP // 2
"""The float64 elements of a group."""

F, D, U = np.float32, np.float64, np.uint64
M0, M1 = U(0xD2511F53), U(0xCD9E8D57)
W0, W1 = U(0x9E3779B9), U(0xBB67AE85)
LOW, HALF = U(0xFFFFFFFF), U(32)


@compiled
def fill_words(words: Any, group: Any, key0: Any, key1: Any) -> None:
    """The words of a group: uint32 (1,024,). `key0`, `key1`: uint64 below 2**32."""
    first = U(group) * U(BLOCKS)
    for i in range(BLOCKS):
        counter = first + U(i)
        a, b, c, d = counter & LOW, counter >> HALF, U(0), U(0)
        k0, k1 = key0, key1
        for _ in range(10):
            left, right = M0 * a, M1 * c
            a, b, c, d = (right >> HALF) ^ b ^ k0, right & LOW, (left >> HALF) ^ d ^ k1, left & LOW
            k0, k1 = (k0 + W0) & LOW, (k1 + W1) & LOW
        words[i] = a
        words[BLOCKS + i] = b
        words[2 * BLOCKS + i] = c
        words[3 * BLOCKS + i] = d


# -- float32 --------------------------------------------------------------------------------------------------

F0, F1, FHALF = F(0), F(1), F(0.5)
UNIT24 = F(2.0**-24)
UNIT32 = F(2.0**-32)
MANTISSA, ONE_BITS, SQRT_HALF = np.int32(0x7FFFFF), np.int32(0x3F000000), F(0.70710678)
EXPONENT, BIAS = np.int32(23), np.int32(126)
L0, L1, L2 = F(7.0376836292e-2), F(-1.1514610310e-1), F(1.1676998740e-1)
L3, L4, L5 = F(-1.2420140846e-1), F(1.4249322787e-1), F(-1.6668057665e-1)
L6, L7, L8 = F(2.0000714765e-1), F(-2.4999993993e-1), F(3.3333331174e-1)
LN2_LOW, LN2_HIGH = F(-2.12194440e-4), F(0.693359375)


@compiled
def log32(x: Any) -> Any:
    """The natural logarithm of a normal float32 above 0, to 1e-7 (Cephes, logf.c)."""
    bits = F(x).view(np.int32)
    exponent = F((bits >> EXPONENT) - BIAS)
    m = np.int32((bits & MANTISSA) | ONE_BITS).view(np.float32)  # from 0.5 to 1
    below = m < SQRT_HALF
    exponent = exponent - F1 if below else exponent
    m = (m + m if below else m) - F1
    square = m * m
    y = ((((((((L0 * m + L1) * m + L2) * m + L3) * m + L4) * m + L5) * m + L6) * m + L7) * m + L8) * m * square
    y = y + exponent * LN2_LOW - FHALF * square
    return m + y + exponent * LN2_HIGH


SPLIT32, CENTRE32, FAR32, NEAR32 = F(0.425), F(0.180625), F(5.0), F(1.6)
A0, A1, A2, A3 = F(3.3871327179), F(50.434271938), F(159.29113202), F(59.109374720)
B1, B2, B3 = F(17.895169469), F(78.757757664), F(67.187563600)
C0, C1, C2, C3 = F(1.4234372777), F(2.7568153900), F(1.3067284816), F(0.17023821103)
D1, D2 = F(0.73700164250), F(0.12021132975)
E0, E1, E2, E3 = F(6.6579051150), F(3.0812263860), F(0.42868294337), F(0.017337203997)
F_1, F_2 = F(0.24197894225), F(0.012258202635)


@compiled
def centre32(q: Any) -> Any:
    """The normal quantile of 0.5 + `q`, for `q` from 0 to 0.425 (AS 241, PPND7)."""
    r = CENTRE32 - q * q
    return q * (((A3 * r + A2) * r + A1) * r + A0) / (((B3 * r + B2) * r + B1) * r + F1)


@compiled
def outside32(tail: Any) -> Any:
    """The normal quantile of 1 - `tail`, for `tail` above 0 up to 0.075."""
    root = np.sqrt(-log32(tail))
    near, far = root - NEAR32, root - FAR32
    top = ((C3 * near + C2) * near + C1) * near + C0
    low = (D2 * near + D1) * near + F1
    far_top = ((E3 * far + E2) * far + E1) * far + E0
    far_low = (F_2 * far + F_1) * far + F1
    is_far = root > FAR32
    numerator = far_top if is_far else top
    divisor = far_low if is_far else low
    return numerator / divisor


SIGN_BIT, REST, MOST = np.uint32(31), np.uint32(0x7FFFFFFF), np.int32(0x7FFFFFFF)
F2, WITHIN32 = F(2.0), F(0.9544997361036416)
"""`WITHIN32`: the probability within two standard deviations."""


@compiled
def normal_group32(z: Any, words: Any, qs: Any, outsides: Any) -> None:
    """The standard normal numbers of a group: the upper bit of a word is the sign, the others are the distance from the
    median. `qs` and `outsides` are scratch; one loop would not run in vector registers."""
    for i in range(GROUP):
        rest = np.int32(words[i] & REST)
        qs[i] = (F(rest) + FHALF) * UNIT32
        outsides[i] = outside32((F(MOST - rest) + FHALF) * UNIT32)
    for i in range(GROUP):
        centre = centre32(qs[i])
        outside = outsides[i]
        size = centre if qs[i] <= SPLIT32 else outside
        z[i] = size * (F1 - F2 * F(np.int32(words[i] >> SIGN_BIT)))


@compiled
def truncated_group32(z: Any, words: Any, qs: Any, outsides: Any) -> None:
    """As `normal_group32`, of a normal distribution without what is more than 2 from its mean."""
    for i in range(GROUP):
        q = (F(np.int32(words[i] & REST)) + FHALF) * UNIT32 * WITHIN32
        qs[i] = q
        outsides[i] = outside32(FHALF - q)
    for i in range(GROUP):
        centre = centre32(qs[i])
        outside = outsides[i]
        size = centre if qs[i] <= SPLIT32 else outside
        bounded = F2 if size > F2 else size
        z[i] = bounded * (F1 - F2 * F(np.int32(words[i] >> SIGN_BIT)))


EIGHT = np.uint32(8)
UNIFORM, NORMAL, TRUNCATED = 0, 1, 2
"""Kinds of numbers: from 0 up to 1 without it; standard normal; the same from -2 to 2."""


@compiled
def fill32(out: Any, first: Any, key0: Any, key1: Any, kind: Any, base: Any, factor: Any, top: Any) -> None:
    """Fill `out`, float32 (n,), the elements from `first` on, with `base` + z `factor`, at most `top`. `z` is of
    `kind`; a uniform one is a multiple of 2**-24."""
    words, z = np.empty(GROUP, np.uint32), np.empty(GROUP, np.float32)
    qs, outsides = np.empty(GROUP, np.float32), np.empty(GROUP, np.float32)
    done = 0
    while done < out.size:
        group = (first + done) // GROUP
        begin = first + done - group * GROUP
        n = min(GROUP - begin, out.size - done)
        fill_words(words, group, key0, key1)
        if kind == NORMAL:
            normal_group32(z, words, qs, outsides)
        elif kind == TRUNCATED:
            truncated_group32(z, words, qs, outsides)
        else:
            for i in range(GROUP):
                z[i] = F(np.int32(words[i] >> EIGHT)) * UNIT24
        for i in range(n):
            value = base + z[begin + i] * factor
            out[done + i] = top if value > top else value
        done += n


# -- float64 --------------------------------------------------------------------------------------------------

MANTISSA64, ONE_BITS64 = np.int64(0xFFFFFFFFFFFFF), np.int64(0x3FE0000000000000)
EXPONENT64, BIAS64 = np.int64(52), np.int64(1022)


@compiled
def log64(x: Any) -> Any:
    """The natural logarithm of a normal float64 above 0, to 1 ulp (fdlibm, e_log.c)."""
    bits = D(x).view(np.int64)
    exponent = D((bits >> EXPONENT64) - BIAS64)
    m = np.int64((bits & MANTISSA64) | ONE_BITS64).view(np.float64)  # from 0.5 to 1
    below = m < 0.7071067811865476
    exponent = exponent - 1.0 if below else exponent
    f = (m + m if below else m) - 1.0
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    even = w * (0.3999999999940941908 + w * (0.2222219843214978396 + w * 0.1531383769920937332))
    odd = z * (
        0.6666666666666735130 + w * (0.2857142874366239149 + w * (0.1818357216161805012 + w * 0.1479819860511658591))
    )
    half = 0.5 * f * f
    low = s * (half + (odd + even)) + exponent * 1.90821492927058770002e-10
    return exponent * 6.93147180369123816490e-01 - ((half - low) - f)


@compiled
def centre64(q: Any) -> Any:
    """As `centre32` (PPND16)."""
    r = 0.180625 - q * q
    top = 2.5090809287301226727e3 * r + 3.3430575583588128105e4
    top = (top * r + 6.7265770927008700853e4) * r + 4.5921953931549871457e4
    top = (top * r + 1.3731693765509461125e4) * r + 1.9715909503065514427e3
    top = (top * r + 1.3314166789178437745e2) * r + 3.3871328727963666080e0
    low = 5.2264952788528545610e3 * r + 2.8729085735721942674e4
    low = (low * r + 3.9307895800092710610e4) * r + 2.1213794301586595867e4
    low = (low * r + 5.3941960214247511077e3) * r + 6.8718700749205790830e2
    low = (low * r + 4.2313330701600911252e1) * r + 1.0
    return q * top / low


@compiled
def outside64(tail: Any) -> Any:
    """As `outside32` (PPND16)."""
    root = np.sqrt(-log64(tail))
    near, far = root - 1.6, root - 5.0
    top = 7.74545014278341407640e-4 * near + 2.27238449892691845833e-2
    top = (top * near + 2.41780725177450611770e-1) * near + 1.27045825245236838258e0
    top = (top * near + 3.64784832476320460504e0) * near + 5.76949722146069140550e0
    top = (top * near + 4.63033784615654529590e0) * near + 1.42343711074968357734e0
    low = 1.05075007164441684324e-9 * near + 5.47593808499534494600e-4
    low = (low * near + 1.51986665636164571966e-2) * near + 1.48103976427480074590e-1
    low = (low * near + 6.89767334985100004550e-1) * near + 1.67638483018380384940e0
    low = (low * near + 2.05319162663775882187e0) * near + 1.0
    far_top = 2.01033439929228813265e-7 * far + 2.71155556874348757815e-5
    far_top = (far_top * far + 1.24266094738807843860e-3) * far + 2.65321895265761230930e-2
    far_top = (far_top * far + 2.96560571828504891230e-1) * far + 1.78482653991729133580e0
    far_top = (far_top * far + 5.46378491116411436990e0) * far + 6.65790464350110377720e0
    far_low = 2.04426310338993978564e-15 * far + 1.42151175831644588870e-7
    far_low = (far_low * far + 1.84631831751005468180e-5) * far + 7.86869131145613259100e-4
    far_low = (far_low * far + 1.48753612908506148525e-2) * far + 1.36929880922735805310e-1
    far_low = (far_low * far + 5.99832206555887937690e-1) * far + 1.0
    is_far = root > 5.0
    numerator = far_top if is_far else top
    divisor = far_low if is_far else low
    return numerator / divisor


UNIT53, WITHIN64 = D(2.0**-53), D(0.9544997361036416)
ELEVEN, TWELVE, SIGN_BIT64, MOST64 = U(11), U(12), U(63), np.int64((1 << 52) - 1)


@compiled
def normal_group64(z: Any, words: Any, truncated: Any) -> None:
    """The standard normal numbers of a group of float64, or `truncated` ones: the upper bit of a pair of words is the
    sign, the next ones but 11 are the distance from the median."""
    for i in range(PAIRS):
        pair = (U(words[i]) << HALF) | U(words[PAIRS + i])
        rest = np.int64((pair >> ELEVEN) & U(MOST64))
        q = (D(rest) + 0.5) * UNIT53
        tail = (D(MOST64 - rest) + 0.5) * UNIT53
        if truncated:
            q = q * WITHIN64
            tail = 0.5 - q
        size = centre64(q) if q <= 0.425 else outside64(tail)
        if truncated and size > 2.0:
            size = D(2.0)
        z[i] = -size if pair >> SIGN_BIT64 else size


@compiled
def fill64(out: Any, first: Any, key0: Any, key1: Any, kind: Any, base: Any, factor: Any, top: Any) -> None:
    """As `fill32`, for float64. A uniform number is a multiple of 2**-53."""
    words, z = np.empty(GROUP, np.uint32), np.empty(PAIRS, np.float64)
    done = 0
    while done < out.size:
        group = (first + done) // PAIRS
        begin = first + done - group * PAIRS
        n = min(PAIRS - begin, out.size - done)
        fill_words(words, group, key0, key1)
        if kind == UNIFORM:
            for i in range(PAIRS):
                z[i] = D(np.int64(((U(words[i]) << HALF) | U(words[PAIRS + i])) >> ELEVEN)) * UNIT53
        else:
            normal_group64(z, words, kind == TRUNCATED)
        for i in range(n):
            value = base + z[begin + i] * factor
            out[done + i] = top if value > top else value
        done += n
