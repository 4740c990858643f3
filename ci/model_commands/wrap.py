"""`wrap`: turn a QNN context binary, such as AI Hub's, into an ExecuTorch program."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from ci.artifacts.torch_files import refuse_torch_file
from ci.one_model.named_files import require_program
from ci.one_model.options import OF_PLACE
from ci.suite.options import OF_MACHINE
from provisioning.base.commands import Fix
from provisioning.base.errors import UsageError
from provisioning.base.flags import TIMEOUT, duration
from provisioning.base.option_fields import Options, add_options, option, read_options
from provisioning.base.selection import add_selection, selection_of
from provisioning.base.settings import Selection

EXAMPLES = """\
  python -m ci wrap context.bin -o model.pte
  python -m ci inspect model.pte --extract contexts/     # and back
"""


@dataclass(frozen=True)
class WrapOptions(Options):
    output: Path = option(
        Path(),
        "--output",
        "the program",
        letter="-o",
        metavar="FILE.pte",
        parse=Path,
        verbs=("wrap",),
        required=("wrap",),
        unprinted=OF_PLACE,
        decides_nothing="a wrapped context is not cached",
    )
    timeout: float = option(
        TIMEOUT,
        "--timeout",
        f"end it after S seconds [{TIMEOUT:g}]",
        metavar="S",
        parse=duration,
        verbs=("wrap",),
        unprinted=OF_MACHINE,
        decides_nothing=OF_MACHINE,
    )


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("context", type=Path, metavar="CONTEXT.bin", help="a QNN context binary")
    add_options(parser, "wrap", {"": WrapOptions})
    add_selection(parser)


def check(args: argparse.Namespace) -> None:
    """Refuse a file that its name shows to be no context binary."""
    context: Path = args.context
    require_program(context, str(context))
    refuse_torch_file(context)
    if context.suffix == ".onnx":
        raise UsageError(
            f"{context}: expected a QNN context binary, found an ONNX model",
            fix=Fix("compile it, which writes a context: {}", ("compile", context, "-o", "out")),
        )


def run(args: argparse.Namespace) -> int:
    check(args)
    options = read_options(WrapOptions, args)
    if options.output.is_dir():
        raise UsageError(f"{options.output} is a directory", fix="name a file with -o")
    return _wrap(args.context, options.output, selection_of(args), options.timeout)


def _wrap(context: Path, output: Path, selection: Selection, timeout: float) -> int:
    from ci.artifacts.program import ContextStrings, read
    from ci.lanes.executorch.wrap import wrap
    from ci.one_model.output import file_line, keep_origins, require_own

    contents = read(context)
    if not isinstance(contents, ContextStrings):
        raise UsageError(f"{context} is already a program", fix="name a context binary")
    require_own([output], str(context))
    soc = wrap(context, contents, selection, output, timeout)
    keep_origins([output], str(context))
    print(f"{file_line(output)}, for {soc}")
    return 0
