"""An ssh server for this user alone, on a port and with keys of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from getpass import getuser
from pathlib import Path

from tests.support import needs
from tests.support.ports import free_port
from tests.support.scripts import script

HOST = "board"
_CONFIG = """\
ListenAddress 127.0.0.1:{port}
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
StrictModes no
UsePAM no
PasswordAuthentication no
PidFile none
"""
_CLIENT = """\
Host {host}
  HostName 127.0.0.1
  Port {port}
  User {user}
  IdentityFile {folder}/user
  IdentitiesOnly yes
  StrictHostKeyChecking accept-new
  UserKnownHostsFile {folder}/known_hosts
"""


@contextmanager
def ssh_server(folder: Path) -> Iterator[Mapping[str, str]]:
    """Variables of a user in whose configuration of ssh the server is called `board`."""
    program = needs.program("sshd")
    # ssh takes the home directory from the system's list of users, and not from a variable.
    ssh = script(folder / "bin" / "ssh", f'exec {shutil.which("ssh")} -F {folder}/ssh_config "$@"')
    for name in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True, timeout=60
        )
    config, client, log = folder / "sshd_config", folder / "ssh_config", folder / "log"
    # Where the server separates privileges; Debian's own start script makes it.
    Path("/run/sshd").mkdir(exist_ok=True)
    with free_port() as port:
        config.write_text(_CONFIG.format(port=port, folder=folder), encoding="utf-8")
        text = _CLIENT.format(host=HOST, port=port, user=getuser(), folder=folder)
        client.write_text(text, encoding="utf-8")
        # -E: nobody reads a pipe, and a full one would stop the server.
        with subprocess.Popen([program, "-D", "-E", str(log), "-f", str(config)]) as server:
            try:
                _await(server, port, log)
                yield {"PATH": f"{ssh.parent}:{os.environ['PATH']}"}
            finally:
                server.terminate()


def _await(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(log.read_text(encoding="utf-8"))
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError("sshd does not answer")
