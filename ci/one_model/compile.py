"""`compile`: one model to a program for the NPU, run on the emulator and compared with float."""

from __future__ import annotations

import argparse

from ci.pipeline.compile_flags import add_compile, compiling_of, one_model_of

EXAMPLES = """\
  qnn-ci compile model.pt2 --soc SM8750 --precision 8a8w --calibrate samples/ -o out/
  qnn-ci compile net.py:model --precision 16a8w -o out/
  qnn-ci compile package.net:model --soc SM8650 --soc SM8750 -o out/
  qnn-ci compile model.onnx --precision 16a8w --calibrate samples/ -o out/
  qnn-ci compile Llama-3.2-1B/ --soc SM8750 --precision 16a8w --calibrate text.txt --context 1024 -o out/
  qnn-ci compile SmolLM2-135M/ --precision 16a8w --calibrate text.txt --through executorch -o out/
  qnn-ci compile net.py:model --python .venv/bin/python -o out/
  qnn-ci compile net.py:model --precision 8a8w --suite models.toml -o out/
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_compile(parser)


def run(args: argparse.Namespace) -> int:
    from ci.pipeline.model_report import reported
    from ci.pipeline.one_model import compile_model, lane_model

    model, suite = one_model_of(args), args.suite and args.suite.absolute()
    taken = lane_model(model, compiling_of(args))
    return reported("compile", model, model.named, lambda report: compile_model(taken, suite, report))
