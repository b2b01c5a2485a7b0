"""Workers of a LocalCluster that serve."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dps
from tests.coordinator import functions


def test_threads_serve_functions_that_have_no_module_to_import() -> None:
    served = [functions.gradients, "operator:add"]
    with (
        dps.LocalCluster(ps=2, workers=2, processes=False, serve=served) as local,
        local.session({"w": np.zeros(2)}, optimizer=dps.optim.SGD(1.0)) as session,
    ):
        with dps.Coordinator(local.target) as coordinator:
            steps = [coordinator.schedule(functions.gradients, (session, 0.0)) for _ in range(6)]
            total = coordinator.schedule("operator:add", (steps[0], steps[1]))
            coordinator.join()
            assert isinstance(total.fetch(), float)
            assert session.pull()["w"].tolist() == [-6.0, -6.0]
        with dps.device("/job:worker/task:1"), pytest.raises(ValueError, match="serves operator:add, tests"):
            session.run(functions.add, 1, 2)


@pytest.mark.parametrize("serve", [[], 3, [3]])
def test_what_is_no_module_is_told_before_anything_starts(serve: Any) -> None:
    with pytest.raises(ValueError, match="serve: got .*, wanted modules, files or functions"):
        dps.LocalCluster(serve=serve)


def test_a_module_that_is_not_there_ends_the_workers_with_one_line() -> None:
    with dps.LocalCluster(workers=1, processes=False, serve="no_such_module") as local:
        run = local._run
        assert run is not None
        with pytest.raises(dps.DpsError, match="no_such_module: no module 'no_such_module'"):
            run.wait(10.0)
