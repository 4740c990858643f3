"""Run the Hexagon SDK's elfsigner without a terminal and within a time limit. Only its files are believed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ClassVar

from ci.closed import closed
from ci.diagnose.explain import nearest
from ci.signing.lpai.libraries import ElfsignerTable
from provisioning.base.command_line import confirmed
from provisioning.base.commands import captured, quoted
from provisioning.base.errors import (
    CheckFailed,
    EnvironmentLacking,
    LicenceNotAccepted,
    ToolkitError,
    UpstreamError,
    UsageError,
)
from provisioning.python_environments import uv_program

_QUESTION = re.compile(
    r"(?:\[y(?:es)?\s*/\s*n(?:o)?\]|\(y(?:es)?\s*/\s*n(?:o)?\)|\b(?:agree|accept|continue)\b[^\n]*\?)[^\n]*\Z",
    re.IGNORECASE,
)
_NETWORK = re.compile(
    r"urlopen error|URLError|Max retries|Connection (?:refused|reset|aborted|timed out)|ConnectionError"
    r"|Temporary failure in name resolution|Name or service not known|getaddrinfo|Network is unreachable"
    r"|ProxyError|SSLError|timed out",
    re.IGNORECASE,
)
_TICK = 0.1
_MOST_OUTPUT = 4 << 20
_SHOWN = 400


class Unexpected(CheckFailed):
    """elfsigner says that it signed, and its file is not what we expect of it."""

    def __init__(self, message: str) -> None:
        super().__init__(
            f"elfsigner did something that we did not expect: {message}",
            fix="look at the file that is kept; what we expect is [elfsigner] in manifests/lpai.toml",
        )


@dataclass(frozen=True, slots=True)
class Consent:
    """Whether the user accepts a text that elfsigner shows. The answer holds for that text alone and is
    recorded."""

    store: Path
    version: str
    """The Hexagon SDK's version, for the record."""
    accepted: Mapping[str, str]
    """Hashes of texts that the user accepted beforehand, each with the means: the flag or the variable."""

    LICENCE: ClassVar = "hexagon-elfsigner"

    @staticmethod
    def digest(text: str) -> str:
        """The hash by which a text is accepted; line breaks and blanks do not count."""
        return hashlib.sha256(" ".join(text.split()).encode()).hexdigest()

    def __call__(self, text: str) -> bool:
        from provisioning import licences
        from provisioning.manifest import Component, Licence

        digest = self.digest(text)
        name = f"{self.LICENCE}-{digest}"
        if name in licences.recorded(self.store):
            return True
        sys.stderr.write(f"elfsigner of the Hexagon SDK asks:\n\n{text.strip()}\n\nsha256 {digest}\n\n")
        terminal = sys.stdin is not None and sys.stdin.isatty()
        means = self.accepted.get(digest, "")
        if not means and terminal and confirmed("Do you accept this?"):
            means = "asked"
        if means:
            # No manifest can name it: its text is only known now.
            licence = Licence.model_construct(
                id=name, title="question of the Hexagon SDK's elfsigner, by its hash", url=""
            )
            component = Component.model_construct(version=self.version, licence=licence, parts=())
            licences.require(self.store, {"hexagon-sdk": component}, {name: means})
        return bool(means)


@dataclass(frozen=True, slots=True)
class Elfsigner:
    script: Path
    python: Path
    seconds: float
    consent: Callable[[str], bool]
    assumed: ElfsignerTable

    def sign(self, library: Path, into: Path) -> Path:
        """Sign one library into a fresh directory; returns the file that elfsigner wrote there."""
        # It runs in another directory.
        words = {"library": library.absolute(), "library_name": library.name, "folder": into.absolute()}
        environment = {
            **closed(os.environ),
            # The user's packages are for another Python.
            "PYTHONPATH": "",
            "HEXAGON_SDK_ROOT": str(self.script.parents[2]),
            # Its own directory is in the SDK, which nothing may write to.
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
        }
        arguments = [word.format(**words) for word in self.assumed.sign]
        command = [str(self.python), str(self.script), *arguments]
        status, output = converse(command, into, environment, self)
        name = self.assumed.signed_name.format(**words)
        paths = [path for path in into.rglob(name) if path.is_file() and path.stat().st_size > 0]
        if status == 0 and len(paths) == 1:
            return paths[0]
        raise self._failure(command, status, output, name)

    def _failure(self, command: Sequence[str], status: int, output: str, name: str) -> ToolkitError:
        if _NETWORK.search(output):
            return UpstreamError(
                f"elfsigner could not reach its server (status {status}): {tail(output)}",
                fix="check the network and proxy, then run it again",
            )
        if "No module named 'imp'" in output:
            return EnvironmentLacking(
                f"{self.python} has no module imp, which elfsigner imports",
                fix="uv python install 3.11, or --python PATH",
            )
        if status == 0:
            return Unexpected(f"it ended with status 0 and wrote no file {name}: {tail(output)}")
        known = nearest(output)
        return CheckFailed(
            f"elfsigner ended with status {status}: {tail(output)}" + (f". {known}" if known else ""),
            fix=known.fix if known else f"run it by hand: {quoted(*command)}",
        )


def converse(
    command: Sequence[str], directory: Path, environment: Mapping[str, str], signer: Elfsigner
) -> tuple[int, str]:
    """Run elfsigner and answer its questions as `consent` says; returns its exit status and its output.

    It leads a session of its own, which ends with it, however it ends."""
    output, answered = bytearray(), 0
    deadline = time.monotonic() + signer.seconds
    with subprocess.Popen(
        command,
        cwd=directory,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        bufsize=0,
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        os.set_blocking(child.stdout.fileno(), False)
        try:
            while True:
                # Asked before the output is read: then all of it is there, whoever still holds the pipe.
                ended = child.poll() is not None
                if chunk := child.stdout.read(1 << 16):
                    output += chunk
                elif ended:
                    return child.returncode, _text(output)
                elif _QUESTION.search(_text(output[answered:]).rstrip()):
                    asked = time.monotonic()
                    _answer(child.stdin, _text(output[answered:]), signer)
                    answered = len(output)
                    # Reading the terms does not count.
                    deadline += time.monotonic() - asked
                else:
                    time.sleep(_TICK)
                if len(output) > _MOST_OUTPUT:
                    message = f"elfsigner prints without end: {tail(_text(output))}"
                    raise CheckFailed(message, fix="run it by hand")
                if time.monotonic() > deadline:
                    raise CheckFailed(
                        f"elfsigner did not end within {signer.seconds:g} s: {tail(_text(output))}",
                        fix="run it again, with a higher --time-limit if it was still at work",
                    )
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)


def _answer(stdin: IO[bytes], text: str, signer: Elfsigner) -> None:
    if not signer.consent(text):
        raise LicenceNotAccepted(
            "what elfsigner asks was not accepted",
            fix=f"read it, then add --accept-disclaimer {Consent.digest(text)}",
        )
    # If it does not wait for the answer, its exit status decides.
    with contextlib.suppress(BrokenPipeError):
        stdin.write(f"{signer.assumed.answer}\n".encode())


def _text(output: bytes | bytearray) -> str:
    return output.decode("utf-8", "replace")


def tail(output: str) -> str:
    """The end of an output, for a message."""
    lines = [line.strip() for line in output.strip().splitlines() if line.strip()]
    return " | ".join(lines[-4:])[-_SHOWN:] or "no output"


def interpreter(named: str | None, below: str) -> Path:
    """A Python that has the module imp: the named one, or one that uv finds."""
    if named:
        path = shutil.which(named)
        if path is None:
            raise UsageError(f"--python {named}: no such program", fix="name a Python's executable")
        return Path(path).absolute()
    if (uv := uv_program()) is None:
        raise EnvironmentLacking(
            "uv, which finds the Python to run elfsigner with, is not installed",
            fix="name a Python with --python",
        )
    request = f">=3.6,<{below}"
    done = captured([uv, "python", "find", "--no-config", "--no-project", request], timeout=60)
    if done.returncode != 0:
        raise EnvironmentLacking(
            f"elfsigner needs a Python {request}, and uv finds none: {tail(done.stderr)}",
            fix="uv python install 3.11, or install your system's python3.11; or name one with --python",
        )
    return Path(done.stdout.strip()).absolute()
