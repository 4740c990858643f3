"""`sign_lpai`: sign the Hexagon libraries that LPAI needs, into an overlay beside the SDK."""

from __future__ import annotations

import argparse
import functools
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from provisioning.base.command_line import duration
from provisioning.base.commands import typed
from provisioning.base.errors import CheckFailed, EnvironmentLacking, ToolkitError, UsageError
from provisioning.base.settings import Selection, add_selection, selection_of

if TYPE_CHECKING:
    from cryptography import x509

    from ci.signing.keys import Identity
    from ci.signing.plan import Chip
    from provisioning.base.findings import Finding, Metric, StageRun
    from provisioning.environment import Environment

EXAMPLES = """\
  nox -s sign_lpai -- --profile qnn-2.48 --soc SM8850
  python -m ci sign_lpai --profile qnn-2.48 --soc SM8850 --direct --accept-disclaimer
  python -m ci sign_lpai --profile qnn-2.48 --soc SM8850 --from-device
  python -m ci sign_lpai --soc SM8850 --signer dev --library build/libmine_skel.so
  python -m ci sign_lpai --soc SM8850 --signer dev --serial 0x1a2b3c4d
"""

STAGE = "sign_lpai"
OVERLAY = Path("dist/overlay")
ROOT_NAME = "development-root.pem"
TARGET = "aarch64-linux"
"""Whose SDK tree holds the Hexagon libraries and needs no compiler beside it."""
WORKERS = 2


def configure(parser: argparse.ArgumentParser) -> None:
    from ci.signing.options import add_identity

    add_selection(parser)
    what = parser.add_argument_group("what to sign")
    what.add_argument("--arch", help="instead of --soc: Hexagon arch (v81) or LPAI version (v6)")
    what.add_argument("--direct", action="store_true", help="all that ExecuTorch on the DSP loads")
    what.add_argument(
        "--library",
        type=Path,
        action="extend",
        nargs="+",
        default=[],
        metavar="FILE",
        help="these files; with --direct, in place of those of the same name",
    )
    serial = what.add_mutually_exclusive_group()
    serial.add_argument("--serial", help="a test signature for this device (0x…) instead of libraries")
    serial.add_argument("--from-device", action="store_true", help="the same, its serial read with adb")
    what.add_argument("--device", metavar="ADB_SERIAL", help="which of several devices to read")
    how = parser.add_argument_group("how")
    how.add_argument("--signer", choices=("elfsigner", "dev"), default="elfsigner", help="[%(default)s]")
    how.add_argument("-o", "--output", type=Path, default=OVERLAY, help="the overlay [%(default)s]")
    how.add_argument(
        "--accept-disclaimer",
        action="store_true",
        help="elfsigner's, which is shown once [QNN_CI_ACCEPT_LICENCES=hexagon-elfsigner]",
    )
    how.add_argument(
        "--time-limit",
        type=duration,
        metavar="SECONDS",
        help="for each run of elfsigner [manifests/lpai.toml]",
    )
    how.add_argument("--python", metavar="PATH", help="to run elfsigner with; an older one than most have")
    how.add_argument("--strict", action="store_true", help="warnings fail too")
    add_identity(parser)


def run(args: argparse.Namespace) -> int:
    from provisioning.base.findings import Outcome, StageRun

    selection = selection_of(args)
    if not selection.targets:
        selection = replace(selection, target=TARGET)
    stage = StageRun(
        STAGE, selection.profile, selection.target, command_of("nox -s sign_lpai --", sys.argv[2:])
    )
    with stage.reported(selection.reports, "signing.stopped"):
        _sign_all(args, selection, stage)
    report = stage.finish(strict=args.strict)
    path = report.write(selection.reports)
    for finding in report.findings:
        sys.stdout.write(f"{finding.severity.value}: {finding.subject}: {finding.message}\n")
    sys.stdout.write(f"{report.outcome.value}: {len(report.artifacts)} signed, report in {path}\n")
    return 0 if report.outcome is Outcome.PASS else 1


def command_of(program: str, argv: Sequence[str]) -> str:
    """The command for the report. A signing command's arguments may hold more than anyone should read."""
    shown = list(argv)
    for index, word in enumerate(shown):
        if word == "--sign-command" and index + 1 < len(shown):
            shown[index + 1] = shown[index + 1].split(" ", 1)[0] + " …"
        elif word.startswith("--sign-command="):
            shown[index] = word.split(" ", 1)[0] + " …"
    return typed(program, shown)


@dataclass(frozen=True, slots=True)
class Signer:
    """Two ways to make a file in a fresh directory: elfsigner's and the development signer's."""

    name: str
    library: Callable[[Path, Path], Path]
    test_signature: Callable[[int, Path], Path]
    root: x509.Certificate | None = None
    """Known for a signer whose every output must end in it."""


@dataclass(frozen=True, slots=True)
class Job:
    """One file to make: a signed `source`, or a test signature for the device `serial`."""

    source: Path | None
    serial: int = 0

    @property
    def name(self) -> str:
        return self.source.name if self.source else f"testsig-0x{self.serial:08x}.so"


@dataclass(frozen=True, slots=True)
class Work:
    """All that is to be done for one chip, decided."""

    chip: Chip
    qnn: str
    jobs: tuple[Job, ...]
    signer: Signer

    def as_metric(self, overlay: Path) -> dict[str, Metric]:
        return {
            "soc": self.chip.name,
            "arch": self.chip.arch,
            "qnn": self.qnn,
            "signer": self.signer.name,
            "libraries": [job.name for job in self.jobs],
            "overlay": str(overlay),
        }


def _sign_all(args: argparse.Namespace, selection: Selection, stage: StageRun) -> None:
    """Everything that can be refused is refused before anything is signed."""
    from ci.signing import plan
    from ci.signing.files import put
    from ci.signing.keys import root_pem
    from ci.signing.options import identity_of
    from provisioning.base.findings import Severity

    chips = plan.chips(selection.socs or (selection.soc,), args.arch)
    serial = _serial(args)
    environment = _environment(args, selection)
    overlay = _overlay(args.output, environment, selection)
    identity = identity_of(args) if args.signer == "dev" else None
    cancelled = threading.Event()
    todo = [_plan(args, chip, serial, environment, selection, identity, cancelled) for chip in chips]
    _explain(todo, identity, environment)
    for work in todo:
        stage.metrics[f"lpai-v{work.chip.lpai}"] = work.as_metric(overlay)
        watched = _watched(environment, work.chip)
        before = _inventory(watched)
        try:
            _sign_jobs(work.jobs, work.signer, overlay, overlay / work.chip.directory, stage, cancelled)
        finally:
            for changed in sorted({path for path, _ in before.items() ^ _inventory(watched).items()}):
                message = f"changed while {work.signer.name} ran, and nothing may write to an SDK"
                remedy = "provision it again, or repair it: python -m provisioning store repair"
                stage.add("signing.sdk-changed", Severity.ERROR, changed, message, remedy)
    if identity is not None:
        put(overlay / ROOT_NAME, root_pem(identity))


def _plan(
    args: argparse.Namespace,
    chip: Chip,
    serial: int,
    environment: Environment | None,
    selection: Selection,
    identity: Identity | None,
    cancelled: threading.Event,
) -> Work:
    from ci.signing import plan

    files = [] if serial else plan.libraries(chip, environment, args.library, direct=args.direct)
    qnn = plan.check_qnn(chip, environment.roots.get("qnn-sdk") if environment else None, files)
    if identity is not None:
        signer = _development(args, identity, chip)
    else:
        assert environment is not None
        signer = _elfsigner(args, environment, selection, chip, files, cancelled)
    jobs = (Job(None, serial),) if serial else tuple(Job(path) for path in files)
    return Work(chip, qnn, jobs, signer)


def _explain(todo: Sequence[Work], identity: Identity | None, environment: Environment | None) -> None:
    from ci.signing.scheme import STATEMENT

    lines = [STATEMENT, f"  key: {identity.description}"] if identity else []
    for work in todo:
        chip = work.chip
        what = f"LPAI v{chip.lpai}, Hexagon v{chip.arch}, QNN {work.qnn or 'unknown'}"
        lines.append(f"{chip.name}: {what}: {len(work.jobs)} to sign with {work.signer.name}")
    for component, root in (environment.roots if environment else {}).items():
        if root.origin == "directory":
            lines.append(f"  {component}: {root.path} ({root.variable})")
    sys.stdout.write("\n".join(lines) + "\n")


def _sign_jobs(
    jobs: Sequence[Job],
    signer: Signer,
    overlay: Path,
    into: Path,
    stage: StageRun,
    cancelled: threading.Event,
) -> None:
    """Sign side by side; one that fails does not keep the others from being signed."""
    from provisioning.base.findings import Artifact, Severity

    try:
        into.mkdir(parents=True, exist_ok=True)
        # Beside the overlay's files, so that each can be put in place in one step.
        work = tempfile.TemporaryDirectory(prefix=".signing-", dir=overlay)
    except OSError as error:
        raise EnvironmentLacking(f"{into}: {error.strerror}", remedy="-o names another directory") from error
    stopped: list[ToolkitError] = []
    with work, ThreadPoolExecutor(WORKERS) as pool:
        running = [
            (job, pool.submit(_sign_one, job, signer, Path(work.name) / str(index), into))
            for index, job in enumerate(jobs)
        ]
        try:
            for job, future in running:
                try:
                    path, findings = future.result()
                except CheckFailed as error:
                    stage.add("signing.failed", Severity.ERROR, job.name, error.message, error.remedy)
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


def _sign_one(job: Job, signer: Signer, work: Path, into: Path) -> tuple[Path, list[Finding]]:
    """Sign, look at what came out as a stranger would, and only then put it in place."""
    from ci.signing import image, verification
    from provisioning.base.findings import Severity

    work.mkdir()
    made = signer.library(job.source, work) if job.source else signer.test_signature(job.serial, work)
    place = into / job.name
    expected = verification.Expected()
    if signer.root is not None:
        expected = verification.Expected(root=signer.root, serial=job.serial or None)
    result = verification.verify_file(made, expected)
    findings = list(
        verification.findings_of(place, result, allowed=(verification.SIGNATURE, verification.ROOT))
    )
    wrong = [finding.message for finding in findings if finding.severity is Severity.ERROR]
    if job.source and not wrong:
        with image.mapped(job.source) as before, image.mapped(made) as after:
            wrong += image.differences(before, after)
    if wrong:
        raise CheckFailed(
            f"{signer.name} wrote a file that is not {job.name} signed: {'; '.join(wrong)}",
            remedy="nothing was put into the overlay; run it again",
        )
    try:
        made.chmod(0o644)
        made.replace(place)
    except OSError as error:
        raise EnvironmentLacking(f"{place}: {error.strerror}", remedy="-o names another directory") from error
    return place, findings


def _development(args: argparse.Namespace, identity: Identity, chip: Chip) -> Signer:
    from ci.signing import development, image
    from ci.signing.options import binding_of

    binding = binding_of(args)

    def library(source: Path, into: Path) -> Path:
        with image.mapped(source) as data:
            try:
                signed = development.sign(data, identity, binding, replace_old=args.replace)
            except development.AlreadySigned as error:
                raise UsageError(f"{source}: {error.message}", remedy=error.remedy) from error
        return _made(into / source.name, signed)

    def test_signature(serial: int, into: Path) -> Path:
        carrier = development.test_library(chip.arch, (serial,))
        signed = development.sign(carrier, identity, replace(binding, serials=(serial,)))
        return _made(into / Job(None, serial).name, signed)

    return Signer("the development signer", library, test_signature, identity.root)


def _elfsigner(
    args: argparse.Namespace,
    environment: Environment,
    selection: Selection,
    chip: Chip,
    files: Sequence[Path],
    cancelled: threading.Event,
) -> Signer:
    from ci.signing import plan
    from ci.signing.elfsigner import Consent, Elfsigner, interpreter
    from provisioning import licences

    table = plan.load_table()
    script = plan.elfsigner(environment, files, chip)
    below = tuple(map(int, table.python_below.split(".")))
    python = interpreter(args.python, below)
    by_variable = Consent.LICENCE in licences.named((), os.environ)
    consent = Consent(
        store=selection.store,
        version=plan.version_of("hexagon-sdk", environment.roots["hexagon-sdk"]),
        accept=args.accept_disclaimer or by_variable,
        means="--accept-disclaimer" if args.accept_disclaimer else licences.VARIABLE,
        ask=_ask if sys.stdin is not None and sys.stdin.isatty() else None,
        show=functools.partial(print, file=sys.stderr),
    )
    seconds = table.time_limit_seconds if args.time_limit is None else args.time_limit
    driver = Elfsigner(script, python, seconds, consent, cancelled)
    return Signer("elfsigner", driver.sign, driver.test_signature)


def _environment(args: argparse.Namespace, selection: Selection) -> Environment | None:
    """None when nothing of it is needed: the user named the libraries and signs with a key."""
    from provisioning.environment import resolve

    if args.signer == "dev" and not args.direct and (args.library or args.serial or args.from_device):
        return None
    return resolve(selection, os.environ)


def _serial(args: argparse.Namespace) -> int:
    from ci.signing import device

    if args.serial is not None:
        return device.parse_serial(args.serial)
    return device.read_serial(args.device) if args.from_device else 0


def _overlay(output: Path, environment: Environment | None, selection: Selection) -> Path:
    overlay = output.absolute()
    roots = [root.path for root in environment.roots.values()] if environment else []
    for root in (*roots, selection.store):
        if overlay.resolve().is_relative_to(root.resolve()):
            raise UsageError(
                f"{overlay} is inside {root}, which nothing may write to", remedy=f"-o {OVERLAY}"
            )
    return overlay


def _watched(environment: Environment | None, chip: Chip) -> list[Path]:
    """What a signer would write to in an SDK if it wrote where it should not."""
    roots = environment.roots if environment else {}
    places = {
        "qnn-sdk": [Path("lib") / f"lpai-v{chip.lpai}"],
        "hexagon-sdk": [Path("tools/elfsigner")],
    }
    return [roots[name].path / place for name, some in places.items() if name in roots for place in some]


def _inventory(directories: Sequence[Path]) -> Mapping[str, tuple[int, int]]:
    found = {}
    for directory in directories:
        for path in directory.rglob("*"):
            status = path.lstat()
            found[str(path)] = (status.st_size, status.st_mtime_ns)
    return found


def _made(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def _ask(question: str) -> bool:
    sys.stderr.write(question)
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
