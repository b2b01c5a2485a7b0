"""The experiment file: what is read from it, and one line with file, line and column for what cannot be started."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dps import cli
from dps.errors import ConfigError
from dps.launch.experiment.experiment import Experiment, fill, load, missing, split
from dps.launch.experiment.nodes import FilePosition, LocatedValue
from dps.launch.experiment.template import PROGRAM, TEMPLATE
from dps.launch.runs import keeper, keeping
from dps.launch.runs.view import read_run
from dps.launch.supervision.plan import Resources, RunPlan, plan_from

FULL = """\
name: mnist
output: runs/mnist-{{ id }}
parameters: {rate: 0.20, steps: [400, 800], words: "a b; $HOME 'c'"}
parallel: 2
update: sync
keys: auto
restarts: 2
env: {OMP_NUM_THREADS: "1", NAME: "{{ name }}-{{ steps }}"}
resources: {cpus: 1, memory: 1GiB, gpus: 0}
hosts: [box1, "box2 slots=4"]
image: registry/name:tag
volumes: ["claim:/data"]
roles:
  chief: {}
  ps: {count: 2, resources: {memory: 4GiB}, threads: 2}
  worker:
    count: 3
    restarts: 4
    run: train.py --steps {{ steps }} --rate={{rate}} '{{ words }}' {{ words }} "x y"
  evaluator: {run: [train.py, "{{ words }}"], env: {ROLE: evaluator}}
  dataset: {run: "train.py:dataset {{ steps }}", count: 2}
"""
SMALL = "roles: {worker: {run: train.py}}\n"


def written(folder: Path, text: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").touch()
    path = folder / "experiment.yaml"
    path.write_text(text)
    return str(path)


@pytest.fixture
def full(tmp_path: Path) -> Experiment:
    return load(written(tmp_path, FULL))


def test_a_list_of_values_makes_a_run_for_each(full: Experiment) -> None:
    assert [point["steps"] for point in full.points()] == ["400", "800"] and full.parallel == 2
    assert full.elsewhere == {
        "hosts": ("box1", "box2 slots=4"),
        "image": "registry/name:tag",
        "volumes": ("claim:/data",),
    }


def test_the_plan_has_every_value_in_its_word_as_the_file_has_it(full: Experiment, tmp_path: Path) -> None:
    plan = full.make_plan(full.points()[0], "7")
    words = "a b; $HOME 'c'"
    assert plan.job("worker:2").run == ("train.py", "--steps", "400", "--rate=0.20", words, words, "x y")
    assert plan.job("evaluator:0").run == ("train.py", words)
    assert plan.flags("dataset:1", "a:1") == [
        "--job", "dataset", "--task", "1", "--chief", "a:1", "--datasets", "2",
        "--program", "train.py:dataset", "--", "400",
    ]  # fmt: skip
    assert plan.tasks()[-3:] == ["evaluator:0", "dataset:0", "dataset:1"]
    assert plan.environment("worker:0") == {
        "OMP_NUM_THREADS": "1", "NAME": "mnist-400", "OUTPUT_DIR": str(tmp_path / "runs/mnist-7"),
    }  # fmt: skip
    assert plan.environment("evaluator:0")["ROLE"] == "evaluator"
    assert (plan.ps, plan.workers, plan.update, plan.folder) == (2, 3, "sync", str(tmp_path))
    assert plan.job("ps:0").resources == Resources(1, 4 << 30, 0) and plan.job("ps:0").flags == ("--threads=2",)
    assert plan.job("worker:0").resources == Resources(1, 1 << 30, 0)
    assert [plan.job(name).restarts for name in ("chief", "ps:1", "worker:0", "evaluator:0", "dataset:1")] == [
        2,
        2,
        4,
        0,
        2,
    ]


def test_a_plan_is_the_same_after_it_was_written_to_a_file(full: Experiment) -> None:
    plan = full.make_plan(full.points()[1], "7")
    assert plan_from(plan.as_dict()) == plan


def test_set_replaces_a_value_and_several_make_a_list(tmp_path: Path) -> None:
    file = written(tmp_path, FULL)
    made = load(file, ["rate=1 2", "steps=1", "steps=2", "steps=3"])
    assert [(point["rate"], point["steps"]) for point in made.points()] == [("1 2", "1"), ("1 2", "2"), ("1 2", "3")]
    with pytest.raises(ConfigError, match="no parameter 'stepz'; did you mean 'steps'"):
        load(file, ["stepz=1"])
    with pytest.raises(ConfigError, match="wanted --set NAME=VALUE"):
        load(file, ["steps"])


@given(st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"])))
def test_a_value_stays_one_word_whatever_it_contains(value: str) -> None:
    node = LocatedValue("train.py --a {{ v }} --b={{v}}", FilePosition("f", 1, 1), "train.py --a {{ v }} --b={{v}}")
    assert [fill(word, {"v": value}) for word in split(node)] == ["train.py", "--a", value, f"--b={value}"]


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("", "1:1", "the file is empty"),
        ("roles:\n  worker: [train.py\n", "3:1", "got no YAML"),
        ("roles: {worker: {run: train.py --steps {{ steps }}}}\n", "1:", "needs quotes"),
        ("nmae: x\n" + SMALL, "1:1", "unknown key 'nmae'; did you mean 'name'?"),
        ("name: x\nname: y\n" + SMALL, "2:1", "'name' is here twice"),
        ("name: [x]\n" + SMALL, "1:7", "name: got a list, wanted a text"),
        ("name: x\n", "1:1", "no roles"),
        ("roles:\n  ps: {}\n", "2:3", "no worker"),
        ("roles:\n  workers: {run: train.py}\n", "2:3", "unknown role 'workers'; did you mean 'worker'?"),
        ("roles:\n  worker: {rum: train.py}\n", "2:12", "unknown key 'rum'; did you mean 'run'?"),
        ("roles:\n  worker: {count: 2}\n", "2:11", "no run"),
        ("num_nodes: 2\n" + SMALL, "1:1", "unknown key 'num_nodes'; here it is count, under roles.worker"),
        ("run: python train.py\n", "1:1", "unknown key 'run'; here it is run, under roles.worker"),
        ("setup: pip install x\n" + SMALL, "1:1", "unknown key 'setup'; here it is nothing: prepare the hosts"),
        ("worker: {run: train.py}\n", "1:1", "unknown key 'worker'; here it is worker, under roles"),
        ("resources: {accelerators: 1}\n" + SMALL, "1:13", "unknown resource 'accelerators'; here it is gpus"),
        ("roles:\n  worker: {run: train.py, replicas: 2}\n", "2:27", "unknown key 'replicas'; here it is count"),
        ("roles:\n  worker: {run: train.py, count: 0}\n", "2:34", "got '0', wanted a whole number from 1"),
        ("roles:\n  worker: {run: train.py, count: many}\n", "2:34", "got 'many'"),
        ("roles: {worker: {run: nowhere.py}}\n", "1:23", "no file 'nowhere.py'"),
        ("roles: {worker: {run: python train.py}}\n", "1:23", "wanted the program itself"),
        ("roles: {worker: {run: no_such_module_here}}\n", "1:23", "no program 'no_such_module_here'"),
        ("roles: {worker: {run: train.py 'a}}\n", "1:23", "cannot be split"),
        ("roles: {worker: {run: ''}}\n", "1:23", "no words"),
        ("roles: {worker: {run: [train.py, [a]]}}\n", "1:34", "got a list, wanted a word"),
        ("roles:\n  worker:\n    run: train.py --a {{ a }} {{ b }}\nparameters: {a: 1}\n", "3:31", "no parameter 'b'"),
        ("roles:\n  worker:\n    run: >-\n      train.py\n      {{ b }}\n", "5:7", "no parameter 'b'"),
        ("output: x-{{ idd }}\n" + SMALL, "1:11", "no parameter 'idd'; did you mean 'id'?"),
        ("parameters: {id: 1}\n" + SMALL, "1:14", "'id' cannot be the name"),
        ("parameters: {a: []}\n" + SMALL, "1:17", "an empty list"),
        ("parameters: {a: }\n" + SMALL, "1:", "got nothing"),
        ("parameters: {a: {{ b }}}\n" + SMALL, "1:", "needs quotes"),
        ("update: often\n" + SMALL, "1:9", "'often' is not known"),
        ("durability: log\n" + SMALL, "1:13", "got 'log', wanted none"),
        ("keys: here\n" + SMALL, "1:7", "got 'here'"),
        ("restarts: -1\n" + SMALL, "1:11", "got '-1', wanted a whole number from 0"),
        ("env: {A B: 1}\n" + SMALL, "1:7", "wanted the name of a variable"),
        ("resources: {memory: much}\n" + SMALL, "1:21", "wanted an amount of memory"),
        ("resources: {disk: 1}\n" + SMALL, "1:13", "unknown resource 'disk'"),
        ("roles: {worker: {run: train.py}, ps: {run: train.py}}\n", "1:44", "a ps runs no program"),
        ("roles: {worker: {run: train.py}, dataset: {}}\n", "1:43", "no run; wanted run: PROGRAM ARGUMENTS"),
        ("roles: {worker: {run: train.py}, dataset: {run: train.py}}\n", "1:49", "got 'train.py', wanted FILE:NAME, a"),
        ("roles: {worker: {run: train.py}, dataset: {run: 'no.py:d'}}\n", "1:49", "no file 'no.py'"),
        ("roles: {worker: {run: train.py}, chief: {count: 2}}\n", "1:49", "a run has one chief"),
        ("roles: {worker: {run: train.py, threads: 2}}\n", "1:42", "only ps have a key 'threads'"),
        ("roles: {worker: {run: train.py}, ps: {threads: all}}\n", "1:48", "got 'all' threads"),
        ("- a\n- b\n", "1:1", "got a list, wanted keys"),
        ("a: &a [*a]\n", "1:", "nested deeper"),
    ],
)
def test_what_cannot_be_started_is_one_line_with_its_place_and_exit_code_2(
    text: str, place: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, text)
    assert cli.main(["launch", file]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"dps: {file}:{place}") and told.count("\n") == 1 and words in told


def test_yaml_without_its_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "yaml", None)
    with pytest.raises(ConfigError, match=r"pip install 'dps\[yaml\]'"):
        load(written(tmp_path, SMALL))


def test_json_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "e.json").write_text('{"roles": {"worker": {"run": ["train.py", "a b"], "count": 2}}}')
    made = load(str(tmp_path / "e.json"))
    assert (made.name, made.jobs["worker"].run, made.jobs["worker"].count) == ("e", ("train.py", "a b"), 2)


def test_programs_are_files_modules_or_functions_of_them(tmp_path: Path) -> None:
    (tmp_path / "own.py").touch()
    for there in ("own.py", "own.py:main", "own", "own:main", "json.tool"):
        assert missing(there, str(tmp_path)) == "", there
    for absent in ("other.py", "other.py:main", "other", "folder/own"):
        assert missing(absent, str(tmp_path)), absent


def test_the_file_of_dps_init_is_one_that_can_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["init"]) == 0
    assert ((tmp_path / "experiment.yaml").read_text(), (tmp_path / "train.py").read_text()) == (TEMPLATE, PROGRAM)
    plan = load("experiment.yaml").make_plan({"steps": "20"}, "1")
    assert plan.job("worker:0").run == ("train.py", "--steps", "20") and plan.workers == 2
    assert cli.main(["init"]) == 2


def test_every_commented_line_of_dps_inits_file_is_right_too(tmp_path: Path) -> None:
    for name in ("train.py", "evaluate.py", "feed.py"):
        (tmp_path / name).touch()
    lines = []
    for line in TEMPLATE.splitlines()[2:]:
        bare = line.replace("# ", "", 1) if line.lstrip().startswith("# ") and ": " in line else line
        lines.append(bare)
    (tmp_path / "e.yaml").write_text("\n".join(lines))
    made = load(str(tmp_path / "e.yaml"))
    plan = made.make_plan({"steps": "3"}, "1")
    assert (
        isinstance(plan, RunPlan)
        and {"evaluator", "dataset"} < plan.jobs.keys()
        and plan.job("ps:0").resources.memory == 4 << 30
    )


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--ps", "2"], "got --ps with an experiment file"),
        (["--datasets", "2"], "got --datasets with an experiment file"),
        (["--update", "sync"], "got --update with an experiment file"),
        (["--", "x"], "got arguments after --"),
        (["--on", "ssh"], "got no hosts"),
        (["--metric", "loss:most"], "wanted NAME, or NAME:max"),
    ],
)
def test_flags_that_a_file_has_no_use_for(
    argv: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["launch", written(tmp_path, SMALL), *argv]) == 2
    assert words in capsys.readouterr().err


def test_a_task_that_wants_more_than_this_machine_has_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    for resources, words in (
        ("cpus: 100000", "worker:0 wants cpus: 100000; this machine has"),
        ("memory: 1000TB", "worker:0 wants memory: 1000000.0 GB; this machine has"),
        ("gpus: 3", "worker:0 wants gpus: 3; this machine has 2"),
    ):
        file = written(tmp_path, f"roles:\n  worker: {{run: train.py, resources: {{{resources}}}}}\n")
        assert cli.main(["launch", file]) == 2
        assert f"{file}:2:38: roles.worker.resources: {words}" in capsys.readouterr().err
    assert cli.main(["launch", file := written(tmp_path, "resources: {gpus: 1}\n" + SMALL)]) == 2
    told = capsys.readouterr().err
    assert f"{file}:1:12: resources: the tasks of this run want more GPUs than this machine has (2)" in told


def test_a_file_with_hosts_runs_on_them_and_says_where_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    def keep(paths: list[str], parallel: int, show: object) -> int:
        started.extend(read_run(path, 0.0).asked["where"]["on"] for path in paths)
        return 0

    monkeypatch.setattr(keeping, "keep_runs", keep)
    file = written(tmp_path, "hosts: [box1, box2]\n" + SMALL)
    for argv in ([file], [file, "--on", "local"], [written(tmp_path / "other", SMALL)], [str(tmp_path / "train.py")]):
        assert cli.main(["launch", *argv]) == 0
    assert started == ["ssh", "local", "local", "local"]


def test_a_run_of_workers_alone_has_no_ps(tmp_path: Path) -> None:
    made = load(written(tmp_path, "roles: {worker: {run: train.py, count: 2}, ps: {count: 0}}\n"))
    assert made.make_plan({}, "1").tasks() == ["chief", "worker:0", "worker:1"]


def test_the_file_on_the_guides_page_is_right(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    (tmp_path / "examples").symlink_to(root / "examples")
    text = (root / "docs" / "guide" / "experiment-file.md").read_text()
    (tmp_path / "mnist.yaml").write_text(text.split("```yaml\n")[1].split("```")[0])
    made = load(str(tmp_path / "mnist.yaml"))
    assert made.make_plan({"rate": "0.2", "steps": "400"}, "3").env["OUTPUT_DIR"] == str(tmp_path / "runs/mnist-3")


@pytest.mark.parametrize(
    ("output", "sets"),
    [("../out", ()), ("runs/../../out", ()), ("{{ where }}/out", ("where=../..",)), ("link/out", ()), ("link", ())],
)
def test_an_output_leaves_the_folder_of_the_file_only_as_an_absolute_path(
    output: str, sets: tuple[str, ...], tmp_path: Path
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    file = written(folder, f"output: '{output}'\nparameters: {{where: a}}\n{SMALL}")
    with pytest.raises(ConfigError, match=r"experiment.yaml:1:9: output: got .*, which leaves .*; wanted a path below"):
        load(file, sets)


@pytest.mark.parametrize("output", ["out", "./a/../out", ".", "..out", "/elsewhere/out", "~/out", "{{ where }}/out"])
def test_an_output_below_the_file_or_an_absolute_one_is_taken(output: str, tmp_path: Path) -> None:
    file = written(tmp_path, f"output: '{output}'\nparameters: {{where: /elsewhere}}\n{SMALL}")
    made = load(file)
    path = made.make_plan(made.points()[0], "1").env["OUTPUT_DIR"]
    assert Path(path).is_absolute() and ("elsewhere" in path) == ("elsewhere" in output or "where" in output)


def test_an_output_of_one_run_that_is_a_link_is_refused_when_the_run_begins(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "out-7").symlink_to(tmp_path)
    made = load(written(folder, "output: 'out-{{ id }}'\n" + SMALL))
    made.make_plan({}, "6")
    with pytest.raises(ConfigError, match="'out-7', which leaves"):
        made.make_plan({}, "7")


def test_where_a_run_will_write_is_said_before_anything_of_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DPS_RUNS", str(tmp_path / "runs"))
    said: list[str] = []
    monkeypatch.setattr(keeper, "prepare_run", lambda *_: said.append(capsys.readouterr().out))
    monkeypatch.setattr(keeping, "keep_runs", lambda *_: 0)
    runs = tmp_path / "runs"
    for text, wanted in (
        (f"output: {tmp_path}/elsewhere\n", f"[dps] run 1 writes to {runs}/1 and {tmp_path}/elsewhere (OUTPUT_DIR)\n"),
        ("", f"[dps] run 2 writes to {runs}/2\n"),
    ):
        assert cli.main(["launch", written(tmp_path, text + SMALL)]) == 0
        assert said.pop() == wanted and not (tmp_path / "elsewhere").exists()


def test_output_dir_is_said_with_output(tmp_path: Path) -> None:
    for text in ("env: {OUTPUT_DIR: /x}\n" + SMALL, "roles: {worker: {run: train.py, env: {OUTPUT_DIR: x}}}\n"):
        with pytest.raises(ConfigError, match="OUTPUT_DIR is what the key output says"):
            load(written(tmp_path, text))
