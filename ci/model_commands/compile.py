"""`compile`: one model to a program for the NPU, run on the emulator and compared with float."""

from __future__ import annotations

import argparse
from dataclasses import replace

from ci.one_model.model import add_compile, model_to_compile

EXAMPLES = """\
  qnn-ci compile model.pt2 --soc SM8750 --precision 8a8w --calibrate samples/ -o out/
  qnn-ci compile net.py:model --precision 16a8w -o out/
  qnn-ci compile net.py:model --precision fp16 --precision 16a8w --precision 8a8w -o out/
  qnn-ci compile package.net:model --soc SM8650 --soc SM8750 -o out/
  qnn-ci compile model.onnx --precision 16a8w --calibrate samples/ -o out/
  qnn-ci compile Llama-3.2-1B/ --soc SM8750 --precision 16a8w --calibrate text.txt --context 1024 -o out/
  qnn-ci compile SmolLM2-135M/ --precision 16a8w --calibrate text.txt --through executorch -o out/
  qnn-ci compile net.py:model --precision 8a8w --suite models.toml -o out/
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_compile(parser)


def run(args: argparse.Namespace) -> int:
    from ci.model_commands.compile_one import compile_model, compile_precisions
    from ci.one_model.report import reported
    from ci.work import sharing_templates

    precisions: list[str] = list(dict.fromkeys(args.precisions or ()))
    model, suite = model_to_compile(args), args.suite and args.suite.absolute()
    if len(precisions) > 1:
        with sharing_templates():
            return compile_precisions(model, precisions, suite)
    model = replace(model, precision=next(iter(precisions), None))
    return reported("compile", model, model.named, lambda report: compile_model(model, suite, report))
