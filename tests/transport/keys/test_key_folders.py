"""Folders of keys: `dps keys`, and what is refused when one is read."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
import zmq

from dps import cli
from dps.errors import ConfigError, NotAuthenticated
from dps.transport.keys import files as key_files
from dps.transport.keys.keyring import KeyFolder, credentials, read
from dps.transport.message import ROLES


@pytest.fixture
def folder(tmp_path: Path) -> str:
    made = str(tmp_path / "keys")
    key_files.new(made)
    return made


def test_new_keys_are_a_pair_for_each_role_that_nobody_else_can_read(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    assert cli.main(["keys", "new", str(path)]) == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()}
    assert modes == {f"{role}-1.{kind}": mode for role in ROLES for kind, mode in (("key", 0o600), ("pub", 0o644))}
    keys = read(str(path))
    assert all(keys.pairs[role][0].public == keys.public[role][0] for role in ROLES)
    assert len({keys.public[role][0] for role in ROLES}) == len(ROLES)
    assert keys.role_of(keys.public["ps"][0]) == "ps" and keys.role_of(zmq.curve_keypair()[0]) == ""


def test_new_keys_do_not_replace_others(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = read(folder)
    assert cli.main(["keys", "new", folder]) == 2
    assert f"{folder} is not empty" in capsys.readouterr().err and read(folder) == before


def test_an_export_has_the_private_keys_of_its_roles_only(folder: str, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    assert cli.main(["keys", "export", folder, "--role", "worker", "--role", "chief", out]) == 0
    exported, keys = read(out), read(folder)
    assert exported.public == keys.public
    assert exported.pairs == {role: keys.pairs[role] for role in ("worker", "chief")}
    assert stat.S_IMODE(os.stat(out).st_mode) == 0o700
    with pytest.raises(NotAuthenticated, match=r"only of chief, worker: ps-1.key is missing; .*--role ps OUT"):
        credentials(out, "ps")


def test_rotating_adds_a_set_and_revoking_takes_the_older_pair_of_a_role_away(folder: str, tmp_path: Path) -> None:
    first, out = read(folder), str(tmp_path / "out")
    key_files.export(folder, ["worker"], out)
    assert cli.main(["keys", "rotate", folder]) == 0
    both = read(folder)
    assert all(len(both.pairs[role]) == 2 and both.pairs[role][1] == first.pairs[role][0] for role in ROLES)
    with pytest.raises(ConfigError, match="two sets already"):
        key_files.rotate(folder)
    assert cli.main(["keys", "revoke", folder, "--role", "worker"]) == 0
    assert read(folder).pairs["worker"] == both.pairs["worker"][:1] and len(read(folder).pairs["ps"]) == 2
    key_files.export(folder, ["worker"], out)
    assert read(out).public == read(folder).public and read(out).pairs["worker"] == both.pairs["worker"][:1]
    assert key_files.revoke(folder, "worker") == 0 and "worker" not in read(folder).public
    with pytest.raises(ConfigError, match="no keys of worker"):
        key_files.revoke(folder, "worker")


def test_an_export_alone_is_not_rotated(folder: str, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    key_files.export(folder, ["worker"], out)
    with pytest.raises(ConfigError, match="has only a part of the keys"):
        key_files.rotate(out)


@pytest.mark.parametrize(
    ("name", "mode", "says"),
    [
        ("", 0o750, "has mode 750, so other accounts could use it; chmod 700"),
        ("ps-1.key", 0o640, "has mode 640, so other accounts could use it; chmod 600"),
        ("ps-1.pub", 0o666, "has mode 666, so other accounts could use it; chmod 644"),
    ],
)
def test_keys_that_others_could_use_are_refused_with_the_command_that_mends_it(
    folder: str, name: str, mode: int, says: str
) -> None:
    path = os.path.join(folder, name).rstrip("/")
    os.chmod(path, mode)
    with pytest.raises(NotAuthenticated) as caught:
        read(folder)
    assert str(caught.value) == f"{path} {says} {path}" and caught.value.exit_code == 5


def test_links_are_refused(folder: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(NotAuthenticated, match="link is a symbolic link"):
        read(str(tmp_path / "link"))
    key = Path(folder, "worker-1.key")
    key.rename(tmp_path / "elsewhere")
    key.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotAuthenticated, match=r"worker-1.key is a symbolic link"):
        read(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")
def test_files_of_another_user_are_refused(folder: str) -> None:
    os.chown(os.path.join(folder, "ps-1.pub"), 65534, -1)
    with pytest.raises(NotAuthenticated, match=r"ps-1.pub belongs to user 65534, not to user 0, .*chown 0"):
        read(folder)


def test_what_is_no_folder_of_keys_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing: No such file or directory; wanted a folder that dps keys new or"):
        read(str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match=r"nothing: No such file or directory; for a new run .*dps keys new"):
        credentials(tmp_path / "nothing", "chief")
    with pytest.raises(ConfigError, match=r"dps keys export DIR --role worker OUT, .*, or join by a token") as caught:
        credentials(tmp_path / "nothing", "worker")
    assert "dps keys new" not in str(caught.value)
    tmp_path.chmod(0o700)
    with pytest.raises(ConfigError, match="has no keys; wanted a folder"):
        read(str(tmp_path))
    Path(tmp_path, "ps-1.key").write_text("no key\n")
    Path(tmp_path, "ps-1.key").chmod(0o600)
    with pytest.raises(ConfigError, match=r"ps-1.key holds no key; wanted 40 characters of Z85"):
        read(str(tmp_path))


def test_without_curve_there_is_one_clear_line(
    folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(zmq, "has", lambda what: False)
    with pytest.raises(ConfigError, match="has no CURVE"):
        credentials(folder, "ps")
    assert cli.main(["keys", "new", f"{folder}-2"]) == 2 and capsys.readouterr().err.count("\n") == 1


def test_a_folder_is_read_again_when_files_come_or_go(folder: str, caplog: pytest.LogCaptureFixture) -> None:
    known = KeyFolder(folder)
    assert not known.changed()
    key_files.rotate(folder)
    assert known.changed() and len(known.keys.public["ps"]) == 2 and not known.changed()
    os.chmod(folder, 0o755)
    key_files_before = known.keys
    os.unlink(os.path.join(folder, "ps-1.pub"))
    assert not known.changed() and known.keys is key_files_before and not known.changed()
    assert caplog.text.count("the keys stay as they were") == 1


@pytest.mark.parametrize("command", ["new", "rotate"])
def test_a_disk_that_gets_full_leaves_nothing_that_a_second_try_meets(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys"
    if command == "rotate":
        key_files.new(str(path))
    before, write, left = sorted(path.iterdir()) if path.exists() else None, key_files._write_new, [9]

    def full(name: str, key: bytes, mode: int) -> None:
        left[0] -= 1
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(name, key, mode)

    monkeypatch.setattr(key_files, "_write_new", full)
    assert cli.main(["keys", command, str(path)]) == 2
    said = capsys.readouterr().err
    assert "No space left on device; nothing was changed" in said and said.count("\n") == 1
    assert (sorted(path.iterdir()) if path.exists() else None) == before
    assert cli.main(["keys", command, str(path)]) == 0


def test_an_export_to_what_is_no_export_is_refused_without_harmful_advice(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_to_all, file = tmp_path / "open", tmp_path / "file"
    open_to_all.mkdir(mode=0o755)
    file.write_text("no folder")
    for out in (str(open_to_all), "/etc", str(file)):
        assert cli.main(["keys", "export", folder, "--role", "worker", out]) == 2
        said = capsys.readouterr().err
        assert said == f"dps: {out} exists and is no export of keys; wanted the name of a new folder, which is made\n"
    for out in (f"{file}/out", "/proc/out"):
        assert cli.main(["keys", "export", folder, "--role", "worker", out]) == 2
        said = capsys.readouterr().err
        assert f"keys: cannot write to {out}: " in said and said.count("\n") == 1
    with pytest.raises(ConfigError, match="/etc has no keys"):
        credentials("/etc", "worker")
