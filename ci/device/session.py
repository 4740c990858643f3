"""One run of a bundle on a device: push what changed into a folder that is claimed for us, run it, fetch its
outputs.

Files that are there already, by their hashes, are not sent again."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ci.device.bundle_contents import RUN, WRAPPER
from ci.device.transport import SECONDS, CommandResult, Device, Lost, TimedOut, batches
from provisioning.base.errors import ToolkitError, UpstreamError, UsageError
from provisioning.base.findings import Artifact, Metric

OUTPUTS = "outputs"
INPUTS = "inputs"
INPUT_LIST = f"{INPUTS}/list.txt"
PROCESS = "run.pid"
LEAST_AFTER_KILL = 20
STOP_SECONDS = 10
"""How long a process has to end after each signal."""

STILL_RUNS = 5
CLEANED = ("bin", "lib", "dsp", INPUTS)
"""Folders where no file of an earlier run may stay."""


@dataclass(frozen=True, slots=True)
class RunResult:
    code: int | None
    """The exit code; None if the run did not end in time."""
    out: str
    still_running: int | None = None
    """The process that could not be ended, and still runs on the device."""


def stage_inputs(list_path: Path, scratch: Path) -> dict[str, Path]:
    """The raw files that an input list names, and the list as it must be on the device.

    `scratch` gets links with the names of the device, so that adb pushes many at once.
    """
    lines: list[str] = []
    files: dict[str, Path] = {}
    try:
        text = list_path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "expected lines of file names, found no text"
        raise UsageError(f"--inputs {list_path}: {why}") from error
    for number, line in enumerate(text.splitlines()):
        if line.startswith("#"):
            continue
        names = []
        where = f"--inputs {list_path}: line {number + 1}"
        try:
            words = shlex.split(line)
        except ValueError as error:
            raise UsageError(f"{where}: {error}", fix="close the quotes around file names") from error
        for index, word in enumerate(words):
            path = list_path.parent / word
            if not path.is_file():
                raise UsageError(f"{where}: there is no file {path}")
            place = f"{INPUTS}/{number:04d}_{index}.raw"
            files[place] = scratch / PurePosixPath(place).name
            files[place].symlink_to(path.absolute())
            names.append(place)
        if names:
            lines.append(" ".join(names))
    if not lines:
        raise UsageError(f"--inputs {list_path}: expected a line for each inference, found none")
    list_file = scratch / "list.txt"
    list_file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return {**files, INPUT_LIST: list_file}


def push(device: Device, folder: str, files: Mapping[str, Path]) -> dict[str, Metric]:
    """Send the files whose hashes differ, check that they arrived, and remove those of earlier bundles.

    Returns what was done, for the report."""
    artifacts = {place: Artifact.of("", path) for place, path in files.items()}
    folders = sorted({str(PurePosixPath(place).parent) for place in files} | {OUTPUTS, *CLEANED})
    _expect(device.shell(f"mkdir -p {_below(folder, folders)}"), device, f"{folder} could not be created")
    digests = hashes(device, folder, sorted({*artifacts, *_present(device, folder)}))
    stale = sorted(place for place in digests if place not in artifacts)
    for batch in batches(stale):
        _expect(device.shell(f"rm -f {_below(folder, batch)}"), device, "an old file could not be removed")
    places = [place for place, artifact in artifacts.items() if digests.get(place) != artifact.sha256]
    if places:
        device.push({place: files[place] for place in places}, folder)
        results = hashes(device, folder, places)
        for place in places:
            if results.get(place) != artifacts[place].sha256:
                raise UpstreamError(
                    f"{device.name}: {folder}/{place}: expected {artifacts[place].sha256} after pushing, "
                    f"found {results.get(place, 'no such file')}",
                    fix="check that the device has space left (df -h), then run it again",
                )
    size = sum(artifacts[place].size for place in places)
    unchanged = len(artifacts) - len(places)
    return {"pushed": [*places], "removed": [*stale], "unchanged": unchanged, "pushed_bytes": size}


def hashes(device: Device, folder: str, places: Sequence[str]) -> dict[str, str]:
    """SHA-256 by place, without files that are missing."""
    digests = {}
    for batch in batches(places):
        names = " ".join(map(shlex.quote, batch))
        script = (
            f"cd {shlex.quote(folder)} || exit 1\nset --\n"
            f'for f in {names}; do [ -f "$f" ] && set -- "$@" "$f"; done\n'
            '[ $# -eq 0 ] || sha256sum "$@"'
        )
        answer = _expect(device.shell(script), device, f"no hashes of the files in {folder}")
        for line in answer.out.splitlines():
            digest, _, place = line.partition("  ")
            if len(digest) == 64:
                digests[place.strip()] = digest
    return digests


def run(
    device: Device,
    folder: str,
    arguments: Sequence[str],
    *,
    wrapper: str = "",
    seconds: float = SECONDS,
    stop_seconds: int = STOP_SECONDS,
) -> RunResult:
    """Run run.sh of the bundle in an emptied outputs/, and end it on the device when it takes too long.

    Raises Lost, with what the runner had printed, if the device is gone.
    """
    place = shlex.quote(folder)
    prefix = f"{WRAPPER}={shlex.quote(wrapper)} " if wrapper else ""
    script = (
        f"cd {place} || exit 1\nrm -rf {OUTPUTS}\nmkdir -p {OUTPUTS}\n"
        # The shell becomes the runner, so that its number is the one to end.
        f"{prefix}sh -c 'echo $$ > {PROCESS}; exec sh {RUN} \"$@\"' sh {shlex.join(arguments)}\n"
        f"code=$?\nrm -f {PROCESS}\nexit $code"
    )
    try:
        answer = device.shell(script, seconds=seconds)
    except TimedOut as late:
        try:
            still_running = stop(device, folder, stop_seconds)
        except ToolkitError as error:
            raise Lost(error.message, error.fix, late.out) from error
        return RunResult(None, late.out, still_running)
    except KeyboardInterrupt:
        with suppress(ToolkitError):
            stop(device, folder, stop_seconds)
        raise
    return RunResult(answer.code, answer.out)


def stop(device: Device, folder: str, seconds: int) -> int | None:
    """End what `run` started: interrupt it, then kill it. Returns the process that is still there, or
    None."""
    place = shlex.quote(f"{folder}/{PROCESS}")
    script = (
        f"pid=$(cat {place} 2>/dev/null) || exit 0\n"
        # A zombie has ended; only its parent has not noticed yet. The state comes before the question
        # whether there is a process: a zombie that its parent takes away in between has no state.
        'runs() { state=$(cat "/proc/$pid/stat" 2>/dev/null); kill -0 "$pid" 2>/dev/null || return 1; '
        'case $state in *") Z "*) return 1;; esac; }\n'
        f'for how in TERM KILL; do\n  kill -s $how "$pid" 2>/dev/null\n  tries={seconds}\n'
        # A killed process ends, if late on a busy device.
        f"  [ $how = TERM ] || tries={max(seconds, LEAST_AFTER_KILL)}\n"
        "  while runs && [ $tries -gt 0 ]; do sleep 1; tries=$((tries - 1)); done\n"
        f'  runs || {{ rm -f {place}; exit 0; }}\ndone\necho "$pid"; exit {STILL_RUNS}'
    )
    answer = device.shell(script, seconds=60 + 2 * seconds)
    return int(answer.out) if answer.code == STILL_RUNS and answer.out.strip().isdecimal() else None


def fetch_outputs(device: Device, folder: str, into: Path) -> list[Path]:
    shutil.rmtree(into, ignore_errors=True)
    device.pull(f"{folder}/{OUTPUTS}", into)
    return sorted(path for path in into.rglob("*") if path.is_file())


def _present(device: Device, folder: str) -> Iterator[str]:
    """The files in the folders where nothing of an earlier bundle may stay."""
    patterns = " ".join(f"{name}/*" for name in CLEANED)
    script = f'cd {shlex.quote(folder)} || exit 1\nfor f in {patterns}; do [ -f "$f" ] && echo "$f"; done\n:'
    answer = _expect(device.shell(script), device, f"{folder} could not be listed")
    yield from (line.strip() for line in answer.out.splitlines() if line.startswith(CLEANED))


def _below(folder: str, places: Sequence[str]) -> str:
    return " ".join(shlex.quote(f"{folder}/{place}") for place in places)


def _expect(answer: CommandResult, device: Device, failure: str) -> CommandResult:
    if answer.code != 0:
        reason = answer.out.strip().splitlines()[-1:] or ["no reason given"]
        raise UpstreamError(
            f"{device.name}: {failure}: {reason[0]}", fix="name a folder that you may write with --device-dir"
        )
    return answer
