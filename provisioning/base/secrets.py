"""The variables of the remote cache, and how its secrets stay away from code that is not ours.

A model, a build backend or a package has the rights of the run that starts it: it reads the environment and,
by /proc, that of each process of the same user. So a run has no key that writes, and hides the one that
reads.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from provisioning.base.commands import Fix, session
from provisioning.base.errors import UsageError

URL = "QNN_CI_REMOTE_CACHE"
TOKEN = f"{URL}_TOKEN"
"""`user:password`, or a bearer token, to write with. ..._FILE, as of those below, names a file with it."""
SIGNING_KEY = f"{URL}_SIGNING_KEY"
"""The writer's private key in PEM."""
READ_TOKEN = f"{URL}_READ_TOKEN"
"""As TOKEN, to read with, where the server lets nobody read without."""
PUBLIC_KEYS = f"{URL}_PUBLIC_KEYS"
"""The public keys of all writers in PEM."""
RESULTS = f"{URL}_RESULTS"
"""A folder, in which a run packs what `cache push` uploads."""

_hidden: dict[str, str] = {}


def refuse_keys(verb: str, environ: Mapping[str, str]) -> None:
    """Raise UsageError if code that this verb runs could find what writes to the remote cache."""
    named = (name for key in (SIGNING_KEY, TOKEN) for name in (key, f"{key}_FILE"))
    if found := next((name for name in named if environ.get(name)), ""):
        raise UsageError(
            f"{found} is set, and {verb} may run code that is not ours, which could read it",
            fix=Fix(
                "unset it, set {}=results, and upload in a separate step or job that has it: {}",
                RESULTS,
                session("cache", "push", "results"),
            ),
        )
    if "@" in urlsplit(environ.get(URL, "")).netloc:
        raise UsageError(f"{URL} has a password in it, which every process can read", fix=f"set {READ_TOKEN}")


def hide() -> None:
    """Take READ_TOKEN out of this process: no child inherits it, and /proc/PID/environ does not show it."""
    if not (value := os.environ.pop(READ_TOKEN, "")):
        return
    _hidden[READ_TOKEN] = value
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    start, end = int(fields[47]), int(fields[48])
    with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
        memory.seek(start)
        block = memory.read(end - start)
        place = start
        for entry in block.split(b"\0"):
            if entry.startswith(f"{READ_TOKEN}=".encode()):
                memory.seek(place)
                memory.write(b"\0" * len(entry))
            place += len(entry) + 1


def handed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of another verb of ours, which hides the secret again."""
    return {**environ, **_hidden}
