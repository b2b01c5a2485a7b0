"""Hosts for tests of SSH: an sshd each on a loopback address of this machine, with keys that are thrown away."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

from tests.chaos.cluster import MARK, ROOT
from tests.launch.clusters.test_local_processes import until
from tests.launch.engines.needs import need
from tests.launch.engines.processes import inheriting, running

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


class Hosts:
    """Hosts by their names. `bin` has an `ssh` that knows them and their keys, for the PATH of a launcher."""

    def __init__(self, folder: Path, mark: str, *names: str) -> None:
        need("" if SSHD and shutil.which("ssh-keygen") else "an sshd (Debian: apt install openssh-server)")
        self.folder, self.bin = folder, folder / "bin"
        self._mark = mark
        self.temporary = Path(tempfile.mkdtemp(prefix="hosts-", dir="/tmp"))  # short, for the paths of sockets
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.bin.mkdir(parents=True)
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        self._key("user")
        lines = []
        for name in names:
            (self.temporary / name).mkdir()
        for number, name in enumerate(names, 1):
            self._key(name)
            lines.append(self._begin(name, f"127.0.0.{number}"))
        known = f"UserKnownHostsFile {folder}/known\nIdentityFile {folder}/user\nIdentitiesOnly yes\n"
        (folder / "config").write_text("".join(lines) + f"Host *\n{known}")
        (self.bin / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
        (self.bin / "ssh").chmod(0o755)

    def _key(self, name: str) -> None:
        path = str(self.folder / name)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)

    def _begin(self, name: str, address: str) -> str:
        """Start one; returns what ssh has to know of it."""
        with socket.socket() as free:
            free.bind((address, 0))
            port = free.getsockname()[1]
        config = self.folder / f"{name}.config"
        config.write_text(
            f"ListenAddress {address}:{port}\nHostKey {self.folder}/{name}\nPidFile none\nStrictModes no\nUsePAM no\n"
            f"AuthorizedKeysFile {self.folder}/user.pub\nPasswordAuthentication no\nLogLevel ERROR\n"
            f"SetEnv PYTHONPATH={ROOT} {MARK}={self._mark} TEST_HOST={name} TMPDIR={self.temporary}/{name}\n"
        )
        assert SSHD is not None
        self._processes[name] = subprocess.Popen([SSHD, "-D", "-e", "-f", str(config)])
        key = (self.folder / f"{name}.pub").read_text()
        with (self.folder / "known").open("a") as known:
            known.write(f"[{address}]:{port} {key}")

        def listens() -> bool:
            with socket.socket() as tried:
                return tried.connect_ex((address, port)) == 0

        until(listens)
        return f"Host {name}\n  HostName {address}\n  Port {port}\n"

    def forget(self) -> None:
        """Have a wrong key for every host."""
        known = self.folder / "known"
        wrong = (self.folder / "user.pub").read_text()
        places = [line.split()[0] for line in known.read_text().splitlines()]
        known.write_text("".join(f"{place} {wrong}" for place in places))

    def change_user_key(self) -> None:
        """Have a key that no host knows."""
        known = (self.folder / "user.pub").read_text()
        for file in ("user", "user.pub"):
            (self.folder / file).unlink()
        self._key("user")
        (self.folder / "user.pub").write_text(known)

    def processes(self, name: str) -> list[int]:
        """The host processes and tasks on a host."""
        return inheriting(f"TEST_HOST={name}", f"{MARK}={self._mark}")

    def host_process(self, name: str) -> int:
        """The host process on a host."""
        return running("dps.launch.hosts.host", self.processes(name))

    def vanish(self, name: str) -> None:
        """A host is gone at once, with all that runs there."""
        for pid in self.processes(name):
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.temporary / name)

    def stop(self) -> None:
        """End all sshds; nobody listens there any more."""
        for process in self._processes.values():
            process.terminate()
            process.wait(5.0)

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.temporary, ignore_errors=True)
