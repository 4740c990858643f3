"""`compile`: one PyTorch model to a program for the NPU, run on the emulator and compared with float."""

from __future__ import annotations

import argparse
from pathlib import Path

from ci.suites.flags import check_args
from ci.suites.user_model import MODEL_HELP
from provisioning.base.command_line import TIMEOUT, duration
from provisioning.base.settings import add_selection

EXAMPLES = """\
  qnn-ci compile model.pt2 --soc SM8750 --precision 8a8w --calibrate samples/ -o out/
  qnn-ci compile net.py:model --precision 16a8w -o out/
  qnn-ci compile package.net:model --soc SM8650 --soc SM8750 -o out/
  qnn-ci compile model.pt2 --verify none -o out/
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        help=MODEL_HELP,
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="where it goes")
    parser.add_argument("--precision", default="fp16", help="fp16, 8a8w, 16a8w, 16a4w … [%(default)s]")
    parser.add_argument(
        "--calibrate", type=Path, metavar="DIR", help="samples, a file each: .npy, .npz or .pt [drawn]"
    )
    parser.add_argument(
        "--verify", choices=("emulator", "none"), default="emulator", help="run it and compare [%(default)s]"
    )
    parser.add_argument(
        "--keep-going",
        action="store_true",
        help="leave on the CPU what the compiler dies of, and say what that costs",
    )
    parser.add_argument("--keep-on-cpu", action="append", default=[], metavar="NODE", help="may be repeated")
    add_selection(parser)
    group = parser.add_argument_group("how")
    group.add_argument(
        "--timeout", type=duration, default=TIMEOUT, metavar="S", help="for the compile [%(default)g]"
    )
    group.add_argument(
        "--run-timeout", type=duration, default=300, metavar="S", help="for a run [%(default)g]"
    )
    group.add_argument("--no-cache", action="store_true", help="compile it again even if nothing changed")
    parser.set_defaults(suite=None, jobs=None, worker_memory=None)
    group.add_argument("--why", action="store_true", help="say why it is compiled again")


def run(args: argparse.Namespace) -> int:
    from ci.executorch import model

    check_args(args)
    return model.compile_model(args)
