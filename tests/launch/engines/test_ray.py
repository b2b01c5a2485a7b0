"""Runs on a real Ray: actors that Ray restarts, nodes with labels, and what cannot be."""

from __future__ import annotations

import sys

import pytest

from tests.launch.clusters.test_local_processes import until
from tests.launch.engines.programs import accepted, check_newest_checkpoint, gone_back
from tests.launch.engines.raylets import PYTHON
from tests.launch.engines.users import RayUser

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280), pytest.mark.xdist_group("ray")]
RESTARTS = """
from ray._private.state import actors
print(sum(int(actor["NumRestarts"]) for actor in actors().values() if actor["State"] == "ALIVE"))
"""


def test_a_lost_actor_is_restarted_by_ray_and_costs_nobody_else_a_step(ray_user: RayUser) -> None:
    ray_user.begin()
    ray_user.wait_for_checkpoints(2)
    ray_user.lose_actor("worker:1")
    until(lambda: ray_user.dps("logs", "1").count("begins at") == 3)
    assert int(ray_user.ray.python(RESTARTS)) == 1
    said = ray_user.dps("logs", "1")
    assert "is lost" in said and "worker:1 is started on" in said, said
    ray_user.dps("kill", "1")
    assert gone_back(accepted(ray_user.folder / "runs" / "1")[0]) == []


def test_ps_go_to_nodes_with_their_label_and_elsewhere_when_these_are_gone(ray_user: RayUser) -> None:
    ray_user.ray.add("labelled", labels="dps=ps")
    ray_user.begin("--set", "steps=300", "--set", "pause=0.01")
    places = {name: task["host"] for name, task in ray_user.view().tasks.items()}
    assert [places["ps:0"], places["ps:1"]] == ["labelled", "labelled"]
    if places["chief"] != "labelled":
        ray_user.wait_for_checkpoints(2)
    ray_user.ray.vanish("labelled")
    until(lambda: ray_user.view().is_over, 120.0)
    said = ray_user.dps("logs", "1")
    assert ray_user.view().state == "SUCCEEDED", said
    check_newest_checkpoint(ray_user.folder / "runs" / "1", said)


def test_what_cannot_be_is_one_line(ray_user: RayUser) -> None:
    file = ray_user.folder / "experiment.yaml"
    text = file.read_text()
    for old, new, wanted in (
        ("count: 2, run", "count: 200, run", "the tasks want CPU: 203; its nodes have 12"),
        ("{cpus: 1}", "{memory: 900TiB}", "the tasks want memory"),
    ):
        file.write_text(text.replace(old, new))
        said = ray_user.refusal()
        assert said.startswith("dps: Ray has too little: ") and wanted in said, said
    file.write_text(text)
    for address, wanted, code in (
        ("127.0.0.1:1", "Ray at 127.0.0.1:1 cannot be reached: port 1 of 127.0.0.1", 3),
        ("nobody.invalid:6379", "host 'nobody.invalid' has no address", 2),
        ("ray://127.0.0.1:10001", "got RAY_ADDRESS=ray://127.0.0.1:10001, for Ray clients", 2),
        ("nonsense", "got RAY_ADDRESS=nonsense, wanted HOST:PORT of Ray's head", 2),
    ):
        ray_user.environ["RAY_ADDRESS"] = address
        said = ray_user.refusal(code)
        assert wanted in said, said


@pytest.mark.skipif(sys.executable == PYTHON, reason="this Python has Ray")
def test_without_ray_is_one_line(ray_user: RayUser) -> None:
    ray_user.python = sys.executable
    assert ray_user.refusal() == "dps: --on ray: Ray is not installed; pip install 'dps[ray]'"
