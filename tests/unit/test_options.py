"""Flags are options, and a precision file is one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ci.lanes import executorch, llm, onnx
from ci.lanes.executorch.suite import ExecutorchRun, programs_of
from ci.lanes.executorch.verb import EMULATION, LOWERING
from ci.lanes.llm.model_options import LlmOptions
from ci.lanes.llm.verb import STAGE as LLM_STAGE
from ci.lanes.onnx.verb import EMULATION as ONNX_EMULATION
from ci.model_commands import audit, compile, divergence, quantize
from ci.model_commands.typed_model import one_model_of, options_of
from ci.suite.lane_head import AUDIT, COMPILE, DIVERGENCE, QUANTIZE, LaneHead
from ci.suite.options import LANGUAGE_TIMEOUT, Choice, stage_options
from ci.suite.precision_file import precision_text
from ci.work.jobs import WorkOptions
from provisioning.base.errors import ManifestError, UsageError
from provisioning.base.flags import TIMEOUT
from tests.support.journey_files import SUITE
from tests.support.typed import parsed

STAGES = [LOWERING, EMULATION, ONNX_EMULATION, LLM_STAGE]
COMMANDS: list[tuple[Any, str, list[str]]] = [
    (compile, COMPILE, ["-o", "out"]),
    (quantize, QUANTIZE, ["-o", "out", "--precision", "8a8w"]),
    (audit, AUDIT, []),
    (divergence, DIVERGENCE, []),
]


@pytest.mark.parametrize("verb", STAGES)
def test_a_stage_without_flags_chooses_all_and_writes_nothing(verb: Any) -> None:
    options = stage_options(parsed(verb))
    assert options.choice == Choice() and options.work == WorkOptions(TIMEOUT)
    assert not options.accept and not options.list_only


def test_a_stages_flags_are_its_options(tmp_path: Path) -> None:
    suite = tmp_path / "mine.toml"
    suite.touch()
    choice = ["--suite", suite, "--tag", "pr", "-k", "8a8w", "--shard", "1/2"]
    how = ["--jobs", 3, "--timeout", 7, "--no-cache", "--why"]
    options = stage_options(parsed(EMULATION, *choice, *how, "--accept", "--list"))
    assert options.choice == Choice((suite,), ("pr",), ("8a8w",), "1/2")
    assert options.work == WorkOptions(7, 3, cache=False, why=True)
    assert options.accept and options.list_only


@pytest.mark.parametrize("words", [["--suite", "missing.toml"], ["--target", "aarch64-android"]])
def test_a_suite_that_is_not_there_and_another_target_are_refused_before_any_work(words: list[str]) -> None:
    with pytest.raises(UsageError):
        stage_options(parsed(LOWERING, *words))


@pytest.mark.parametrize(("model", "lane"), [("net.py:make", executorch.HEAD), ("net.onnx", onnx.HEAD)])
@pytest.mark.parametrize(("verb", "name", "more"), COMMANDS)
def test_a_command_for_one_model_has_the_models_lane(
    verb: Any, name: str, more: list[str], model: str, lane: LaneHead
) -> None:
    ask = one_model_of(parsed(verb, model, *more, "--calibrate", "samples", "--soc", "SM8750"), name)
    assert (ask.typed, ask.lane, ask.selection.soc) == (model, lane, "SM8750") and ask.work.cache
    precisions, output = ("8a8w",) if verb is quantize else (), Path("out") if more else None
    assert ask.options == options_of(lane)(calibrate="samples", precisions=precisions, output=output)


@pytest.mark.parametrize(
    ("model", "flag"),
    [
        ("net.onnx", ["--keep-on-cpu", "conv"]),
        ("net.py:make", ["--per-channel"]),
        ("net.onnx", ["--prefill", "64"]),
    ],
)
def test_a_flag_that_this_kind_of_model_ignores_is_refused_by_its_name(model: str, flag: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        one_model_of(parsed(compile, model, "-o", "out", *flag), COMPILE)
    assert caught.value.fix == f"leave {flag[0]} out"


def test_a_folder_of_a_language_model_has_its_own_flags(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    args = parsed(compile, tmp_path, "-o", "out", "--context", 512)
    model = one_model_of(args, COMPILE)
    options = model.own(LlmOptions)
    assert model.lane == llm.HEAD and model.work.timeout == LANGUAGE_TIMEOUT
    assert (options.through, options.context, options.prefill, options.parts) == ("genie", 512, 32, None)
    args.timeout = TIMEOUT
    assert one_model_of(args, COMPILE).work.timeout == TIMEOUT


def suite(folder: Path, precision: str = 'precision_file = "net.precision.toml"') -> Path:
    path = folder / "suite.toml"
    path.write_text(SUITE.replace('precision = "8a8w"', precision))
    return path


def precision_file(folder: Path, *names: str, lane: str = "executorch") -> None:
    text = precision_text(lane, "8a8w", {"16a8w": names}, "a comment")
    (folder / "net.precision.toml").write_text(text)


def test_a_suite_takes_precision_and_operators_from_the_file(tmp_path: Path) -> None:
    precision_file(tmp_path, "conv2d", 'a "quoted" name')
    (program,) = programs_of(suite(tmp_path))
    assert program.run.precision == "8a8w" and program.run.nodes == {"16a8w": ("conv2d", 'a "quoted" name')}
    assert program.name == "net/8a8w-mixed/SM8650"


def test_the_files_content_and_not_its_name_is_in_the_key(tmp_path: Path) -> None:
    precision_file(tmp_path, "conv2d")
    (program,) = programs_of(suite(tmp_path))
    precision_file(tmp_path, "conv2d_1")
    (changed,) = programs_of(suite(tmp_path))
    assert changed.order != program.order
    (written_out,) = programs_of(suite(tmp_path, 'precision = "8a8w"\nnodes = { 16a8w = ["conv2d"] }'))
    assert written_out.order == program.order


@pytest.mark.parametrize("beside", ['precision = "8a8w"', 'nodes = { 16a8w = ["conv2d"] }'])
def test_nothing_that_the_file_says_is_said_beside_it(tmp_path: Path, beside: str) -> None:
    precision_file(tmp_path, "conv2d")
    with pytest.raises(ManifestError, match="precision_file"):
        programs_of(suite(tmp_path, f'precision_file = "net.precision.toml"\n{beside}'))


@pytest.mark.parametrize(
    "option",
    [
        {"modules": ({"precision": "16a8w", "name": "head"},)},
        {"nodes": {"16a8w": ("linear",)}},
        {"annotations": ("mine:annotate",)},
        {"block_sizes": {"linear": (1, 16)}},
    ],
)
def test_a_float_run_with_an_option_of_quantizing_is_refused(option: dict[str, object]) -> None:
    plain = {"precision": "fp16", "socs": ("SM8650",)}
    assert ExecutorchRun.model_validate(plain).precision == "fp16"
    with pytest.raises(ValidationError):
        ExecutorchRun.model_validate({**plain, **option})
