"""`test_delegate`: ExecuTorch's own delegate suite on the HTP emulator, in parallel and cached."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from provisioning.base.command_line import count, duration
from provisioning.base.commands import typed
from provisioning.base.settings import add_selection

EXAMPLES = """\
  python -m ci test_delegate
  python -m ci test_delegate -k 'conv2d and not quantized' --soc SM8750
  python -m ci test_delegate --sample
  python -m ci test_delegate --shard 1/4 --jobs 2
  python -m ci test_delegate --list
  python -m ci test_delegate --no-cache --fail-fast --keep
  python -m ci test_delegate --update-ledger
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    choice = parser.add_argument_group("which tests")
    choice.add_argument(
        "-k", dest="expression", metavar="EXPR", help="parts of names with and, or, not and parentheses"
    )
    choice.add_argument("--sample", action="store_true", help="the fixed sample of quick and different tests")
    choice.add_argument("--shard", metavar="I/N", help="the I-th of N parts of equal length")
    choice.add_argument("--list", action="store_true", help="list the chosen tests and run none")
    how = parser.add_argument_group("how")
    how.add_argument("--jobs", "-j", type=count, metavar="N", help="workers side by side [cores]")
    how.add_argument(
        "--timeout", type=duration, default=900, metavar="S", help="end a test after S seconds [%(default)g]"
    )
    how.add_argument("--no-cache", action="store_true", help="run also what has not changed")
    how.add_argument("--fail-fast", "-x", action="store_true", help="stop at the first surprise")
    how.add_argument("--keep", action="store_true", help="keep the files of tests that pass too")
    how.add_argument(
        "--update-ledger", action="store_true", help="record outcomes and lengths in manifests/delegate"
    )


def run(args: argparse.Namespace) -> int:
    from ci.engine.jobs import parse_shard
    from ci.upstream.stage import Options, run_stage
    from provisioning.base.errors import UsageError
    from provisioning.base.settings import selection_of

    selection = selection_of(args)
    if selection.target != "x86_64-linux":
        raise UsageError(
            f"--target {selection.target}: the emulator is for x86_64-linux",
            remedy="leave --target out",
        )
    if len(selection.socs) > 1:
        raise UsageError(
            f"--soc {','.join(selection.socs)}: one chip at a time", remedy=f"--soc {selection.soc}"
        )
    options = Options(
        selection=selection,
        command=typed("nox -s test_delegate --", sys.argv[2:]),
        expression=args.expression or "",
        sample=args.sample,
        shard=parse_shard(args.shard) if args.shard else (1, 1),
        only_list=args.list,
        jobs=args.jobs,
        timeout=args.timeout,
        cache=not args.no_cache,
        fail_fast=args.fail_fast,
        keep=args.keep,
        update_ledger=args.update_ledger,
        logs=Path(selection.reports).absolute() / "delegate",
    )
    return run_stage(options, os.environ)
