"""The example of average_loss shows what it says."""

from __future__ import annotations

import numpy as np

from examples.average_loss import main


def test_sums_divided_by_the_global_batch_give_the_curve_of_one_replica_and_others_do_not() -> None:
    one, right, wrong = main().values()
    np.testing.assert_allclose(right, one, atol=1e-12)
    assert one[-1] < 1e-3 and wrong[-1] > 1e3 * wrong[0]
