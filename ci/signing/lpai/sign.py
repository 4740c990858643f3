"""Plan what is to be signed, sign it, verify it, and put it into the overlay."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from ci.signing import signed_library, verification
from ci.signing.lpai import libraries, rehearsal
from ci.signing.lpai.elfsigner import Consent, Elfsigner, Unexpected, interpreter
from ci.signing.lpai.libraries import Chip
from ci.signing.verification import STATEMENT
from provisioning import licences
from provisioning.base.command_line import confirmed
from provisioning.base.commands import Fix, captured
from provisioning.base.errors import CheckFailed, EnvironmentLacking, UsageError
from provisioning.base.files import replace_bytes
from provisioning.base.findings import Artifact, Finding, Severity
from provisioning.base.settings import Selection
from provisioning.base.stage_run import StageRun
from provisioning.environment import Environment, resolve

ROOT_NAME = "development-root.pem"
SERIAL_FILE = "/sys/devices/soc0/serial_number"
ADB_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class SignOptions:
    """What `sign_lpai` was asked for; None where the user left the choice to us."""

    arch: str | None
    direct: bool
    library: Sequence[Path]
    serial: str | None
    from_device: bool
    signer: str
    output: Path
    accept_disclaimer: Sequence[str]
    time_limit: float | None
    python: str | None


@dataclass(frozen=True, slots=True)
class Signer:
    """Writes a signed file into a fresh directory: elfsigner, or a rehearsal."""

    name: str
    library: Callable[[Path, Path], Path]
    test_signature: Callable[[int, Path], Path]
    root: x509.Certificate | None = None
    """A rehearsal's root: every signature must end in it."""


@dataclass(frozen=True, slots=True)
class FileToSign:
    """One file to make: a signed `source`, or a test signature for the device `serial`."""

    source: Path | None
    serial: int = 0

    @property
    def name(self) -> str:
        return self.source.name if self.source else f"testsig-0x{self.serial:08x}.so"


@dataclass(frozen=True, slots=True)
class ChipWork:
    """What is to be signed for one chip."""

    chip: Chip
    qnn: str
    jobs: tuple[FileToSign, ...]
    signer: Signer


def sign(options: SignOptions, selection: Selection, stage: StageRun) -> None:
    """Sign for every chip. Whatever can be refused is refused before anything is signed."""
    chips = libraries.chips(selection.socs, options.arch)
    if options.serial is not None:
        serial = parse_serial(options.serial)
    else:
        serial = read_serial() if options.from_device else 0
    environment = _environment(options, selection)
    overlay = _overlay(options.output, environment, selection)
    chain = rehearsal.new_signer() if options.signer == "dev" else None
    planned = [_plan(options, chip, serial, environment, selection, chain) for chip in chips]
    _announce(planned, environment)
    for work in planned:
        stage.metrics[f"lpai-v{work.chip.lpai}"] = {
            "soc": work.chip.name,
            "arch": work.chip.arch,
            "qnn": work.qnn,
            "signer": work.signer.name,
            "libraries": [job.name for job in work.jobs],
            "overlay": str(overlay),
        }
        watched = _watched(environment, work.chip)
        before = _inventory(watched)
        try:
            _sign_jobs(work, overlay, stage, Path(selection.reports) / "sign_lpai")
        finally:
            for changed in sorted({path for path, _ in before.items() ^ _inventory(watched).items()}):
                message = f"changed while {work.signer.name} ran, and nothing may write to an SDK"
                fix = Fix("provision it again, or repair it: {}", ("store", "repair"))
                stage.add("signing-sdk-changed", Severity.ERROR, changed, message, fix)
    if chain is not None:
        with _writing(overlay / ROOT_NAME):
            replace_bytes(overlay / ROOT_NAME, chain.root_pem)


def _plan(
    options: SignOptions,
    chip: Chip,
    serial: int,
    environment: Environment | None,
    selection: Selection,
    chain: rehearsal.KeyAndChain | None,
) -> ChipWork:
    files = [] if serial else libraries.to_sign(chip, environment, options.library, direct=options.direct)
    sdk = environment.roots.get("qnn-sdk") if environment else None
    qnn = libraries.check_qnn(chip, sdk, files)
    libraries.require_fit(chip, sdk, files)
    if chain is not None:
        signer = _rehearsal(chain, chip)
    else:
        assert environment is not None
        signer = _elfsigner(options, environment, selection, chip, files)
    jobs = (FileToSign(None, serial),) if serial else tuple(FileToSign(path) for path in files)
    return ChipWork(chip, qnn, jobs, signer)


def _announce(planned: Sequence[ChipWork], environment: Environment | None) -> None:
    lines = [STATEMENT] if any(work.signer.root for work in planned) else []
    for work in planned:
        chip = work.chip
        what = f"LPAI v{chip.lpai}, Hexagon v{chip.arch}, QNN {work.qnn or 'unknown'}"
        lines.append(f"{chip.name}: {what}: {len(work.jobs)} to sign with {work.signer.name}")
    for component, root in (environment.roots if environment else {}).items():
        if root.origin == "directory":
            lines.append(f"  {component}: {root.path} ({root.variable})")
    sys.stdout.write("\n".join(lines) + "\n")


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EnvironmentLacking(f"{path}: {error.strerror}", fix="-o names another directory") from error


def _sign_jobs(planned: ChipWork, overlay: Path, stage: StageRun, kept: Path) -> None:
    """Sign one after the other. One that fails does not stop the others. Unexpected files go to `kept`."""
    into = overlay / planned.chip.directory
    with _writing(into):
        into.mkdir(parents=True, exist_ok=True)
        # Beside the overlay's files, so that each can be put in place in one step.
        work = tempfile.TemporaryDirectory(prefix=".signing-", dir=overlay)
    with work:
        for index, job in enumerate(planned.jobs):
            folder = Path(work.name) / str(index)
            try:
                path, findings = _sign_one(job, planned.signer, folder, into)
            except CheckFailed as error:
                stage.add("signing-failed", Severity.ERROR, job.name, error.message, error.fix)
                if isinstance(error, Unexpected):
                    stage.artifacts += _keep(folder, kept / job.name)
                continue
            stage.findings += findings
            stage.artifacts.append(Artifact.of("signed-library", path))
            sys.stdout.write(f"  signed {path}\n")


def _sign_one(job: FileToSign, signer: Signer, work: Path, into: Path) -> tuple[Path, list[Finding]]:
    """Sign, verify the result like any foreign file, and only then put it in place."""
    work.mkdir()
    result = signer.library(job.source, work) if job.source else signer.test_signature(job.serial, work)
    place = into / job.name
    expected = verification.ExpectedSignature()
    if signer.root is not None:
        expected = verification.ExpectedSignature(root=signer.root, serial=job.serial or None)
    verified = verification.verify_file(result, expected)
    allowed = (verification.SIGNATURE, verification.ROOT)
    findings = [
        finding
        for finding in verification.findings_of(place, verified, allowed=allowed)
        # The signer is known, because it signed just now.
        if finding.rule not in (verification.SIGNER_KNOWN, verification.SIGNER_UNKNOWN)
    ]
    errors = [finding.message for finding in findings if finding.severity is Severity.ERROR]
    if job.source and not errors:
        with signed_library.mapped(job.source) as before, signed_library.mapped(result) as after:
            errors += signed_library.differences(before, after)
    if errors:
        message = f"{signer.name} wrote a file that is not {job.name} signed: {'; '.join(errors)}"
        if signer.root is None:
            raise Unexpected(message)
        raise CheckFailed(message, fix="nothing was put into the overlay; run it again")
    with _writing(place):
        result.chmod(0o644)
        result.replace(place)
    return place, findings


def _keep(folder: Path, into: Path) -> list[Artifact]:
    """Move elfsigner's output to a place where it can be looked at."""
    shutil.rmtree(into, ignore_errors=True)
    with _writing(into):
        shutil.copytree(folder, into)
    return [Artifact.of("unexpected", path) for path in sorted(into.rglob("*")) if path.is_file()]


def _rehearsal(chain: rehearsal.KeyAndChain, chip: Chip) -> Signer:
    def library(source: Path, into: Path) -> Path:
        with signed_library.mapped(source) as data:
            try:
                signed = rehearsal.sign(data, chain)
            except UsageError as error:
                raise UsageError(f"{source}: {error.message}", fix=error.fix) from error
        return _written(into / source.name, signed)

    def test_signature(serial: int, into: Path) -> Path:
        signed = rehearsal.sign(rehearsal.carrier_library(chip.arch, (serial,)), chain, (serial,))
        return _written(into / FileToSign(None, serial).name, signed)

    return Signer("the rehearsal signer", library, test_signature, chain.root)


def _elfsigner(
    options: SignOptions,
    environment: Environment,
    selection: Selection,
    chip: Chip,
    files: Sequence[Path],
) -> Signer:
    table = libraries.load_table()
    script = libraries.elfsigner_script(environment, files, chip)
    below = tuple(map(int, table.python_below.split(".")))
    python = interpreter(options.python, below)
    accepted = {
        licence.removeprefix(f"{Consent.LICENCE}-"): licences.VARIABLE
        for licence in licences.named((), os.environ)
        if licence.startswith(f"{Consent.LICENCE}-")
    }
    consent = Consent(
        store=selection.store,
        version=libraries.version_of("hexagon-sdk", environment.roots["hexagon-sdk"]),
        accepted=accepted | dict.fromkeys(options.accept_disclaimer, "--accept-disclaimer"),
        ask=confirmed if sys.stdin is not None and sys.stdin.isatty() else None,
        show=functools.partial(print, file=sys.stderr),
    )
    seconds = table.time_limit_seconds if options.time_limit is None else options.time_limit
    driver = Elfsigner(script, python, seconds, consent, table.elfsigner)
    return Signer("elfsigner", driver.sign, driver.test_signature)


def _environment(options: SignOptions, selection: Selection) -> Environment | None:
    """None where it is not needed: a rehearsal with libraries that the user names."""
    named = options.library or options.serial or options.from_device
    if options.signer == "dev" and not options.direct and named:
        return None
    environment = resolve(selection, os.environ)
    environment.explain()
    return environment


def _overlay(output: Path, environment: Environment | None, selection: Selection) -> Path:
    overlay = output.absolute()
    roots = [root.path for root in environment.roots.values()] if environment else []
    for root in (*roots, selection.store):
        if overlay.resolve().is_relative_to(root.resolve()):
            raise UsageError(
                f"{overlay} is inside {root}, which nothing may write to", fix="-o names another directory"
            )
    return overlay


def _watched(environment: Environment | None, chip: Chip) -> list[Path]:
    """Folders of the SDKs that a signer might write to, and must not."""
    roots = environment.roots if environment else {}
    folders = {"qnn-sdk": f"lib/lpai-v{chip.lpai}", "hexagon-sdk": "tools/elfsigner"}
    return [roots[name].path / folder for name, folder in folders.items() if name in roots]


def _inventory(directories: Sequence[Path]) -> Mapping[str, tuple[int, int]]:
    stamps = {}
    for directory in directories:
        for path in directory.rglob("*"):
            status = path.lstat()
            stamps[str(path)] = (status.st_size, status.st_mtime_ns)
    return stamps


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def parse_serial(text: str) -> int:
    """`0x1a2b3c4d` as signing tools write it. UsageError for anything but 1 to 0xffffffff in hex."""
    serial = int(text, 16) if re.fullmatch("0[xX][0-9a-fA-F]+", text) else 0
    if not 0 < serial <= 0xFFFFFFFF:
        raise UsageError(
            f"--serial {text}: expected 32 bits in hex, not 0, as 0x1a2b3c4d",
            fix=f"`adb shell cat {SERIAL_FILE}` prints it, in decimal",
        )
    return serial


def read_serial() -> int:
    """Ask the one device that adb sees, or the one that ANDROID_SERIAL names."""
    adb = shutil.which("adb")
    if adb is None:
        raise EnvironmentLacking(
            "there is no adb on PATH", fix="install Android's platform-tools, or use --serial"
        )
    try:
        done = captured([adb, "shell", "cat", SERIAL_FILE], timeout=ADB_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise EnvironmentLacking(
            f"the device did not answer within {ADB_SECONDS:g} s", fix="see `adb devices`"
        ) from error
    answer = done.stdout.strip()
    if done.returncode != 0 or not answer.isdecimal():
        message = (done.stderr.strip() or answer or "no answer").splitlines()[-1]
        raise EnvironmentLacking(
            f"the device's serial number could not be read: {message}",
            fix="see `adb devices`; name one of several in ANDROID_SERIAL, or give the number with --serial",
        )
    serial = int(answer)
    if not 0 < serial <= 0xFFFFFFFF:
        raise EnvironmentLacking(
            f"the device gives {answer} as its serial number, expected 32 bits and not 0",
            fix="give the number with --serial",
        )
    return serial
