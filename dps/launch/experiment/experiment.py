"""An experiment file, checked: what it asks for, and the plan of a run for given values of its parameters."""

from __future__ import annotations

import importlib.machinery
import itertools
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from dps.errors import ConfigError
from dps.launch.experiment import schema
from dps.launch.experiment.nodes import FilePosition, LocatedValue, read
from dps.launch.hosts.machine import Machine
from dps.launch.supervision.plan import DATASET, Job, Resources, RunPlan, has_program, runs_program
from dps.process.config import parse_threads
from dps.process.flags import nearest
from dps.process.record import record
from dps.training.update_modes import parse

NAME = re.compile(r"\{\{\s*([\w-]+)\s*\}\}")
MARK = re.compile(r"\x00([\w-]+)\x00")
"""A name in a text that a shell's rules have split; no file contains these characters."""


def split(node: LocatedValue) -> tuple[str, ...]:
    """The words of a command: a text, split as a shell does and never given to one, or a list of words. `{{ name }}`
    stays as it is written, without spaces."""
    if isinstance(node.value, list):
        for word in node.value:
            if isinstance(word.value, list | dict) or word.value is None:
                word.fail(f"got {word.shown}, wanted a word")
        words = [_marked(word.text) for word in node.value]
    elif isinstance(node.value, dict) or node.value is None:
        node.fail(f"got {node.shown}, wanted a program and its arguments, as a text or a list")
    else:
        try:
            words = shlex.split(_marked(node.text))
        except ValueError as error:
            node.fail(f"cannot be split as a shell does: {str(error).lower()}")
    if not words:
        node.fail("got no words, wanted a program and its arguments")
    return tuple(MARK.sub(r"{{\1}}", word) for word in words)


def _marked(text: str) -> str:
    return NAME.sub("\x00\\1\x00", text)


def fill(text: str, values: Mapping[str, str]) -> str:
    """A text with the values of its names. KeyError for a name without one."""
    return NAME.sub(lambda found: values[found[1]], text)


def check_names(node: LocatedValue, text: str, known: Sequence[str]) -> None:
    """Raise the error for the first name in a node, or below it, that has no value. `text`: that of the whole file."""
    if isinstance(node.value, list | dict):
        for below in node.value.values() if isinstance(node.value, dict) else node.value:
            check_names(below, text, known)
        return
    for found in NAME.finditer(node.text):
        if found[1] not in known:
            why = f"{node.path}: no parameter {found[1]!r}; {nearest(found[1], known)}"
            raise _place(node, found[0], text).error(why)


def _place(node: LocatedValue, name: str, text: str) -> FilePosition:
    """Where a name of a node stands in the file; the node's own place if its text was joined from several lines."""
    offset = text.find(name, node.place.offset)
    if offset < 0:
        return node.place
    begin = text.rfind("\n", 0, offset) + 1
    return FilePosition(node.place.file, text.count("\n", 0, offset) + 1, offset - begin + 1, offset)


OWN_NAMES = ("id", "name")
"""Names with a value that are no parameters."""
OUTPUT = "OUTPUT_DIR"


@record
class Experiment:
    """A checked file. `jobs` and `env` still have `{{ name }}` in their texts; `make_plan` fills in the values.

    `elsewhere`: what only some engines use, by key: hosts, sync, image, volumes."""

    name: str
    output: str
    parameters: Mapping[str, tuple[str, ...]]
    parallel: int
    update: str
    env: Mapping[str, str]
    jobs: Mapping[str, Job]
    elsewhere: Mapping[str, Any]
    folder: str
    wants: Mapping[str, LocatedValue]
    """What the file says of the resources of each role."""

    def points(self) -> list[dict[str, str]]:
        """The values of the parameters for each experiment: one, or all combinations of the lists."""
        names = list(self.parameters)
        return [dict(zip(names, values, strict=True)) for values in itertools.product(*self.parameters.values())]

    def make_plan(self, values: Mapping[str, str], run: str) -> RunPlan:
        """The plan of the run with this id and these values. Raises ConfigError for an `output` that leaves the folder
        of the file, which a link that is there may make it do."""
        known = {**values, "id": run, "name": self.name}
        jobs = {}
        for role, job in self.jobs.items():
            env = {name: fill(text, known) for name, text in job.env.items()}
            words = tuple(fill(word, known) for word in job.run)
            jobs[role] = Job(job.count, words, env, job.flags, job.restarts, job.resources)
        env = {name: fill(text, known) for name, text in self.env.items()}
        if self.output:
            env[OUTPUT] = output_folder(self.folder, fill(self.output, known))
        return RunPlan(jobs, self.update, env, folder=self.folder)

    def check(self, machine: Machine) -> None:
        """Raise ConfigError, with file and line, if the tasks want more than the machine on which all of them run."""
        plan = RunPlan(self.jobs)
        for name in plan.tasks():
            try:
                machine.assign_share(name, plan.job(name).resources)
            except ConfigError as error:
                self.wants[name.partition(":")[0]].fail(str(error))


def output_folder(folder: str, output: str) -> str:
    """The path of an `output`. Raises ConfigError if it leaves the folder of the file, through `..` or a symbolic link,
    but as an absolute path: who starts the file of somebody else sees in it where it writes."""
    path = os.path.expanduser(output)
    whole, inside = os.path.join(folder, path), os.path.realpath(folder)
    if not os.path.isabs(path) and os.path.commonpath([os.path.realpath(whole), inside]) != inside:
        raise ConfigError(f"got {output!r}, which leaves {folder}; wanted a path below that, or an absolute path")
    return whole


def load(file: str, given: Sequence[str] = ()) -> Experiment:
    """The experiment in a file. `given`: what --set says, NAME=VALUE; a name that is given several times is a list.

    Raises ConfigError, with file, line and column, for whatever cannot be started.
    """
    root, text = read(file)
    return Loading(file, root, text, given).experiment()


class Loading:
    """Reads one file."""

    def __init__(self, file: str, root: LocatedValue, text: str, given: Sequence[str]) -> None:
        self._root, self._text = root, text
        self._top = schema.keys(root, schema.TOP, "key")
        self._folder = os.path.dirname(os.path.abspath(file))
        self._stem = os.path.splitext(os.path.basename(file))[0]
        parameters = self._top.get("parameters")
        self._parameters = {} if parameters is None else schema.parameters(parameters)
        self._set(given)

    def _set(self, given: Sequence[str]) -> None:
        """Replace values by those of --set."""
        replaced: dict[str, tuple[str, ...]] = {}
        for text in given:
            name, equals, value = text.partition("=")
            if not equals:
                raise ConfigError(f"got --set {text}, wanted --set NAME=VALUE")
            if name not in self._parameters:
                raise ConfigError(
                    f"--set {text}: the file has no parameter {name!r}; {nearest(name, self._parameters)}"
                )
            replaced[name] = (*replaced.get(name, ()), value)
        self._parameters = self._parameters | replaced

    def experiment(self) -> Experiment:
        """Check and read all of the file."""
        top = self._top
        output = self._named("output")
        made = Experiment(
            name=schema.text(top["name"]) if "name" in top else self._stem,
            output=output,
            parameters=self._parameters,
            parallel=schema.whole(top["parallel"], 1) if "parallel" in top else 1,
            update=self._update(),
            env={**self._keys(), **self._variables(top.get("env"))},
            jobs=self._jobs(),
            elsewhere=self._elsewhere(),
            folder=self._folder,
            wants=self._wants(),
        )
        if "durability" in top:
            schema.chosen(top["durability"], ("none",), "; other levels are not there yet")
        self._check_programs(made)
        self._check_output(made)
        return made

    def _known(self) -> list[str]:
        return [*self._parameters, *OWN_NAMES]

    def _named(self, key: str) -> str:
        """A text that may have names in it."""
        if key not in self._top:
            return ""
        check_names(self._top[key], self._text, self._known())
        return schema.text(self._top[key])

    def _variables(self, node: LocatedValue | None) -> dict[str, str]:
        if node is None:
            return {}
        check_names(node, self._text, self._known())
        found = schema.variables(node)
        if OUTPUT in found:
            raise node.keys[OUTPUT].error(f"{node.path}: {OUTPUT} is what the key output says; give that one")
        return found

    def _update(self) -> str:
        node = self._top.get("update")
        if node is None:
            return ""
        try:
            parse(schema.text(node), repr(node.text))
        except ValueError as error:
            node.fail(str(error))
        return node.text

    def _keys(self) -> dict[str, str]:
        """The variables for the keys of the tasks; "auto" leaves the choice to the environment."""
        node = self._top.get("keys")
        if node is None or schema.text(node) == "auto":
            return {}
        if node.text == "trusted-network":
            return {"DPS_TRUSTED_NETWORK": "1"}
        path = os.path.join(self._folder, os.path.expanduser(node.text))
        if not os.path.isdir(path):
            node.fail(f"got {node.text!r}, wanted auto, trusted-network, or a folder of keys (dps keys new)")
        return {"DPS_KEYS": path}

    def _elsewhere(self) -> dict[str, Any]:
        top, found = self._top, dict[str, Any]()
        for key in ("hosts", "volumes"):
            if key in top:
                found[key] = schema.texts(top[key])
        for node in top["hosts"].value if "hosts" in top else ():
            _check_host(node)
        if "image" in top:
            found["image"] = schema.text(top["image"])
        if "sync" in top:
            found["sync"] = schema.switch(top["sync"])
        return found

    def _jobs(self) -> dict[str, Job]:
        if "roles" not in self._top:
            self._root.fail("no roles; wanted at least: roles: {worker: {run: PROGRAM}}")
        node = self._top["roles"]
        roles = schema.keys(node, schema.ROLES, "role")
        if "worker" not in roles:
            node.fail("no worker; wanted a worker with run: PROGRAM")
        default = schema.resources(self._top.get("resources"), Resources())
        restarts = schema.whole(self._top["restarts"], 0) if "restarts" in self._top else 1
        jobs = {"chief": Job(restarts=restarts, resources=default), "ps": Job(restarts=restarts, resources=default)}
        for role in (role for role in schema.ROLES if role in roles):
            jobs[role] = self._job(role, roles[role], default, 0 if runs_program(f"{role}:") else restarts)
        return jobs

    def _wants(self) -> dict[str, LocatedValue]:
        """The node of each role's resources: its own, or those of all roles."""
        roles, common = self._top["roles"].value, self._top.get("resources")
        own = {role: node.value["resources"] for role, node in roles.items() if "resources" in (node.value or {})}
        return own if common is None else {**dict.fromkeys(schema.ROLES, common), **own}

    def _job(self, role: str, node: LocatedValue, default: Resources, restarts: int) -> Job:
        found = schema.keys(node, schema.ROLE, "key")
        least = 0 if role == "ps" else 1  # without ps, workers train as a group
        count = schema.whole(found["count"], least) if "count" in found else 1
        if count > 1 and role in ("chief", "evaluator"):
            found["count"].fail(f"got {count}, wanted 1: a run has one {role}")
        words: tuple[str, ...] = ()
        if has_program(role):
            if "run" not in found:
                node.fail("no run; wanted run: PROGRAM ARGUMENTS")
            check_names(found["run"], self._text, self._known())
            words = split(found["run"])
            if role == DATASET and ":" not in words[0]:
                found["run"].fail(f"got {words[0]!r}, wanted FILE:NAME, a dataset or a function that makes one")
        elif "run" in found:
            found["run"].fail(f"a {role} runs no program; wanted run under worker, evaluator or dataset")
        restarts = schema.whole(found["restarts"], 0) if "restarts" in found else restarts
        resources = schema.resources(found.get("resources"), default)
        flags = self._ps_flags(role, found)
        return Job(count, words, self._variables(found.get("env")), flags, restarts, resources)

    def _ps_flags(self, role: str, found: Mapping[str, LocatedValue]) -> tuple[str, ...]:
        """The flags of a ps for its threads and its device."""
        flags = []
        for key in ("threads", "device"):
            if key not in found:
                continue
            node = found[key]
            if role != "ps":
                node.fail(f"only ps have a key {key!r}")
            if key == "threads":
                try:
                    parse_threads(schema.text(node))
                except ValueError as error:
                    node.fail(str(error))
            flags.append(f"--{key}={schema.text(node)}")
        return tuple(flags)

    def _check_output(self, made: Experiment) -> None:
        """Raise the error for an output that leaves the file's folder, with any of the values."""
        for values in made.points() if made.output else ():
            try:
                made.make_plan(values, "0")
            except ConfigError as error:
                self._top["output"].fail(str(error))

    def _check_programs(self, made: Experiment) -> None:
        """Raise the error for a program that is not there, with any of the values."""
        roles: dict[str, LocatedValue] = self._top["roles"].value
        for role, job in made.jobs.items():
            for values in made.points() if job.run else ():
                program = fill(job.run[0], {**values, "id": "0", "name": made.name})
                if why := missing(program, self._folder):
                    roles[role].value["run"].fail(why)


def _check_host(node: LocatedValue) -> None:
    from dps.launch.hosts.remote import parse_host

    try:
        parse_host(node.text)
    except ConfigError as error:
        node.fail(str(error))


def missing(program: str, folder: str) -> str:
    """Why a program cannot be run by tasks in a folder; "" if it is there. Imports nothing."""
    if program in ("python", "python3"):
        return f"got {program}; wanted the program itself, because tasks run it with the Python of dps"
    target, colon, name = program.rpartition(":")
    file = target if colon and name.isidentifier() else program
    if file.endswith(".py") or os.sep in file:
        return "" if os.path.isfile(os.path.join(folder, file)) else f"no file {file!r} in {folder}"
    top = file.partition(".")[0]
    if not top.isidentifier() or importlib.machinery.PathFinder.find_spec(top, [folder, *sys.path]) is None:
        return f"no program {program!r}; wanted FILE, package.module, or either:function"
    return ""
