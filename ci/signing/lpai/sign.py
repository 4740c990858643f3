"""Plan what is to be signed, sign it, verify it, and put it into the overlay."""

from __future__ import annotations

import functools
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from ci.signing import checks, signed_library, verification
from ci.signing.lpai import device_serial, libraries, rehearsal
from ci.signing.lpai.elfsigner import Consent, Elfsigner, Unexpected, interpreter
from ci.signing.lpai.libraries import Chip
from ci.signing.signatures import STATEMENT
from provisioning import licences
from provisioning.base.command_line import confirmed
from provisioning.base.commands import Fix
from provisioning.base.errors import CheckFailed, EnvironmentLacking, ToolkitError, UsageError
from provisioning.base.files import replace_bytes
from provisioning.base.findings import Artifact, Finding, Severity
from provisioning.base.settings import Selection
from provisioning.base.stage_run import StageRun
from provisioning.environment import Environment, resolve

ROOT_NAME = "development-root.pem"
WORKERS = 2


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
        serial = device_serial.parse_serial(options.serial)
    else:
        serial = device_serial.read_serial() if options.from_device else 0
    environment = _environment(options, selection)
    overlay = _overlay(options.output, environment, selection)
    chain = rehearsal.new_signer() if options.signer == "dev" else None
    cancelled = threading.Event()
    planned = [_plan(options, chip, serial, environment, selection, chain, cancelled) for chip in chips]
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
            _sign_jobs(work, overlay, stage, cancelled, Path(selection.reports) / "sign_lpai")
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
    cancelled: threading.Event,
) -> ChipWork:
    files = [] if serial else libraries.to_sign(chip, environment, options.library, direct=options.direct)
    sdk = environment.roots.get("qnn-sdk") if environment else None
    qnn = libraries.check_qnn(chip, sdk, files)
    libraries.require_fit(chip, sdk, files)
    if chain is not None:
        signer = _rehearsal(chain, chip)
    else:
        assert environment is not None
        signer = _elfsigner(options, environment, selection, chip, files, cancelled)
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


def _sign_jobs(
    planned: ChipWork, overlay: Path, stage: StageRun, cancelled: threading.Event, kept: Path
) -> None:
    """Sign in parallel. One that fails does not stop the others. Unexpected files go to `kept`."""
    into = overlay / planned.chip.directory
    with _writing(into):
        into.mkdir(parents=True, exist_ok=True)
        # Beside the overlay's files, so that each can be put in place in one step.
        work = tempfile.TemporaryDirectory(prefix=".signing-", dir=overlay)
    stopped: list[ToolkitError] = []
    with work, ThreadPoolExecutor(WORKERS) as pool:
        running = [
            (
                job,
                Path(work.name) / str(index),
                pool.submit(_sign_one, job, planned.signer, Path(work.name) / str(index), into),
            )
            for index, job in enumerate(planned.jobs)
        ]
        try:
            for job, folder, future in running:
                try:
                    path, findings = future.result()
                except Unexpected as error:
                    stage.add("signing-failed", Severity.ERROR, job.name, error.message, error.fix)
                    stage.artifacts += _keep(folder, kept / job.name)
                except CheckFailed as error:
                    stage.add("signing-failed", Severity.ERROR, job.name, error.message, error.fix)
                except ToolkitError as error:
                    cancelled.set()
                    stopped.append(error)
                else:
                    stage.findings += findings
                    stage.artifacts.append(Artifact.of("signed-library", path))
                    sys.stdout.write(f"  signed {path}\n")
        except BaseException:
            cancelled.set()
            pool.shutdown(cancel_futures=True)
            raise
    if stopped:
        raise stopped[0]


def _sign_one(job: FileToSign, signer: Signer, work: Path, into: Path) -> tuple[Path, list[Finding]]:
    """Sign, verify the result like any foreign file, and only then put it in place."""
    work.mkdir()
    result = signer.library(job.source, work) if job.source else signer.test_signature(job.serial, work)
    place = into / job.name
    expected = checks.ExpectedSignature()
    if signer.root is not None:
        expected = checks.ExpectedSignature(root=signer.root, serial=job.serial or None)
    verified = verification.verify_file(result, expected)
    allowed = (checks.SIGNATURE, checks.ROOT)
    findings = [
        finding
        for finding in checks.findings_of(place, verified, allowed=allowed)
        # The signer is known, because it signed just now.
        if finding.rule not in (checks.SIGNER_KNOWN, checks.SIGNER_UNKNOWN)
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
    cancelled: threading.Event,
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
    driver = Elfsigner(script, python, seconds, consent, table.elfsigner, cancelled)
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
