"""`llm`: a checkpoint of your own as context binaries that Genie runs, and Genie on the HTP emulator."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from provisioning.base.command_line import add_timeout, count
from provisioning.base.settings import DEFAULT_SOC

EXAMPLES = """\
  python -m ci llm compile Llama-3.2-1B/ --soc SM8750 --precision fp16 --context 1024 -o out/
  python -m ci llm compile SmolLM2-135M/ --precision u16u8 --calibrate text.txt -o out/
  python -m ci llm run out/ "The answer is" --tokens 20
  python -m ci llm check out/ --text held-out.txt
"""

LONG = 4 * 3600.0
"""Time limit in seconds: a model with a billion weights takes minutes to compile, and seconds for
each token.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    compiler = commands.add_parser("compile", help="compile a Hugging Face checkpoint for Genie")
    compiler.add_argument("model", type=Path, metavar="FOLDER", help="with config.json and safetensors")
    compiler.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="where it goes")
    compiler.add_argument(
        "--soc",
        default=os.environ.get("QNN_CI_SOC") or DEFAULT_SOC,
        help=f"chip by name, as in manifests/socs.toml [QNN_CI_SOC, {DEFAULT_SOC}]",
    )
    compiler.add_argument("--precision", choices=("fp16", "u16u8"), default="fp16", help="[%(default)s]")
    compiler.add_argument("--context", type=count, default=128, metavar="N", help="tokens [%(default)s]")
    compiler.add_argument("--prefill", type=count, default=32, metavar="N", help="at once [%(default)s]")
    compiler.add_argument(
        "--calibrate", type=Path, metavar="FILE", help="text to quantize by, unlike what it is judged by"
    )
    compiler.add_argument(
        "--parts", type=count, metavar="N", help="split the layers into N binaries [1 GB each at most]"
    )

    runner = commands.add_parser("run", help="let a compiled model speak on the HTP emulator")
    runner.add_argument("model", type=Path, metavar="DIR", help="what llm compile wrote")
    runner.add_argument("prompt", metavar="TEXT")
    runner.add_argument("--tokens", type=count, default=32, metavar="N", help="at most [%(default)s]")

    checker = commands.add_parser("check", help="hold a compiled model's choices to the float model")
    checker.add_argument("model", type=Path, metavar="DIR", help="what llm compile wrote")
    checker.add_argument(
        "--text", type=Path, required=True, metavar="FILE", help="other than it was quantized by"
    )
    checker.add_argument(
        "--checkpoint", type=Path, metavar="FOLDER", help="of the float model [where it was compiled from]"
    )
    checker.add_argument("--prefixes", type=count, default=100, metavar="N", help="[%(default)s]")
    checker.add_argument(
        "--first-choice",
        type=_share,
        default=0.9,
        metavar="SHARE",
        help="of a quantized model's choices that must be float's [%(default)g]",
    )
    for command in (compiler, runner, checker):
        add_timeout(command, "the run", LONG)
        command.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS
        )


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"expected a share above 0 and up to 1, found {text!r}")
    return share


def run(args: argparse.Namespace) -> int:
    from ci.llm import commands

    return {
        "compile": commands.compile_checkpoint,
        "run": commands.run_model,
        "check": commands.check_model,
    }[args.command](args)
