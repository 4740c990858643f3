"""`sign_lpai`: sign the Hexagon libraries that LPAI needs, into an overlay beside the SDK."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from pathlib import Path

from provisioning.base.command_line import duration, repeatable, switch, valued
from provisioning.base.selection import add_selection, selection_of
from provisioning.dist import SIGNED

EXAMPLES = """\
  nox -s sign_lpai -- --profile qnn-2.48 --soc SM8850
  python -m ci sign_lpai --profile qnn-2.48 --soc SM8850 --direct
  python -m ci sign_lpai --soc SM8850 --signer dev --library build/libmine_skel.so
"""

TARGET = "aarch64-linux"
"""The target whose SDK tree holds the Hexagon libraries and needs no compiler beside it."""


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    what = parser.add_argument_group("what to sign")
    switch(what, "--direct", "all libraries that ExecuTorch on the DSP loads")
    what.add_argument(
        "--library",
        type=Path,
        action="extend",
        nargs="+",
        default=[],
        metavar="FILE",
        help="these files; with --direct, instead of those of the same name",
    )
    how = parser.add_argument_group("how")
    how.add_argument("--signer", choices=("elfsigner", "dev"), default="elfsigner", help="[%(default)s]")
    how.add_argument("-o", "--output", type=Path, default=SIGNED, help="the overlay [%(default)s]")
    repeatable(
        how,
        "--accept-disclaimer",
        "HASH",
        "answer yes to exactly this text of elfsigner's; without it, the text and its hash are shown"
        " [QNN_CI_ACCEPT_LICENCES=hexagon-elfsigner-HASH]",
        type=_digest,
    )
    valued(
        how,
        "--time-limit",
        "SECONDS",
        "time limit for each run of elfsigner [manifests/lpai.toml]",
        type=duration,
    )
    valued(how, "--python", "PATH", "the Python to run elfsigner with, before 3.12")


def _digest(text: str) -> str:
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected a SHA-256, which is shown below what elfsigner asks"
        )
    return text


def run(args: argparse.Namespace) -> int:
    from ci.signing.lpai_sign import SignOptions, sign
    from provisioning.base.stage_run import StageRun

    options = SignOptions(
        direct=args.direct,
        library=args.library,
        signer=args.signer,
        output=args.output,
        accept_disclaimer=args.accept_disclaimer,
        time_limit=args.time_limit,
        python=args.python,
    )
    selection = selection_of(args)
    if not selection.named_targets:
        selection = replace(selection, target=TARGET)
    stage = StageRun("sign_lpai", selection.profile, selection.target)
    with stage.reported(selection.reports, "signing-stopped"):
        sign(options, selection, stage)
    return stage.close(selection.reports)
