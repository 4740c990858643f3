"""`divergence`: the command line."""

from __future__ import annotations

import argparse
from pathlib import Path

from ci.suites.flags import add_choice
from provisioning.base.command_line import add_timeout
from provisioning.base.settings import add_selection

EXAMPLES = """\
  nox -s divergence -- net.py:make --precision 16a8w --soc SM8650
  nox -s divergence -- --suite models.toml -k net/16a8w/SM8650
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="file.py:function, module:function or a .pt2; without it, a suite's program",
    )
    parser.add_argument("--precision", default="fp16", help="of MODEL, as `scheme` in a suite [%(default)s]")
    parser.add_argument(
        "--least",
        type=float,
        metavar="DB",
        help="a lower SQNR against the quantized model is a difference [the suite's threshold, else 30]",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured there")
    add_choice(parser, "manifests/suites/lowering.toml")
    add_timeout(parser, "the search", 1200)


def run(args: argparse.Namespace) -> int:
    from ci.executorch import divergence

    return divergence.run(args)
