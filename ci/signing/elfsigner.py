"""The Hexagon SDK's elfsigner, run without a terminal and within a time limit.

Its exit status is not believed: only the file that it writes counts, and the caller verifies that file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, ClassVar

from ci.diagnose.logs import nearest
from ci.signing.lpai_libraries import ElfsignerTable
from ci.work import closed_environment
from provisioning import licences
from provisioning.base.commands import capture, quote_command
from provisioning.base.errors import (
    CheckFailed,
    EnvironmentLacking,
    ToolkitError,
    UpstreamError,
    UsageError,
)
from provisioning.installer import uv_program

YES_OR_NO = r"[\[(]y(?:es)?\s*/\s*n(?:o)?[\])]"
ASKS_TO_AGREE = r"\b(?:agree|accept|continue)\b[^\n]*\?"
QUESTION = re.compile(rf"(?:{YES_OR_NO}|{ASKS_TO_AGREE})[^\n]*\Z", re.IGNORECASE)
"""The output of a program that waits for an answer ends like this."""

NO_NETWORK = re.compile(
    r"urlopen error|URLError|Max retries|Connection (?:refused|reset|aborted|timed out)|ConnectionError"
    r"|Temporary failure in name resolution|Name or service not known|getaddrinfo|Network is unreachable"
    r"|ProxyError|SSLError|timed out",
    re.IGNORECASE,
)

TICK = 0.1
"""Seconds between two looks at a silent elfsigner."""

READ_SIZE = 1 << 16
LONGEST_LINE = 4096
MOST_OUTPUT = 4 << 20
SHOWN_CHARACTERS = 400
SHOWN_LINES = 4


class Unexpected(CheckFailed):
    """elfsigner says that it signed, and its file is not what we expect of it."""

    def __init__(self, message: str) -> None:
        super().__init__(
            f"elfsigner did something that we did not expect: {message}",
            fix="look at the file that is kept; what we expect is [elfsigner] in manifests/lpai.toml",
        )


@dataclass(frozen=True, slots=True)
class Consent:
    """Decides whether the user accepts a text that elfsigner shows.

    The answer holds for that text alone, and it is recorded in the store."""

    store: Path
    version: str
    """The Hexagon SDK's version, for the record."""
    accepted: Mapping[str, str]
    """The ids of texts that the user accepted beforehand, each with how it was accepted."""

    LICENCE: ClassVar = "hexagon-elfsigner"

    @classmethod
    def name(cls, text: str) -> str:
        """The id by which a text is accepted. Line breaks and blanks do not count."""
        words = " ".join(text.split())
        digest = hashlib.sha256(words.encode()).hexdigest()
        return f"{cls.LICENCE}-{digest}"

    def __call__(self, text: str) -> bool:
        name = self.name(text)
        if name in licences.recorded_licences(self.store):
            return True
        sys.stderr.write(f"elfsigner of the Hexagon SDK asks:\n\n{text.strip()}\n\n")
        means = self.accepted.get(name, "")
        if means:
            self._record(name, means)
        return bool(means)

    def _record(self, name: str, means: str) -> None:
        from provisioning.manifest import Component, Licence

        # No manifest can name this licence, because its text is only known now.
        licence = Licence.model_construct(
            id=name, title="question of the Hexagon SDK's elfsigner, by its hash", url=""
        )
        component = Component.model_construct(version=self.version, licence=licence, parts=())
        licences.require(self.store, {"hexagon-sdk": component}, {name: means})


@dataclass(frozen=True, slots=True)
class Elfsigner:
    script: Path
    python: Path
    seconds: float
    consent: Callable[[str], bool]
    assumed: ElfsignerTable

    def sign(self, library: Path, into: Path) -> Path:
        """Sign one library into an empty folder, and return the file that elfsigner wrote there."""
        # Paths are absolute, because elfsigner runs in that folder.
        words = {"library": library.absolute(), "library_name": library.name, "folder": into.absolute()}
        arguments = [word.format(**words) for word in self.assumed.sign]
        command = [str(self.python), str(self.script), *arguments]
        status, output = self._converse(command, into)
        name = self.assumed.signed_name.format(**words)
        paths = [path for path in into.rglob(name) if path.is_file() and path.stat().st_size > 0]
        if status == 0 and len(paths) == 1:
            return paths[0]
        raise self._failure(command, status, output, name)

    def _environment(self) -> dict[str, str]:
        return {
            **closed_environment(os.environ),
            # The user's packages are for another Python.
            "PYTHONPATH": "",
            "HEXAGON_SDK_ROOT": str(self.script.parents[2]),
            # elfsigner lies in the SDK, which nothing may write to.
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
        }

    def _converse(self, command: Sequence[str], folder: Path) -> tuple[int, str]:
        """Run elfsigner and answer its questions; returns its exit status and its output."""
        with subprocess.Popen(
            command,
            cwd=folder,
            env=self._environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            bufsize=0,
        ) as child:
            try:
                output = Conversation(child, self).run()
                return child.returncode, output
            finally:
                # What elfsigner started is in its session, and must not outlive it.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGKILL)

    def _failure(self, command: Sequence[str], status: int, output: str, name: str) -> ToolkitError:
        end = last_lines(output)
        if NO_NETWORK.search(output):
            return UpstreamError(
                f"elfsigner could not reach its server (status {status}): {end}",
                fix="check the network and proxy, then run it again",
            )
        if "No module named 'imp'" in output:
            return EnvironmentLacking(
                f"{self.python} has no module imp, which elfsigner imports",
                fix="uv python install 3.11, or --python PATH",
            )
        if status == 0:
            return Unexpected(f"it ended with status 0 and wrote no file {name}: {end}")
        message = f"elfsigner ended with status {status}: {end}"
        known = nearest(output)
        if known:
            return CheckFailed(f"{message}. {known}", fix=known.fix)
        return CheckFailed(message, fix=f"run it by hand: {quote_command(*command)}")


@dataclass
class Conversation:
    """A running elfsigner: what it has printed, and how much of that was answered."""

    child: subprocess.Popen[bytes]
    signer: Elfsigner
    output: bytearray = field(default_factory=bytearray)
    answered: int = 0
    """The length of the output when the last question was answered."""
    deadline: float = 0.0

    def run(self) -> str:
        """Read and answer until elfsigner ends; returns what it printed."""
        stdin, stdout = self.child.stdin, self.child.stdout
        assert stdin is not None and stdout is not None
        os.set_blocking(stdout.fileno(), False)
        self.deadline = time.monotonic() + self.signer.seconds
        while True:
            # Ask before reading: if it has ended, all of its output is in the pipe by now.
            has_ended = self.child.poll() is not None
            chunk: bytes | None = stdout.read(READ_SIZE)
            if chunk:
                self.output += chunk
            elif has_ended:
                return _text(self.output)
            elif self._waits_for_an_answer():
                self._answer(stdin)
            elif chunk == b"":
                # It has closed its output and goes on.
                time.sleep(TICK)
            else:
                select.select([stdout], [], [], TICK)
            self._check_limits()

    def _waits_for_an_answer(self) -> bool:
        start = max(self.answered, len(self.output) - LONGEST_LINE)
        end = _text(self.output[start:]).rstrip()
        return QUESTION.search(end) is not None

    def _answer(self, stdin: IO[bytes]) -> None:
        text = _text(self.output[self.answered :])
        start = time.monotonic()
        if not self.signer.consent(text):
            raise EnvironmentLacking(
                "what elfsigner asks was not accepted",
                fix=f"read it, then set {licences.VARIABLE}={Consent.name(text)}",
            )
        # An elfsigner that does not wait for the answer has ended: its exit status decides.
        with contextlib.suppress(BrokenPipeError):
            stdin.write(f"{self.signer.assumed.answer}\n".encode())
        self.answered = len(self.output)
        # The time that a person needs to read the terms does not count.
        self.deadline += time.monotonic() - start

    def _check_limits(self) -> None:
        if len(self.output) > MOST_OUTPUT:
            end = last_lines(_text(self.output))
            raise CheckFailed(f"elfsigner prints without end: {end}", fix="run it by hand")
        if time.monotonic() > self.deadline:
            end = last_lines(_text(self.output))
            raise CheckFailed(
                f"elfsigner did not end within {self.signer.seconds:g} s: {end}",
                fix="run it again, or by hand",
            )


def _text(output: bytes | bytearray) -> str:
    return output.decode("utf-8", "replace")


def last_lines(output: str) -> str:
    """The end of an output, for a message."""
    lines = [line.strip() for line in output.splitlines()]
    lines = [line for line in lines if line]
    return " | ".join(lines[-SHOWN_LINES:])[-SHOWN_CHARACTERS:] or "no output"


def interpreter(program: str | None, below: str) -> Path:
    """A Python that has the module imp: the named one, or one that uv finds."""
    if program:
        path = shutil.which(program)
        if path is None:
            raise UsageError(f"--python {program}: no such program", fix="name a Python's executable")
        return Path(path).absolute()
    uv = uv_program()
    if uv is None:
        raise EnvironmentLacking(
            "uv, which finds the Python to run elfsigner with, is not installed",
            fix="name a Python with --python",
        )
    request = f">=3.6,<{below}"
    process = capture([uv, "python", "find", "--no-config", "--no-project", request], timeout=60)
    if process.returncode != 0:
        raise EnvironmentLacking(
            f"elfsigner needs a Python {request}, and uv finds none: {last_lines(process.stderr)}",
            fix="uv python install 3.11, or install your system's python3.11; or name one with --python",
        )
    return Path(process.stdout.strip()).absolute()
