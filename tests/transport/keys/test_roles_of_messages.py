"""The table of which role may send which message."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

from dps.actors.actor import Actor
from dps.transport.message import ALL, FORMS, ROLES, TOKEN, Message


@pytest.fixture(scope="module", autouse=True)
def all_messages() -> None:
    for package in ("actors", "chief", "ps", "worker", "queues", "calls", "collectives", "data"):
        found = importlib.import_module(f"dps.{package}")
        for module in pkgutil.walk_packages(found.__path__, f"dps.{package}."):
            importlib.import_module(module.name)


def handled(actor: type[Actor] = Actor) -> set[str]:
    """The names of the messages for which an actor has a handler."""
    own = {name.removeprefix("on_") for name in vars(actor) if name.startswith("on_")}
    return own.union(*(handled(kind) for kind in actor.__subclasses__() if kind.__module__.startswith("dps.")))


def by_role(role: str) -> set[str]:
    return {form.cls.__name__ for form in FORMS.values() if role in form.cls.roles}


def test_each_message_class_states_its_roles_and_those_that_no_actor_handles_have_none() -> None:
    own = [form.cls for form in FORMS.values() if form.cls.__module__.startswith("dps.")]
    assert len(own) > 80
    assert all("roles" in vars(kind) and kind.roles <= ALL | {TOKEN} for kind in own)
    assert {kind.__name__ for kind in own if kind.roles} == handled()
    with pytest.raises(TypeError, match="roles"):

        class NoRoles(Message, kind=999):  # type: ignore[call-arg]
            pass


def test_a_reader_reads_and_a_worker_also_writes() -> None:
    reads, writes = by_role("reader"), by_role("worker")
    assert {"Pull", "Lookup", "AskState", "OpenSession", "AskPublished"} <= reads < writes
    assert writes - reads >= {"Push", "Credit", "Init", "Save", "Restore", "Leave", "Publish"}


def test_only_the_chief_configures_saves_and_stops_and_only_ps_report_decide_and_count() -> None:
    alone = {
        role: {name for name in by_role(role) if not any(name in by_role(o) for o in ROLES if o != role)}
        for role in ROLES
    }
    own = {"Configure", "Members", "AskServing", "CutShard", "SaveShard", "StopTask", "Drain", "Serve", "TraceOrder"}
    publishes = {"CutVersion", "CommitVersion", "SettleVersion", "HoldPushes", "ResumePushes", "AskNumbers"}
    assert alone["chief"] == own | publishes
    assert alone["ps"] == {"Report", "Decide", "CountSteps"}


def test_an_operator_sees_how_a_run_does_ends_it_and_makes_tokens_and_a_token_only_enrols() -> None:
    looks = {"AskRun", "AskStats", "AskStatus", "AskCluster", "Examine"}
    assert by_role("operator") == looks | {"Leave", "EndRun", "MakeToken", "AskTrace"}
    assert not {"AskStatus", "EndRun", "MakeToken"} & set().union(
        *(by_role(role) for role in ROLES if role != "operator")
    )
    assert {role for role in ROLES if "AskTrace" in by_role(role)} == {"worker", "operator"}
    assert by_role(TOKEN) == {"Enrol"} and not any("Enrol" in by_role(role) for role in ROLES)


def test_readers_have_no_part_in_queues_and_datasets_and_tasks_do() -> None:
    shared = {"OpenQueue", "Put", "Get", "FinishGet", "CloseQueue", "LeaveQueue", "JoinFeed", "Want", "Announce"}
    assert not shared & (by_role("reader") | by_role("operator"))
    assert all(shared <= by_role(role) for role in ("chief", "ps", "worker", "evaluator", "dataset"))
