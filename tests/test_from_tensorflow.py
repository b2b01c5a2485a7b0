"""docs/coming-from-tensorflow.md leads from each name of distributed TensorFlow to one of dps, and to code that runs.

The page's own blocks and those of the guide are run by tests/test_docs.py.
"""

from __future__ import annotations

import re
from functools import cache

import pytest

import dps
from tests.test_docs import DOCS, RUN, blocks, read

PAGE = DOCS / "coming-from-tensorflow.md"

NAMES = """
tf.ConfigProto tf.GradientTape tf.Graph tf.Session tf.Tensor tf.Variable tf.app.run tf.compat.v1.Session
tf.compat.v1.distribute.experimental.ParameterServerStrategy tf.config.experimental_connect_to_cluster
tf.config.list_physical_devices tf.constant tf.contrib.framework.get_or_create_global_step tf.data.Dataset
tf.data.Dataset.from_tensors tf.data.Iterator.get_next_as_optional tf.device tf.distribute
tf.distribute.CrossDeviceOps tf.distribute.HierarchicalCopyAllReduce tf.distribute.MirroredStrategy
tf.distribute.NcclAllReduce tf.distribute.OneDeviceStrategy tf.distribute.ReductionToOneDevice
tf.distribute.Server tf.distribute.Strategy tf.distribute.Strategy.experimental_distribute_dataset
tf.distribute.Strategy.experimental_local_results tf.distribute.Strategy.make_experimental_numpy_dataset
tf.distribute.Strategy.reduce tf.distribute.Strategy.run tf.distribute.TPUStrategy
tf.distribute.cluster_resolver.TPUClusterResolver tf.distribute.experimental.CentralStorageStrategy
tf.distribute.experimental.MultiWorkerMirroredStrategy tf.distribute.experimental.ParameterServerStrategy
tf.distribute.get_strategy tf.function tf.keras tf.keras.Model.fit tf.keras.Sequential tf.keras.layers.Dense
tf.keras.losses.BinaryCrossentropy tf.keras.losses.Reduction.NONE tf.keras.optimizers.SGD tf.matmul
tf.nn.compute_average_loss tf.nn.relu tf.optimizers tf.tpu.experimental.initialize_tpu_system
tf.train.AdagradOptimizer tf.train.ClusterDef tf.train.ClusterSpec tf.train.MonitoredTrainingSession tf.train.Server
tf.train.Server.create_local_server tf.train.ServerDef tf.train.StopAtStepHook tf.train.SyncReplicasOptimizer
tf.train.replica_device_setter
server.target server.join mon_sess.run mon_sess.should_stop model.compile model.evaluate model.fit
model.trainable_variables optimizer.apply_gradients strategy.num_replicas_in_sync strategy.scope tape.gradient
AbortedError MultiDeviceIterator TF_CONFIG shared_name remote_call make_initializable_iterator device_filters
cross_device_ops is_chief job_name task_index ps_hosts worker_hosts OUTPUT_DIR TensorBoard Estimator Horovod
global_step minimize CollectiveOps CollectiveCommunication TPUStrategy
"""
"""All that the four documents call by a name: TensorFlow's own, RETURNN's, RiseML's, and the guide of tf.distribute."""


@cache
def code() -> str:
    """All code that is run: of this page and of the guide."""
    return "\n".join(
        block.text for page in RUN for block in blocks(page)
        if block.language in ("python", "bash", "yaml") and not block.note.startswith("skip: ")
    )  # fmt: skip


def rows() -> list[list[str]]:
    """The cells of all rows of the page's tables but their heads."""
    lines = [line for line in read(PAGE).splitlines() if line.startswith("| ")]
    found = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [cells for cells in found if not cells[0].startswith(("TensorFlow", "---"))]


def last_of(name: str) -> str:
    """The part of a name that the page has."""
    *_, before, last = ["", *name.split(".")]
    return before if last in ("NONE", "run", "reduce") and name[:2] == "tf" else last


def test_every_name_of_the_documents_is_on_the_page() -> None:
    text = read(PAGE)
    assert not [name for name in NAMES.split() if not re.search(rf"(?<!\w){re.escape(last_of(name))}(?!\w)", text)]


def test_what_it_leads_to_is_in_code_that_runs() -> None:
    named = {name for cells in rows() for name in re.findall(r"(?<![\w/.-])dps(?:\.[A-Za-z_]\w*)+", cells[1])}
    assert len(named) > 50
    shown = {name for name in named if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", code())}
    assert not named - shown, f"no block of the page or of the guide uses {sorted(named - shown)}"


def test_each_no_has_its_reason_and_what_to_do_instead() -> None:
    nos = [cells for cells in rows() if cells[1] == "no"]
    assert nos
    assert not [cells[0] for cells in nos if len(cells[2].rstrip(" |")) < 20]


@pytest.mark.parametrize("name", dps._OF_TENSORFLOW)
def test_a_name_of_tensorflow_leads_to_that_of_dps_and_to_the_page(name: str) -> None:
    with pytest.raises(AttributeError, match=r"; docs/coming-from-tensorflow\.md has all names$") as caught:
        getattr(dps, name)
    for named in re.findall(r"dps\.(\w+)", str(caught.value)):
        assert getattr(dps, named) is not None
    assert name in read(PAGE)


def test_another_name_that_is_not_there_says_no_more_than_python_does() -> None:
    with pytest.raises(AttributeError, match=r"^module 'dps' has no attribute 'Sesion'$") as caught:
        dps.Sesion  # noqa: B018
    assert caught.value.name == "Sesion", "of which Python makes: Did you mean: 'Session'?"
