"""`signing`: inspect, verify and sign Hexagon libraries, and make a development chain."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from ci.signing.elf import Malformed
from provisioning.base.command_line import count
from provisioning.base.errors import CheckFailed, EnvironmentLacking, UsageError
from provisioning.base.settings import reports_path

if TYPE_CHECKING:
    import datetime as dt

    from ci.signing.development import Binding
    from ci.signing.keys import Identity
    from ci.signing.verification import Expected, Verification
    from provisioning.base.findings import Artifact, StageRun

EXAMPLES = """\
  python -m ci signing inspect dist/overlay/lib/lpai-v6/signed/libQnnLpaiSkel.so
  python -m ci signing inspect --json *.so
  python -m ci signing verify libQnnLpaiSkel.so --root development-root.pem --sw-id adsp
  python -m ci signing sign libmine_skel.so -o signed/
  python -m ci signing keygen keys/ && python -m ci signing sign libmine_skel.so -o signed/ \\
      --key keys/attestation.key.pem --chain keys/chain.pem
"""

ROOT_NAME = "development-root.pem"
WORKERS = 2


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, summary, flags in (
        ("inspect", "say what a library's signature is", _inspect_flags),
        ("verify", "say whether it holds, part by part", _verify_flags),
        ("sign", "sign with a development chain", _sign_flags),
        ("keygen", "make a development chain: root, CA, attestation", _keygen_flags),
    ):
        # No abbreviations: what must stay out of reports is known by its flag.
        flags(verbs.add_parser(name, help=summary, description=summary, allow_abbrev=False))


def run(args: argparse.Namespace) -> int:
    actions: dict[str, Callable[[argparse.Namespace], int]] = {
        "inspect": inspect,
        "verify": verify,
        "sign": sign,
        "keygen": keygen,
    }
    return actions[args.action](args)


def inspect(args: argparse.Namespace) -> int:
    from ci.signing import inspection

    found = [inspection.inspect(path) for path in args.files]
    if args.json:
        sys.stdout.write(inspection.as_json(found))
    else:
        sys.stdout.write("\n".join(inspection.as_text(one) for one in found))
    return 1 if any(one.kind == inspection.DAMAGED for one in found) else 0


def verify(args: argparse.Namespace) -> int:
    return _staged("signing_verify", args, _verify)


def sign(args: argparse.Namespace) -> int:
    return _staged("signing_sign", args, _sign)


def keygen(args: argparse.Namespace) -> int:
    from ci.signing import keys

    passphrase = None if args.no_passphrase else _new_passphrase(args)
    if passphrase is not None and len(passphrase) < 8:
        raise UsageError("the passphrase is shorter than 8 characters", remedy="use a longer one")
    for path in keys.write_chain(args.directory, args.algorithm, days=args.days, passphrase=passphrase):
        sys.stdout.write(f"  {path}\n")
    return 0


def _new_passphrase(args: argparse.Namespace) -> bytes:
    from ci.signing.options import passphrase_of

    try:
        return passphrase_of(args).get("the new keys")
    except EnvironmentLacking as error:
        raise EnvironmentLacking(
            error.message, remedy=f"{error.remedy}; --no-passphrase does without"
        ) from error


def _staged(name: str, args: argparse.Namespace, work: Callable[[argparse.Namespace, StageRun], int]) -> int:
    """Run as a stage does: its report is written however it ends."""
    from ci.signing.lpai import command_of
    from provisioning.base.findings import StageRun

    stage = StageRun(name, "", "", command_of("python -m ci signing", sys.argv[2:]))
    reports = reports_path(args.reports)
    with stage.reported(reports, "signing.stopped"):
        code = work(args, stage)
    stage.finish().write(reports)
    return code


def _verify(args: argparse.Namespace, stage: StageRun) -> int:
    import json

    from ci.signing import verification

    allowed = tuple(args.allow_unchecked)
    expected = _expected(args)
    results: list[tuple[Path, Verification]] = []
    for path in args.files:
        result = verification.verify_file(path, expected)
        results.append((path, result))
        stage.findings += verification.findings_of(path, result, allowed=allowed)
        stage.metrics[str(path)] = result.verdict(allowed)
    if args.json:
        files = [_verification_json(path, result, allowed) for path, result in results]
        sys.stdout.write(json.dumps({"schema": 1, "files": files}, indent=2) + "\n")
    else:
        sys.stdout.write("\n".join(_verification_text(path, result, allowed) for path, result in results))
    return 0 if all(result.verdict(allowed) == "verified" for _, result in results) else 1


def _sign(args: argparse.Namespace, stage: StageRun) -> int:
    from ci.signing import files, scheme
    from ci.signing.device import parse_serial
    from ci.signing.keys import root_pem
    from ci.signing.options import binding_of, identity_of
    from provisioning.base.findings import Severity

    names = [path.name for path in args.files]
    if len(set(names)) < len(names):
        raise UsageError("two of the files have the same name", remedy="sign them into different directories")
    binding = binding_of(args, tuple(parse_serial(text) for text in args.serial))
    if len(binding.serials) > 8:
        raise UsageError("a signature holds at most 8 serials", remedy="sign once for each group of devices")
    identity = identity_of(args)

    def one(path: Path) -> Artifact:
        return _sign_one(path, args.output / path.name, identity, binding, replace_old=args.replace)

    sys.stdout.write(f"{scheme.STATEMENT}\n  key: {identity.description}\n")
    stage.add("signing.development-only", Severity.WARNING, str(args.output), scheme.STATEMENT)
    stage.metrics |= {"scheme": identity.scheme.name, "deterministic": identity.deterministic}
    with ThreadPoolExecutor(WORKERS) as pool:
        stage.artifacts += pool.map(one, args.files)
    root = args.output / ROOT_NAME
    files.put(root, root_pem(identity))
    for artifact in stage.artifacts:
        sys.stdout.write(f"  signed {artifact.path}\n")
    sys.stdout.write(f"  root   {root}\n")
    return 0


def _inspect_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--json", action="store_true", help="for programs")
    _add_debug(parser)


def _verify_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--root", type=Path, metavar="CERT", help="the root certificate to end in")
    parser.add_argument("--sw-id", metavar="ID", help="adsp, cdsp, slpi or a number")
    parser.add_argument("--hw-id", metavar="ID", help="chip and OEM")
    parser.add_argument("--serial", metavar="0x…", help="the device that it must be bound to")
    parser.add_argument("--at", metavar="TIME", help="judge validity at this ISO time [now]")
    parser.add_argument(
        "--allow-unchecked",
        action="append",
        default=[],
        choices=("root", "signature"),
        help="be content without it: for formats that are not public, or without a --root",
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    _add_reports(parser)
    _add_debug(parser)


def _sign_flags(parser: argparse.ArgumentParser) -> None:
    from ci.signing.options import add_identity

    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="for the signed ones")
    parser.add_argument("--signer", choices=("dev",), default="dev", help="for elfsigner: sign_lpai")
    parser.add_argument(
        "--serial", action="append", default=[], metavar="0x…", help="bind to this device; up to 8"
    )
    add_identity(parser)
    _add_reports(parser)
    _add_debug(parser)


def _keygen_flags(parser: argparse.ArgumentParser) -> None:
    from ci.signing.options import add_passphrase

    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--algorithm", choices=("ec", "rsa"), default="ec", help="[%(default)s]")
    parser.add_argument("--days", type=count, default=365, help="how long the chain is valid [%(default)s]")
    parser.add_argument("--no-passphrase", action="store_true", help="leave the keys unencrypted, mode 600")
    add_passphrase(parser)
    _add_debug(parser)


def _add_reports(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--reports", type=Path, help="where reports are written [QNN_CI_REPORTS, reports/]")


def _add_debug(parser: argparse.ArgumentParser) -> None:
    # Also behind the action's name, where people type it.
    parser.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")


def _expected(args: argparse.Namespace) -> Expected:
    from ci.signing.device import parse_serial
    from ci.signing.keys import read_root
    from ci.signing.options import number, software_id
    from ci.signing.verification import Expected

    return Expected(
        root=read_root(args.root) if args.root else None,
        software_id=software_id(args.sw_id) if args.sw_id else None,
        hardware_id=number("--hw-id", args.hw_id) if args.hw_id else None,
        serial=parse_serial(args.serial) if args.serial else None,
        at=_moment(args.at) if args.at else None,
    )


def _moment(text: str) -> dt.datetime:
    import datetime as dt

    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--at {text}: expected an ISO time", remedy="--at 2026-11-20T12:00:00") from error
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.timezone.utc)


def _sign_one(
    source: Path, place: Path, identity: Identity, binding: Binding, *, replace_old: bool
) -> Artifact:
    from ci.signing import development, files, image
    from provisioning.base.findings import Artifact

    if place.resolve() == source.resolve():
        raise UsageError(f"{place} would replace the library itself", remedy="-o names another directory")
    with image.mapped(source) as data:
        try:
            signed = development.sign(data, identity, binding, replace_old=replace_old)
        except development.AlreadySigned as error:
            raise UsageError(f"{source}: {error.message}", remedy=error.remedy) from error
        except Malformed as error:
            raise CheckFailed(f"{source}: {error.message}", remedy="sign a Hexagon library") from error
    files.put(place, signed)
    return Artifact.of("signed-library", place)


def _verification_text(path: Path, result: Verification, allowed: Sequence[str]) -> str:
    from ci.signing.scheme import STATEMENT

    rows = [(check.part, check.status.value, check.message) for check in result.checks]
    width = max(len(part) for part, _, _ in rows)
    lines = [f"{path}: {result.verdict(allowed).upper()}"]
    lines += [f"  {part:<{width}}  {status:<11}  {message}" for part, status, message in rows]
    if result.unhashed:
        lines.append("  covered by no hash:")
        lines += [f"    {gap.start:#x}..{gap.end:#x}  {gap.what}" for gap in result.unhashed]
    if result.development:
        lines.append(f"  {STATEMENT}")
    return "\n".join(lines) + "\n"


def _verification_json(path: Path, result: Verification, allowed: Sequence[str]) -> dict[str, object]:
    from dataclasses import asdict

    return {"file": str(path), "verdict": result.verdict(allowed), **asdict(result)}
