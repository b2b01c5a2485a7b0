"""Join tokens: by one string another process joins a run with a key of its own, and by no other string."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import dps
from dps import cli, role
from dps.actors.caller import Caller
from dps.actors.ref import Ref
from dps.chief import operators as enrolment
from dps.chief.tokens import MOST, JoinTokens, TokenFile
from dps.errors import ConfigError, NotAuthenticated, PermissionDenied
from dps.messages.runs import CHIEF, ENROLMENT, OPERATORS, AskStats, EndRun, Enrol, MakeToken
from dps.messages.sessions import PS, Pull
from dps.transport.current import runtime
from dps.transport.keys import files as key_files
from dps.transport.keys import zap
from dps.transport.keys.keyring import AcceptedKeys, Credentials, KeyFolder, Keys, Pair, credentials
from dps.transport.keys.token import JoinToken, parse_token
from dps.transport.message import TOKEN, Message
from dps.transport.sockets.handshake import token_refused
from dps.worker import joining as enrolling
from tests.in_process import cluster

WAIT_S = 10.0
START = {"w": np.zeros(40, np.float32)}
ONES = {"w": np.ones(40, np.float32)}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = str(tmp_path_factory.mktemp("token") / "keys")
    key_files.new(made)
    return made


@pytest.fixture(scope="module")
def run(keys: str) -> Iterator[dps.Server]:
    """A run with keys and two ps; its first worker trains "w"."""
    patch = pytest.MonkeyPatch()
    patch.setenv("DPS_KEYS", keys)
    with cluster(2, transport="tcp") as (server,), session(server) as trains:
        trains.push(ONES)
        patch.undo()
        yield server
    patch.undo()


def session(server: dps.Server | str, **settings: object) -> dps.Session:
    partitioner = dps.partition.Fixed(2)
    return dps.Session(
        server, START, optimizer=dps.optim.SGD(1.0), partitioner=partitioner, timeout=WAIT_S, **settings  # type: ignore[arg-type]
    )  # fmt: skip


Make = Callable[..., str]


@pytest.fixture
def make(run: dps.Server, keys: str, capsys: pytest.CaptureFixture[str]) -> Iterator[Make]:
    """Makes a token, as `dps token` prints it."""

    def token(*flags: str) -> str:
        capsys.readouterr()
        assert cli.main(["token", "--chief", run.target, "--keys", keys, *flags]) == 0
        del os.environ["DPS_KEYS"]
        printed = capsys.readouterr().out
        assert printed.endswith("\n") and len(printed.split()) == 1
        return printed.strip()

    yield token
    enrolling._joined.clear()


def elsewhere() -> None:
    """Forget what has joined in this process, as another process does not know it."""
    enrolling._joined.clear()


def refusal(token: str) -> str:
    elsewhere()
    with pytest.raises(NotAuthenticated) as caught:
        dps.Session(token, timeout=WAIT_S)
    return str(caught.value)


# -- who joins --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False])
def test_who_has_a_token_joins_with_a_key_of_its_own_which_all_ps_accept(
    make: Make, run: dps.Server, keys: str, shared: bool
) -> None:
    token = make()
    with session(token, shared_memory=shared) as joined:
        before = joined.pull()["w"]
        assert joined.push(ONES).accepted
        np.testing.assert_array_equal(joined.pull()["w"], before - 1)
        own = joined._server._node.keys
        assert own is not None and set(own.folder.keys.pairs) == {"worker"}
        assert own.pair() not in credentials(keys, "worker").folder.keys.pairs["worker"], "no role's key is handed out"
    with session(token) as again:  # the same process uses the token once
        assert again.push(ONES).accepted


def test_a_reader_by_a_token_reads_and_may_not_write(make: Make) -> None:
    with dps.Session(make("--role", "reader"), timeout=WAIT_S) as reader:
        assert reader.pull()["w"].shape == (40,)
        with pytest.raises(PermissionDenied, match=r"got Push of reader; wanted it of worker"):
            reader.push(ONES)
        with pytest.raises(PermissionDenied, match="got Save of reader"):
            reader.save()


def test_a_task_that_joined_listens_with_its_own_key_and_the_chief_and_others_reach_it(make: Make) -> None:
    """The chief watches the task, and a session runs a function there: both dial it, and know its key."""
    from dps.calls.functions import ServedFunctions
    from dps.coordinator.worker import Worker

    chief, name = enrolling.enrol(make())
    with dps.Server(None, "worker", 7, chief=chief, keys=name) as worker:
        worker.wait_joined(runtime().now() + WAIT_S)
        runtime().spawn("serves", Worker(worker, ServedFunctions(["operator:add"])).run)
        with session(make("--uses", "3")) as other, dps.device("/job:worker/task:7"):
            assert other.run("operator:add", 1, 2) == 3


def test_a_process_joins_by_a_token_on_its_stdin_and_trains(make: Make, run: dps.Server, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import numpy as np, dps\n"
        "with dps.Server.from_env() as server, dps.Session(server) as session:\n"
        "    print(server.job, session.pull()['w'].shape, flush=True)\n"
    )
    command = [sys.executable, "-m", "dps.role", "--join", "-", "--task", "5", "--program", str(program)]
    done = subprocess.run(command, input=make() + "\n", capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "worker (40,)\n"), done.stderr


# -- who does not -----------------------------------------------------------------------------------------------


def test_wrong_used_and_expired_tokens_are_alike_to_the_peer_and_told_apart_in_the_chiefs_log(
    make: Make, run: dps.Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    used, expired = make(), make("--ttl", "10m", "--role", "reader")
    wrong = str(parse_token(used)._replace(secret=Pair.new().secret))
    with dps.Session(used, timeout=WAIT_S):
        pass
    later = time.time() + 660.0
    monkeypatch.setattr(runtime(), "wall", lambda: later)
    said = {refusal(token) for token in (wrong, used, expired)}
    assert said == {token_refused(run.target)}
    for text in ("has no such key", "its join token, for a worker, is used up", "for a reader, has expired"):
        assert caplog.text.count(text) == 1, caplog.text


def test_a_token_that_two_use_at_one_time_enrols_one(make: Make, run: dps.Server) -> None:
    """Both are connected before either enrols: the second one is refused in words, in the same ones."""
    token = parse_token(make())
    callers = [by_token(token), by_token(token)]
    try:
        for caller in callers:
            caller.connect(run.target)
            with pytest.raises(PermissionDenied):
                caller.ask(Ref(run.target, CHIEF), AskStats(), WAIT_S)
        callers[0].ask(Ref(run.target, ENROLMENT), Enrol(Pair.new().public), WAIT_S)
        with pytest.raises(NotAuthenticated, match=enrolment.REFUSED):
            callers[1].ask(Ref(run.target, ENROLMENT), Enrol(Pair.new().public), WAIT_S)
    finally:
        for caller in callers:
            caller.close()


def test_a_token_for_a_reader_that_a_worker_brings_is_not_used(make: Make, run: dps.Server, tmp_path: Path) -> None:
    (tmp_path / "x.py").touch()
    given = make("--role", "reader")
    told = subprocess.run(
        [sys.executable, "-m", "dps.role", "--join", "-", "--program", str(tmp_path / "x.py")],
        check=False, input=given, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    wanted = "got a join token for a reader; wanted one that dps token --role worker prints"
    assert told.returncode == 2 and wanted in told.stderr, told.stderr
    assert enrolling.enrol(given)[0] == run.target


def test_a_token_of_another_chief_is_refused_by_its_key(make: Make) -> None:
    token = parse_token(make())
    assert "has another key than the chief of the join token" in refusal(
        str(token._replace(chief_key=Pair.new().public))
    )


def by_token(token: JoinToken, public: dict[str, list[bytes]] | None = None) -> Caller:
    """Who talks with the token's own key. `public`: the keys of others that he knows."""
    held = Keys({TOKEN: [Pair(token.public, token.secret)]}, public or {"chief": [token.chief_key]})
    folder = KeyFolder("token", held)
    return Caller(runtime(), "anybody", Credentials(folder, TOKEN, AcceptedKeys(folder)))


def test_the_key_of_a_token_enrols_and_does_nothing_else(make: Make, run: dps.Server) -> None:
    caller = by_token(parse_token(make()))
    messages: list[tuple[str, Message]] = [
        (CHIEF, AskStats()), (OPERATORS, EndRun("", True)), (ENROLMENT, MakeToken(Pair.new().public, "worker", 9, 9.0)),
    ]  # fmt: skip
    try:
        for actor, message in messages:
            with pytest.raises(PermissionDenied, match="of token; wanted it of"):
                caller.ask(Ref(run.target, actor), message, WAIT_S)
        with pytest.raises(NotAuthenticated, match=enrolment.REFUSED):
            caller.ask(Ref(run.target, ENROLMENT), Enrol(b"no key"), WAIT_S)
        public = credentials_of(run).folder.keys.public
        with pytest.raises(NotAuthenticated, match=enrolment.REFUSED):
            caller.ask(Ref(run.target, ENROLMENT), Enrol(public["chief"][0]), WAIT_S)
    finally:
        caller.close()


def credentials_of(server: dps.Server) -> Credentials:
    found = server._node.keys
    assert found is not None
    return found


def test_a_ps_takes_no_token(make: Make, run: dps.Server) -> None:
    """Only the chief knows the tokens: at a ps the key is nobody's."""
    token = parse_token(make())
    with session(run) as trains:
        address = trains._connection.peers[0].ref.address
    caller = by_token(token, credentials_of(run).folder.keys.public)
    caller.expect(address, PS)
    with pytest.raises(NotAuthenticated):
        caller.ask(Ref(address, PS), Pull(1, 0, 0, 0, -1, []), WAIT_S)
    caller.close()


def test_only_an_operator_makes_tokens_and_ends_the_run(run: dps.Server, keys: str, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    key_files.export(keys, ["worker", "reader"], out)
    for name in ("worker", "reader"):
        caller = Caller(runtime(), name, credentials(out, name))
        for actor, message in (
            (ENROLMENT, MakeToken(Pair.new().public, "worker", 1, 60.0)),
            (OPERATORS, EndRun("", True)),
        ):
            with pytest.raises(PermissionDenied, match=f"of {name}; wanted it of operator"):
                caller.ask(Ref(run.target, actor), message, WAIT_S)
        caller.close()
    assert run.exit_code is None


def test_what_an_operator_gets_wrong_is_one_line(
    run: dps.Server, keys: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    key_files.export(keys, ["worker"], out)
    chief = ("--chief", run.target)
    for flags, code, says in (
        ((*chief, "--keys", out), 5, "has no private key of operator, only of worker"),
        ((*chief, "--keys", keys, "--ttl", "soon"), 2, "got --ttl 'soon'; wanted a duration such as 90s"),
        ((*chief, "--keys", keys, "--uses", "0"), 2, "got --uses 0; wanted 1 to"),
        (("--chief", f"ipc://{tmp_path}/chief"), 2, "tokens are for runs with keys"),
    ):
        os.environ.pop("DPS_KEYS", None)
        assert cli.main(["token", *flags]) == code
        said = capsys.readouterr().err
        assert says in said and said.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("dps1-AAAA", "got a join token that is cut off or changed"),
        ("10.0.0.1:2220", "got a text of 13 characters that is no join token"),
        ("", "got a text of 0 characters that is no join token"),
    ],
)
def test_what_is_no_token_is_told_without_showing_it(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        parse_token(text)
    assert not text or text not in str(caught.value)


def test_a_token_reads_back_and_one_wrong_letter_is_noticed() -> None:
    token = JoinToken("[fd00::1]:2220", *Pair.new())
    text = str(token)
    assert parse_token(f" {text}\n") == token and text.replace("-", "").replace("_", "").isalnum()
    assert "secret" not in repr(token) and token.secret.decode() not in repr(token)
    for place in range(6, len(text) - 1, 7):
        changed = text[:place] + ("A" if text[place] != "A" else "B") + text[place + 1 :]
        with pytest.raises(ConfigError, match="cut off or changed"):
            parse_token(changed)


def test_a_task_says_that_a_token_on_its_command_line_can_be_read_and_which_file_can(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = f"dps1-{'A' * 90}"
    (tmp_path / "token").write_text(broken)
    (tmp_path / "token").chmod(0o644)
    assert role.main(["--join", broken, "--program", "x.py"]) == 2
    said = capsys.readouterr().err
    assert "the token on this command line: every account of this machine can read it; better --join -" in said
    monkeypatch.setenv("DPS_TOKEN_FILE", str(tmp_path / "token"))
    assert role.main(["--program", "x.py"]) == 2
    said = capsys.readouterr().err
    assert f"other accounts can read it; chmod 600 {tmp_path}/token" in said and "cut off or changed" in said
    assert role.main(["--join", f"@{tmp_path}/nothing", "--program", "x.py"]) == 2
    said = capsys.readouterr().err
    assert "cannot read a join token from" in said and "No such file or directory; wanted a file made by: dps" in said
    assert role.main(["--join", broken, "--chief", "127.0.0.1:1", "--program", "x.py"]) == 2
    assert "got a join token and --chief" in capsys.readouterr().err
    assert role.main(["--job", "ps", "--chief", broken]) == 2
    assert "got a join token as an address" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "got --join @ without a file; wanted @FILE, with the line that dps token has printed"),
        (b"\xff\xfe\x00", "{file} has binary content; wanted the line that dps token has printed"),
        (b"x" * 50_000, "got a text of 10000 characters that is no join token; copy the whole line"),
    ],
)
def test_a_file_that_has_no_join_token_is_one_line(
    content: bytes | None, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_bytes(content or b"")
    assert role.main(["--join", "@" if content is None else f"@{file}", "--program", "x.py"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"dps: {says.format(file=file)}") and said.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        ([], 2, "got neither"),
        (["--program", "nowhere.py"], 2, "--program nowhere.py: no such file"),
        (["--program", "x.py:absent"], 2, "x.py has no function 'absent'"),
        (["--program", "no.where"], 2, "no such file or module"),
        (["--serve", "nowhere"], 2, "nowhere"),
        (["--program", "x.py", "--bind", "nowhere.invalid:7"], 2, "nowhere.invalid"),
        (["--program", "x.py", "--bind", "TAKEN"], 2, "is taken by another server"),
        (["--program", "x.py", "--ports", "9-1"], 2, "9-1"),
        (["--job", "ps"], 2, "a token lets in workers; for a machine with other tasks"),
    ],
)
def test_a_mistake_on_the_joining_machine_does_not_use_the_token(
    flags: list[str], code: int, says: str, run: dps.Server, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def enrol(text: str, role: str) -> tuple[str, str]:
        raise AssertionError("the token was used")

    monkeypatch.setattr(enrolling, "enrol", enrol)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.py").touch()
    (tmp_path / "token").write_text(str(JoinToken(run.target, *Pair.new())))
    (tmp_path / "token").chmod(0o600)
    flags = [run.target if flag == "TAKEN" else flag for flag in flags]
    assert role.main(["--join", "@token", *flags]) == code
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1, said


# -- how it ends ------------------------------------------------------------------------------------------------


def test_revoking_the_pair_of_a_role_revokes_who_joined_under_it(
    keys: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(zap, "LOOK_S", 0.05)
    folder = str(shutil.copytree(keys, tmp_path / "keys", ignore=shutil.ignore_patterns("tokens-*")))
    monkeypatch.setenv("DPS_KEYS", folder)
    with cluster(transport="tcp") as (server,), session(server) as trains:
        trains.push(ONES)
        assert cli.main(["token", "--chief", server.target, "--role", "reader"]) == 0
        monkeypatch.delenv("DPS_KEYS")
        reader = dps.Session(capsys.readouterr().out.strip(), timeout=WAIT_S)
        assert reader.pull()["w"][0] == -1
        key_files.revoke(folder, "reader")
        with pytest.raises(NotAuthenticated, match="refuses the key that has joined by a token: it was revoked"):
            pull_for(reader, WAIT_S)
        assert trains.push(ONES).accepted
        reader.close()
    assert not list(Path(folder).glob("tokens-*")), "a run that is over leaves nothing of them"


def pull_for(session: dps.Session, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        session.pull()


def test_a_chief_that_is_started_again_knows_who_has_joined_and_which_tokens_are_used(
    keys: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(enrolment.KeyEnrolment, "stopping", lambda self: None)  # as if it was killed
    monkeypatch.setenv("DPS_KEYS", keys)
    with dps.Server(None, "chief", 0, bind="127.0.0.1:0") as chief:
        at = chief.address
        assert cli.main(["token", "--chief", at]) == 0
        token = capsys.readouterr().out.strip()
        monkeypatch.delenv("DPS_KEYS")
        address, name = enrolling.enrol(token)
    monkeypatch.setenv("DPS_KEYS", keys)
    monkeypatch.undo()
    with dps.Server(None, "chief", 0, bind=at, keys=keys):
        with dps.Server(None, "worker", 0, chief=address, keys=name) as worker:
            worker.wait_joined(runtime().now() + WAIT_S)
        assert refusal(token) == token_refused(at)


def test_uses_and_times_are_counted_on_the_chiefs_clock() -> None:
    tokens, under = JoinTokens(), {"worker": [b"w" * 40], "reader": [b"r" * 40]}
    token, expires = b"t" * 40, b"e" * 40
    assert tokens.issue(token, "worker", 2, 600.0, 1000.0) == "worker" and tokens.problem(b"x" * 40, 0.0) is None
    tokens.issue(token, "worker", 5, 9999.0, 1000.0)  # told again
    tokens.issue(expires, "reader", 1, 10.0, 1000.0)
    assert tokens.enrol(token, b"a" * 40, under, 1001.0) == "worker"
    assert tokens.enrol(token, b"a" * 40, under, 1002.0) == "worker", "told again: it counts once"
    assert tokens.enrol(token, b"b" * 40, under, 1599.0) == "worker" and tokens.version == 2
    assert "used up" in str(tokens.problem(token, 1599.0)) and "expired" in str(tokens.problem(expires, 1015.0))
    for key, when in ((b"c" * 40, 1500.0), (b"w" * 40, 1500.0)):
        with pytest.raises(NotAuthenticated):
            tokens.enrol(token, key, under, when)
    with pytest.raises(NotAuthenticated, match="expired"):
        tokens.enrol(expires, b"d" * 40, under, 1010.0)
    assert {key: joined.under for key, joined in tokens.joined.items()} == dict.fromkeys(
        (b"a" * 40, b"b" * 40), b"w" * 40
    )
    again = JoinTokens.from_json(tokens.to_json())
    assert again.to_json() == tokens.to_json() and again.enrol(token, b"a" * 40, under, 9e9) == "worker"


def test_the_oldest_token_that_is_over_makes_room_for_a_new_one() -> None:
    tokens = JoinTokens()
    for n in range(MOST):
        tokens.issue(b"%040d" % n, "reader", 1, 10.0, 0.0)
    with pytest.raises(ConfigError, match="wait until some have expired"):
        tokens.issue(b"x" * 40, "reader", 1, 10.0, 5.0)
    tokens.issue(b"x" * 40, "reader", 1, 10.0, 10.0)
    assert len(tokens.issued) == MOST and b"%040d" % 0 not in tokens.issued
    for role_, uses, ttl_s in (("chief", 1, 1.0), ("worker", 0, 1.0), ("worker", 1, 0.0), ("worker", 1, 1e9)):
        with pytest.raises(ConfigError):
            tokens.issue(b"y" * 40, role_, uses, ttl_s, 0.0)


def test_the_file_of_tokens_is_private_and_one_that_is_broken_says_what_to_do(tmp_path: Path) -> None:
    file = TokenFile(str(tmp_path), "127.0.0.1:2220")
    assert file.load().to_json() == JoinTokens().to_json()
    file.save(JoinTokens())
    assert os.stat(file.path).st_mode & 0o777 == 0o600 and [p.name for p in tmp_path.iterdir()] == [
        Path(file.path).name
    ]
    Path(file.path).write_text("{}")
    with pytest.raises(ConfigError, match="delete it; tasks that have joined by a token then need new ones"):
        file.load()
    file.remove()
    Path(file.path).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="cannot read the join tokens"):
        file.load()
