"""`wrap`: a QNN context binary, such as AI Hub's, as an ExecuTorch program."""

from __future__ import annotations

import argparse
from pathlib import Path

from provisioning.base.command_line import add_timeout
from provisioning.base.errors import UsageError
from provisioning.base.selection import add_selection, selection_of
from provisioning.base.settings import Selection

EXAMPLES = """\
  python -m ci wrap context.bin -o model.pte
  python -m ci inspect model.pte --extract contexts/     # and back
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("context", type=Path, metavar="CONTEXT.bin", help="a QNN context binary")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.pte", help="the program")
    add_selection(parser)
    add_timeout(parser, "it")


def run(args: argparse.Namespace) -> int:
    if args.output.is_dir():
        raise UsageError(f"{args.output} is a directory", fix="name a file with -o")
    return _wrap(args.context, args.output, selection_of(args), args.timeout)


def _wrap(context: Path, output: Path, selection: Selection, timeout: float) -> int:
    from ci.artifacts.program import ContextStrings, read
    from ci.lanes.executorch.product import wrap
    from ci.one_model.output import file_line, keep_origins, require_own

    contents = read(context)
    if not isinstance(contents, ContextStrings):
        raise UsageError(f"{context} is already a program", fix="name a context binary")
    require_own([output], str(context))
    soc = wrap(context, contents, selection, output, timeout)
    keep_origins([output], str(context))
    print(f"{file_line(output)}, for {soc}")
    return 0
