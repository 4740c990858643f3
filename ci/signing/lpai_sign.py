"""`sign_lpai`: plan what is to be signed, sign it, verify it, and put it into the overlay, from which bundles
take it."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from ci.signing import lpai_libraries, rehearsal, signed_library, signed_writer, verification
from ci.signing.elfsigner import Consent, Elfsigner, Unexpected, interpreter
from ci.signing.lpai_libraries import Chip
from ci.signing.verification import ExpectedSignature, Purpose
from provisioning import licences
from provisioning.base.errors import CheckFailed, EnvironmentLacking, UsageError
from provisioning.base.files import replace_bytes
from provisioning.base.findings import Artifact, Finding, Severity
from provisioning.base.settings import Selection
from provisioning.base.stage_run import StageRun
from provisioning.environment import Environment, resolve

ROOT_NAME = "development-root.pem"


@dataclass(frozen=True, slots=True)
class SignOptions:
    """What `sign_lpai` was asked for; None if the user left the choice to us."""

    direct: bool
    library: Sequence[Path]
    signer: str
    output: Path
    python: str | None


@dataclass(frozen=True, slots=True)
class Signer:
    """Writes a signed library into a fresh directory: elfsigner, or a rehearsal."""

    name: str
    library: Callable[[Path, Path], Path]
    root: x509.Certificate | None = None
    """A rehearsal's root: every signature must end in it."""


def sign(options: SignOptions, selection: Selection, stage: StageRun) -> None:
    """Whatever can be refused is refused before anything is signed."""
    chip = lpai_libraries.chip_of(selection.socs)
    environment = _environment(options, selection)
    overlay = _overlay(options.output, environment, selection)
    files = lpai_libraries.to_sign(chip, environment, options.library, direct=options.direct)
    roots = environment.roots if environment else {}
    qnn = lpai_libraries.check_qnn(chip, roots.get("qnn-sdk"), files)
    lpai_libraries.require_fit(chip, roots.get("qnn-sdk"), files)
    if options.signer == "dev":
        signer = _rehearsal(rehearsal.new_signer())
        sys.stdout.write(f"{rehearsal.STATEMENT}\n")
    else:
        assert environment is not None
        signer = _elfsigner(options, environment, selection, chip, files)
    text = f"LPAI v{chip.lpai}, Hexagon v{chip.arch}, QNN {qnn or 'unknown'}"
    sys.stdout.write(f"{chip.name}: {text}: {len(files)} to sign with {signer.name}\n")
    stage.metrics[f"lpai-v{chip.lpai}"] = {
        "soc": chip.name,
        "arch": chip.arch,
        "qnn": qnn,
        "signer": signer.name,
        "libraries": [path.name for path in files],
        "overlay": str(overlay),
    }
    _sign_files(files, signer, overlay, overlay / chip.directory, stage, selection.reports / "sign_lpai")
    if signer.root is not None:
        with _writing(overlay / ROOT_NAME):
            replace_bytes(overlay / ROOT_NAME, signer.root.public_bytes(serialization.Encoding.PEM))


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EnvironmentLacking(f"{path}: {error.strerror}", fix="-o names another directory") from error


def _sign_files(
    files: Sequence[Path], signer: Signer, overlay: Path, into: Path, stage: StageRun, remains: Path
) -> None:
    """Sign one after the other. One that fails does not stop the others. Unexpected files go to `remains`."""
    with _writing(into):
        into.mkdir(parents=True, exist_ok=True)
        # Beside the overlay's files, so that each can be put in place in one step.
        work = tempfile.TemporaryDirectory(prefix=".signing-", dir=overlay)
    with work:
        for index, source in enumerate(files):
            folder = Path(work.name) / str(index)
            try:
                path, findings = _sign_one(source, signer, folder, into)
            except CheckFailed as error:
                stage.add("signing-failed", Severity.ERROR, source.name, error.message, error.fix)
                if isinstance(error, Unexpected):
                    stage.artifacts += _keep(folder, remains / source.name)
                continue
            stage.findings += findings
            stage.artifacts.append(Artifact.of("signed-library", path))
            sys.stdout.write(f"  signed {path}\n")


def _sign_one(source: Path, signer: Signer, work: Path, into: Path) -> tuple[Path, list[Finding]]:
    """Sign, verify the result like any foreign file, and only then put it in place."""
    work.mkdir()
    result = signer.library(source, work)
    place = into / source.name
    expected = ExpectedSignature(root=signer.root, purpose=Purpose.DEVELOPMENT)
    verdict = verification.verify_file(result, expected)
    waivers = (verification.SIGNATURE, verification.ROOT)
    findings = [
        finding
        for finding in verification.findings_of(place, verdict, waivers=waivers)
        # The signer is known, because it signed just now.
        if finding.rule not in (verification.SIGNER_KNOWN, verification.SIGNER_UNKNOWN)
    ]
    errors = [finding.message for finding in findings if finding.severity is Severity.ERROR]
    if not errors:
        with signed_library.map_file(source) as before, signed_library.map_file(result) as after:
            errors += signed_library.differences(before, after)
    if errors:
        message = f"{signer.name} wrote a file that is not {source.name} signed: {'; '.join(errors)}"
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


def _rehearsal(chain: rehearsal.KeyAndChain) -> Signer:
    def library(source: Path, into: Path) -> Path:
        with signed_library.map_file(source) as data:
            try:
                signed = signed_writer.sign_library(data, chain)
            except UsageError as error:
                raise UsageError(f"{source}: {error.message}", fix=error.fix) from error
        path = into / source.name
        path.write_bytes(signed)
        return path

    return Signer("the rehearsal signer", library, chain.root)


def _elfsigner(
    options: SignOptions,
    environment: Environment,
    selection: Selection,
    chip: Chip,
    files: Sequence[Path],
) -> Signer:
    table = lpai_libraries.load_table()
    script = lpai_libraries.elfsigner_script(environment, files, chip)
    python = interpreter(options.python, table.python_below)
    consent = Consent(
        store=selection.store,
        version=lpai_libraries.version_of("hexagon-sdk", environment.roots["hexagon-sdk"]),
        accepted=licences.acceptances((), os.environ),
    )
    driver = Elfsigner(script, python, table.time_limit_seconds, consent, table.elfsigner)
    return Signer("elfsigner", driver.sign)


def _environment(options: SignOptions, selection: Selection) -> Environment | None:
    """Find the environment. Returns None if it is not needed: for a rehearsal with libraries that the user
    names."""
    if options.signer == "dev" and not options.direct and options.library:
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
