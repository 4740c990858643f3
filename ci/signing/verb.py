"""`signing`: inspect the signatures of Hexagon libraries, and verify them; `sign_lpai`: sign those that LPAI
needs, into an overlay beside the SDK."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from provisioning.base import answer, units
from provisioning.base.commands import Fix, session
from provisioning.base.errors import CheckFailed, UsageError, exit_code_of
from provisioning.base.flags import add_purpose, add_valued, switch
from provisioning.base.foreign import limit_work
from provisioning.base.selection import add_selection, selection_of
from provisioning.base.settings import reports_path
from provisioning.dist import SIGNED

if TYPE_CHECKING:
    from ci.signing.verification import ExpectedSignature, Verification
    from provisioning.base.stage_run import StageRun

EXAMPLES = """\
  python -m ci signing inspect dist/overlay/lib/lpai-v6/signed/libQnnLpaiSkel.so
  python -m ci signing inspect --json *.so
  python -m ci signing verify libQnnLpaiSkel.so --root oem-root.pem --sw-id adsp --allow-unchecked signature
  python -m ci signing verify libQnnLpaiSkel.so --for development --root dist/overlay/development-root.pem
"""

ELF_MARK = b"\x7fELF"
SOFTWARE_IDS = {"adsp": 0x04, "cdsp": 0x17, "slpi": 0x18}


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, summary in (
        ("inspect", "say what a library's signature is"),
        ("verify", "say whether it holds, part by part"),
    ):
        action = verbs.add_parser(name, help=summary, description=summary)
        action.add_argument("files", type=Path, nargs="+", metavar="FILE")
    add_purpose(action)
    add_valued(action, "--root", "CERT", "the root certificate of the chain", type=Path)
    add_valued(action, "--sw-id", "ID", "adsp, cdsp, slpi or a number")
    add_valued(action, "--hw-id", "ID", "chip and OEM")
    add_valued(action, "--serial", "0x…", "the device that it must be bound to")
    action.add_argument(
        "--allow-unchecked",
        action="append",
        default=[],
        choices=("root", "signature"),
        help="accept that this was not checked: no --root (development only), no public format",
    )
    action.add_argument("--reports", type=Path, help="where reports are written [QNN_CI_REPORTS, reports/]")


def run(args: argparse.Namespace) -> int:
    from ci.signing.verification import ROOT, Purpose
    from provisioning.base.stage_run import StageRun

    size = sum(path.stat().st_size for path in args.files if path.is_file())
    message = f"{args.files[0]}: reading it takes more memory or time than a library of its size may"
    limits = limit_work(size, CheckFailed(message, fix="take it again from whoever signed it"))
    for path in args.files:
        _require_library(path)
    if args.action == "inspect":
        with limits:
            return inspect(args.files)
    stage = StageRun("signing_verify", "", "", session("signing", *sys.argv[2:]))
    reports = reports_path(args.reports)
    with stage.reported(reports, "signing-stopped"), limits:
        if args.purpose == Purpose.PRODUCTION.value and ROOT in args.allow_unchecked:
            raise UsageError(
                "--allow-unchecked root: anybody can make a chain, so production needs the root",
                fix="--root CERT, or --for development",
            )
        code = verify(args.files, _binding_of(args), tuple(args.allow_unchecked), stage)
    stage.finish().write(reports)
    return code


def inspect(files: Sequence[Path]) -> int:
    from ci.signing import inspection
    from ci.signing.verification import SignedBy

    inspections = [inspection.inspect(path) for path in files]
    answer.add(files=[asdict(file) for file in inspections])
    sys.stdout.write("\n".join(map(inspection.format_inspection, inspections)))
    return exit_code_of(good=all(file.kind != SignedBy.DAMAGED.value for file in inspections))


def _require_library(path: Path) -> None:
    """Refuse what is no library at all; a damaged one is described."""
    if ".so" in path.name or not path.is_file():
        return
    with path.open("rb") as stream:
        mark = stream.read(len(ELF_MARK))
    if mark != ELF_MARK:
        raise UsageError(
            f"{path}: expected a Hexagon library, found no ELF file",
            fix=Fix("{} says what is in a program, a model or a package", ("inspect", path)),
        )


def verify(
    paths: Sequence[Path], binding: ExpectedSignature, waivers: tuple[str, ...], stage: StageRun
) -> int:
    from ci.signing import verification

    files: list[dict[str, object]] = []
    texts: list[str] = []
    for path in paths:
        result = verification.verify_file(path, binding)
        verdict = result.verdict(waivers)
        stage.findings += verification.findings_of(path, result, waivers=waivers)
        stage.metrics[str(path)] = verdict
        signer = result.signer.name.lower()
        files.append({"file": str(path), "verdict": verdict, "signer": signer, **asdict(result)})
        texts.append(_format_verification(path, result, waivers))
    answer.add(files=files)
    sys.stdout.write("\n".join(texts))
    return exit_code_of(good=all(file["verdict"] == "verified" for file in files))


def _binding_of(args: argparse.Namespace) -> ExpectedSignature:
    from ci.signing.certificates import read_root
    from ci.signing.verification import ExpectedSignature, Purpose

    return ExpectedSignature(
        root=read_root(args.root) if args.root else None,
        software_id=SOFTWARE_IDS.get(args.sw_id or "") or _number("--sw-id", args.sw_id),
        hardware_id=_number("--hw-id", args.hw_id),
        serial=_serial(args.serial) if args.serial is not None else None,
        purpose=Purpose(args.purpose),
        allowed_flags=args.allow_flags,
    )


def _serial(text: str) -> int:
    """Parse a serial as signing tools write it. The 0x is required: 12345678 could be either notation."""
    serial = int(text, 16) if re.fullmatch("0[xX][0-9a-fA-F]+", text) else 0
    if not 0 < serial <= 0xFFFFFFFF:
        raise UsageError(
            f"--serial {text}: expected 32 bits in hex, not 0, as 0x1a2b3c4d",
            fix="`adb shell cat /sys/devices/soc0/serial_number` prints it, in decimal",
        )
    return serial


def _number(flag: str, text: str | None) -> int | None:
    """Parse a number of 32 bits, decimal or with 0x."""
    if text is None:
        return None
    try:
        value = int(text, 0)
    except ValueError:
        value = -1
    if not 0 <= value <= 0xFFFFFFFF:
        raise UsageError(f"{flag} {text}: expected a number of 32 bits", fix=f"as in {flag} 0x17")
    return value


def _format_verification(path: Path, result: Verification, waivers: Sequence[str]) -> str:
    from ci.signing.rehearsal import STATEMENT

    rows = [(f"  {check.part}", check.status.value, check.message) for check in result.checks]
    lines = [f"{path}: {result.verdict(waivers).upper()}, {result.signer.value}"]
    lines += units.align(rows)
    if result.unverified:
        lines.append("  not verified:")
        lines += [f"    {gap.start:#x}..{gap.end:#x}  {gap.what}" for gap in result.unverified]
    if result.rehearsal:
        lines.append(f"  {STATEMENT}")
    return "\n".join(lines) + "\n"


class SignLpai:
    EXAMPLES = """\
  nox -s sign_lpai -- --profile qnn-2.48 --soc SM8850
  python -m ci sign_lpai --profile qnn-2.48 --soc SM8850 --direct
  python -m ci sign_lpai --soc SM8850 --signer dev --library build/libmine_skel.so
"""

    TARGET = "aarch64-linux"
    """The target whose SDK tree holds the Hexagon libraries and needs no compiler beside it."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        add_selection(parser)
        files = parser.add_argument_group("what to sign")
        switch(files, "--direct", "all libraries that ExecuTorch on the DSP loads")
        files.add_argument(
            "--library",
            type=Path,
            action="extend",
            nargs="+",
            default=[],
            metavar="FILE",
            help="these files; with --direct, instead of those of the same name",
        )
        way = parser.add_argument_group("how")
        way.add_argument("--signer", choices=("elfsigner", "dev"), default="elfsigner", help="[%(default)s]")
        way.add_argument("-o", "--output", type=Path, default=SIGNED, help="the overlay [dist/overlay]")
        add_valued(way, "--python", "PATH", "the Python to run elfsigner with, before 3.12")

    def run(self, args: argparse.Namespace) -> int:
        from ci.signing.lpai_sign import SignOptions, sign
        from provisioning.base.stage_run import StageRun

        options = SignOptions(
            direct=args.direct,
            library=args.library,
            signer=args.signer,
            output=args.output,
            python=args.python,
        )
        selection = selection_of(args)
        if not selection.named_targets:
            selection = replace(selection, target=self.TARGET)
        stage = StageRun("sign_lpai", selection.profile, selection.target)
        with stage.reported(selection.reports, "signing-stopped"):
            sign(options, selection, stage)
        return stage.close(selection.reports)


SIGN_LPAI = SignLpai()
