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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from ci.diagnose.explain import nearest
from ci.signing.lpai.libraries import ElfsignerTable
from provisioning.base.commands import captured, quoted
from provisioning.base.errors import (
    CheckFailed,
    EnvironmentLacking,
    LicenceNotAccepted,
    UpstreamError,
    UsageError,
)

_QUESTION = re.compile(
    r"(?:\[y(?:es)?\s*/\s*n(?:o)?\]|\(y(?:es)?\s*/\s*n(?:o)?\)|\b(?:agree|accept|continue)\b[^\n]*\?)[^\n]*\Z",
    re.IGNORECASE,
)
_LEGAL = re.compile(r"disclaimer|agree|licen[cs]e|terms", re.IGNORECASE)
_NETWORK = re.compile(
    r"urlopen error|URLError|Max retries|Connection (?:refused|reset|aborted|timed out)|ConnectionError"
    r"|Temporary failure in name resolution|Name or service not known|getaddrinfo|Network is unreachable"
    r"|ProxyError|SSLError|timed out",
    re.IGNORECASE,
)
_SILENT_SECONDS = 3.0
"""A script that has shown terms and is silent this long waits for an answer."""
_TICK = 0.1
_MOST_OUTPUT = 4 << 20
_SHOWN = 400
_PROBE = "import sys; print(*sys.version_info[:2])"
_OLDEST = (3, 6)
_PLAIN = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TMPDIR", "TERM", "SYSTEMROOT")
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy", "ssl_cert_file", "ssl_cert_dir")


class SignerFailed(CheckFailed):
    """elfsigner did not sign."""


class Unexpected(SignerFailed):
    """elfsigner says that it signed, and its file is not what we expect of it."""

    def __init__(self, message: str) -> None:
        super().__init__(
            f"elfsigner did something that we did not expect: {message}",
            fix="look at the file that is kept; what we expect is [elfsigner] in manifests/lpai.toml",
        )


class SignerOffline(UpstreamError):
    """elfsigner could not reach its server."""


@dataclass
class Consent:
    """Whether the user accepts a text that elfsigner shows. The answer holds for that text alone and is
    recorded."""

    store: Path
    version: str
    """The Hexagon SDK's version, for the record."""
    accepted: Mapping[str, str] = field(default_factory=dict)
    """Hashes of texts that the user accepted beforehand, each with the means: the flag or the variable."""
    ask: Callable[[str], bool] | None = None
    """Show the question to a person; None where there is no terminal."""
    show: Callable[[str], None] = print
    _answers: dict[str, bool] = field(default_factory=dict)

    LICENCE = "hexagon-elfsigner"

    def __call__(self, text: str) -> bool:
        digest = self.digest(text)
        if digest not in self._answers:
            self._answers[digest] = self._answer(digest, text)
        return self._answers[digest]

    @staticmethod
    def digest(text: str) -> str:
        """The hash by which a text is accepted; line breaks and blanks do not count."""
        return hashlib.sha256(" ".join(text.split()).encode()).hexdigest()

    def _answer(self, digest: str, text: str) -> bool:
        from provisioning import licences
        from provisioning.manifest import Component, Licence

        name = f"{self.LICENCE}-{digest}"
        if name in licences.recorded(self.store):
            return True
        self.show(f"elfsigner of the Hexagon SDK asks:\n\n{text.strip()}\n\nsha256 {digest}\n")
        means = self.accepted.get(digest, "")
        if not means and self.ask is not None and self.ask("Do you accept this?"):
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
        output = self._run([word.format(**words) for word in self.assumed.sign], into)
        return self._written(into, self.assumed.signed_name.format(**words), output)

    def test_signature(self, serial: int, into: Path) -> Path:
        words = {"serial": f"0x{serial:08x}", "folder": into.absolute()}
        output = self._run([word.format(**words) for word in self.assumed.test_signature], into)
        return self._written(into, self.assumed.test_signature_name.format(**words), output)

    def _run(self, arguments: Sequence[str], directory: Path) -> str:
        environment = {
            **plain_environment(),
            "HEXAGON_SDK_ROOT": str(self.script.parents[2]),
            # Its own directory is in the SDK, which nothing may write to.
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
        }
        command = [str(self.python), str(self.script), *arguments]
        status, output = converse(command, directory, environment, self)
        if status == 0:
            return output
        if _NETWORK.search(output):
            raise SignerOffline(
                f"elfsigner could not reach its server (status {status}): {tail(output)}",
                fix="check the network and proxy, then run it again",
            )
        if "No module named 'imp'" in output:
            raise EnvironmentLacking(
                f"{self.python} has no module imp, which elfsigner imports",
                fix="uv python install 3.11, or --python PATH",
            )
        known = nearest(output)
        raise SignerFailed(
            f"elfsigner ended with status {status}: {tail(output)}" + (f". {known}" if known else ""),
            fix=known.fix if known else f"run it by hand: {quoted(*command)}",
        )

    def _written(self, into: Path, name: str, output: str) -> Path:
        files = [path for path in sorted(into.rglob("*.so*")) if path.is_file()]
        named = [path for path in files if path.name == name]
        candidates = named or files
        path = candidates[0] if len(candidates) == 1 else None
        if path is None or path.stat().st_size == 0:
            state = "an empty file" if path else f"{len(files)} files" if files else "no file"
            if _NETWORK.search(output):
                raise SignerOffline(
                    f"elfsigner ended with status 0 and wrote {state}: {tail(output)}",
                    fix="check the network and proxy, then run it again",
                )
            raise Unexpected(f"it ended with status 0 and wrote {state}, not {name}: {tail(output)}")
        return path


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
        last_output = time.monotonic()
        try:
            while True:
                # Asked before the output is read: then all of it is there, whoever still holds the pipe.
                ended = child.poll() is not None
                if chunk := child.stdout.read(1 << 16):
                    output += chunk
                    last_output = time.monotonic()
                elif ended:
                    return child.returncode, _text(output)
                elif _is_question(_text(output[answered:]), answered, time.monotonic() - last_output):
                    asked = time.monotonic()
                    _answer(child.stdin, _text(output[answered:]), signer)
                    answered = len(output)
                    # Reading the terms does not count.
                    deadline += time.monotonic() - asked
                else:
                    time.sleep(_TICK)
                if len(output) > _MOST_OUTPUT:
                    message = f"elfsigner prints without end: {tail(_text(output))}"
                    raise SignerFailed(message, fix="run it by hand")
                if time.monotonic() > deadline:
                    raise SignerFailed(
                        f"elfsigner did not end within {signer.seconds:g} s: {tail(_text(output))}",
                        fix="run it again, with a higher --time-limit if it was still at work",
                    )
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)


def _is_question(text: str, answered: int, silent_seconds: float) -> bool:
    if _QUESTION.search(text.rstrip()):
        return True
    return silent_seconds > _SILENT_SECONDS and answered == 0 and bool(_LEGAL.search(text))


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


def interpreter(named: str | None, below: tuple[int, ...]) -> Path:
    """A Python that has the module imp: the named one, ours or one on PATH."""
    if named:
        path = shutil.which(named)
        version = _version(path) if path else None
        if path is None or version is None:
            raise UsageError(f"--python {named}: not a Python that runs", fix="name its executable")
        if not _OLDEST <= version < below:
            raise EnvironmentLacking(
                f"--python {named} is {_dotted(version)}; elfsigner needs one from {_dotted(_OLDEST)} "
                f"and before {_dotted(below)}",
                fix="uv python install 3.11",
            )
        return Path(path).absolute()
    seen: list[str] = []
    for candidate in _candidates(below):
        version = _version(candidate)
        if version is None:
            continue
        if _OLDEST <= version < below:
            return Path(candidate).absolute()
        seen.append(f"{candidate} ({_dotted(version)})")
    raise EnvironmentLacking(
        f"elfsigner needs a Python before {_dotted(below)}, found {', '.join(seen) or 'none'}",
        fix="uv python install 3.11, or install your system's python3.11; or name one with --python",
    )


def _candidates(below: tuple[int, ...]) -> Iterable[str]:
    if sys.executable:
        yield sys.executable
    minors = range(below[1] - 1, _OLDEST[1] - 1, -1)
    for minor in minors:
        if path := shutil.which(f"python3.{minor}"):
            yield path


def _version(python: str) -> tuple[int, ...] | None:
    try:
        done = captured([python, "-c", _PROBE], timeout=30, env=plain_environment())
    except (OSError, subprocess.TimeoutExpired):
        return None
    words = done.stdout.split()
    known = done.returncode == 0 and len(words) == 2 and all(map(str.isdecimal, words))
    return tuple(map(int, words)) if known else None


def plain_environment() -> dict[str, str]:
    """Variables for a tool that signs: what any program needs to run, proxies, and nothing else of ours."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in _PLAIN or name.startswith("LC_") or name.lower() in _PROXIES
    }


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
