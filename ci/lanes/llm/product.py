"""`compile` of a language model: a checkpoint becomes what Genie runs on a device, or a program of
ExecuTorch.

`programs_of` checks what the user typed and the checkpoint, and makes one program of them; `plan_to_compile`
says what compiling will take; `compiled_results` does it; `product_of` gives the files that `compile` writes
into the user's folder. They are parts of the lane's record (`lane.py`)."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ci.lanes.llm.architecture import Architecture, read_architecture
from ci.lanes.llm.compile_needs import CompileNeeds, pace
from ci.lanes.llm.float_model import CAUSES, float_model
from ci.lanes.llm.genie import PROGRAM, require_sizes
from ci.lanes.llm.model_options import LlmOptions
from ci.lanes.llm.orders import (
    EXECUTORCH,
    GENIE,
    RECORD,
    CompileOrder,
    Record,
    Written,
    record_in,
)
from ci.lanes.llm.steps import (
    Checkpoint,
    LlmPlan,
    checkpoint_of,
    compiling,
    digests_of,
    require_installed,
    source_of,
)
from ci.lanes.llm.suite import PRECISIONS, LlmProgram
from ci.lanes.llm.text import windows
from ci.lanes.llm.tokenizer import TEMPLATE_FIX, require_tokenizer, template_problems
from ci.lanes.llm.weights import require_tensors
from ci.one_model.model import OneModel
from ci.one_model.output import SCRATCH
from ci.one_model.product import Product, require_fp16
from ci.suite.precision import refuse_several, written_name
from ci.suite.running import run_cached_step
from ci.suite.stage import Results
from ci.work import Result, read, require_done
from provisioning.base.commands import add_flags, session
from provisioning.base.errors import UsageError
from provisioning.base.parser import Parser
from provisioning.base.settings import profile_flags
from provisioning.base.units import seconds, size

PART = 1 << 30
"""The most bytes of a context binary: compiling one of this size took 6 GB of memory."""
README = """\
# {name} through {order.through}

Made by `compile` for {order.soc}, {order.precision}, a context of {order.context} tokens, prefill by
{order.prefill}.
"""
READMES = {
    GENIE: """
`{bundle}`
adds QNN's libraries, the skel and scripts to push and run it. With genie-t2t-run of the official SDK:

    LD_LIBRARY_PATH=lib ADSP_LIBRARY_PATH=dsp bin/genie-t2t-run -c genie_config.json -p "The answer is"

Genie puts the token that begins a text first by itself: leave it out of the prompt.

The .onnx files are for `check` alone.
""",
    EXECUTORCH: f"""
{PROGRAM} has the methods prefill_forward and kv_forward, with the inputs, outputs and constants of
executorch's own language models. Upstream's qnn_llama_runner reads it, which `build_android` builds. Push
this folder to the device with the runner and QNN's libraries, and run in it:

    ./qnn_llama_runner --model_path {PROGRAM} --tokenizer_path tokenizer.json --eval_mode 1 \\
        --prompt "The answer is"

With `--decoder_model_version NAME` it puts the prompt into the chat template of a family.

The .pt2 files are for `run` and `check` alone.
""",
}
README_OF_RECORD = f"""
No device reads {RECORD}. It holds the tokens of the text that this was calibrated by, and tokenizer.json
turns them back into words: leave it out of what you publish if that text is secret.
"""


def is_wrong_in_genie(precision: str, parts: int) -> bool:
    """Whether Genie's logits differ from float's although each part is right: they do with 3 and 5 parts in
    fp16. With 1, 2 and 4 parts, and with 3 that are quantized, they are right."""
    return precision == "fp16" and parts > 1 and parts % 2 == 1


def compile_order(model: OneModel, folder: Path) -> tuple[Architecture, CompileOrder]:
    """Check everything before anything heavy is imported, and return the order. Its calibration is added
    later."""
    options, selection = model.own(LlmOptions), model.selection
    through, context, prefill = options.through, options.context, options.prefill
    if len(selection.socs) > 1:
        chips = ", ".join(selection.socs)
        raise UsageError(f"a language model is compiled for one chip, found {chips}", fix="name one --soc")
    precision = _precision_for(model, through)
    shape = read_architecture(folder)
    _require_context(shape, context, prefill, through)
    require_tensors(folder, shape)
    _require_device_files(folder, shape)
    _require_calibration(calibration_file(model), precision)
    executorch = through == EXECUTORCH
    parts = options.parts or (1 if executorch else fewest_parts(shape, precision))
    _require_parts(parts, 1 if executorch else shape.num_layers, precision, through)
    return shape, CompileOrder(
        model=str(folder),
        through=through,
        soc=selection.soc,
        precision=precision,
        context=context,
        prefill=prefill,
        parts=parts,
        calibration=[],
    )


def _precision_for(model: OneModel, through: str) -> str:
    """Return the precision that the user chose, if `through` compiles in it."""
    precision = written_name(model.precision or "fp16")
    if through not in PRECISIONS:
        raise UsageError(
            f"--through {through} is for other PyTorch models, and {model.typed} is a checkpoint",
            fix=f"leave --through out, or take {' or '.join(PRECISIONS)}",
        )
    if precision not in (choices := PRECISIONS[through]):
        refuse_several(precision)
        raise UsageError(
            f"precision {precision}: language models are compiled in {', '.join(choices)} through {through}",
            fix="take 16a8w",
        )
    return precision


def _require_context(shape: Architecture, context: int, prefill: int, through: str) -> None:
    if through == GENIE:
        require_sizes(context, prefill)
    if prefill >= context:
        raise UsageError(f"prefill by {prefill} fills a context of {context}", fix="take a longer context")
    if context > shape.context:
        reason = f"the model was made for {shape.context}"
        if shape.context == shape.window:
            reason = f"no masks are built for its sliding_window of {shape.window}"
        raise UsageError(
            f"a context of {context} tokens: {reason}", fix=add_flags("--context", str(shape.context))
        )


def _require_device_files(folder: Path, shape: Architecture) -> None:
    """Require what the device reads of the checkpoint."""
    if not (folder / "tokenizer.json").is_file():
        raise UsageError(
            f"{folder}: expected tokenizer.json, which the device reads; found none",
            fix="AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) writes it",
        )
    if not shape.eos:
        raise UsageError(
            f"{folder}/config.json names no eos_token_id, and the device wants it",
            fix="add it: generation_config.json of the same model may have it",
        )


def _require_calibration(text: Path | None, precision: str) -> None:
    if precision != "fp16" and text is None:
        raise UsageError(f"{precision} needs text to calibrate by", fix="--calibrate text.txt")
    if text is not None and not text.is_file():
        raise UsageError(f"--calibrate {text}: there is no such file", fix="name a text file")


def calibration_file(model: OneModel) -> Path | None:
    """Return the text to calibrate by."""
    return Parser.user_folder() / model.options.calibrate if model.options.calibrate else None


def _require_parts(parts: int, most: int, precision: str, through: str) -> None:
    possible = [count for count in range(1, most + 1) if not is_wrong_in_genie(precision, count)]
    if parts in possible:
        return
    words = f"at most {most} through {through}"
    if parts <= most:
        words = f"1 or an even number, as Genie computes others in {precision} wrong"
    nearest = min(possible, key=lambda count: (abs(count - parts), -count))
    raise UsageError(f"--parts {parts}: expected {words}", fix=add_flags("--parts", str(nearest)))


def fewest_parts(shape: Architecture, precision: str) -> int:
    """Return the lowest number of parts of which none is larger than PART, or than a layer with all words."""
    # Quantizing holds a part as floats.
    weight = 2 if precision == "fp16" else 4
    most = max(PART, max(shape.weights(shape.num_layers)) * weight)
    counts = (count for count in range(1, shape.num_layers + 1) if not is_wrong_in_genie(precision, count))
    fitting = (count for count in counts if max(shape.weights(count)) * weight <= most)
    return next(fitting, shape.num_layers - 1)


COMPILED = "compiled"
"""This step compiles a checkpoint."""


def programs_of(model: OneModel, suite: Path | None = None) -> list[LlmProgram]:
    folder, output = Parser.user_folder() / model.typed, model.output
    shape, order = compile_order(model, folder)
    require_installed()
    require_tokenizer(folder, shape.vocab_size)
    if order.quantized and (text := calibration_file(model)):
        # Before anything starts: a text that is too short is refused.
        order = replace(order, calibration=windows(folder, shape, text, order.context))
    _require_own_folder(output, order)
    program = checkpoint_of(order)
    require_fp16([program])
    return [program]


def _require_own_folder(output: Path, order: CompileOrder) -> None:
    """Refuse a folder with files that no compile of this checkpoint has written."""
    if earlier := record_in(output):
        is_foreign = earlier.order.model != order.model
    else:
        names = [path.name for path in output.iterdir()] if output.exists() else []
        is_foreign = any(not name.startswith(SCRATCH) for name in names)
    if is_foreign:
        raise UsageError(
            f"{output} is not empty, and its files are not of {order.model}",
            fix="name another folder with -o, or remove it",
        )


def plan_to_compile(model: OneModel, programs: Sequence[LlmProgram]) -> LlmPlan:
    """Return the plan, and print what compiling will take, which may be an hour."""
    for program in programs:
        assert isinstance(program, Checkpoint)
        for problem in template_problems(Path(program.compiled.model)):
            sys.stderr.write(f"warning: {problem}; {TEMPLATE_FIX}\n")
        if program.compiled.through == GENIE:
            shape = read_architecture(Path(program.compiled.model))
            for line in CompileNeeds.of(shape, program.compiled, pace()).lines(model.output):
                sys.stderr.write(f"{line}\n")
    return LlmPlan.of(programs, model.selection, replace(model.work, jobs=1))


def compiled_results(plan: LlmPlan, results: Results) -> Mapping[str, Result]:
    (program,) = plan.programs
    assert isinstance(program, Checkpoint)
    return run_cached_step(compiling(plan, program.compiled), plan.programs)


def product_of(model: OneModel, plan: LlmPlan, program: LlmProgram, results: Mapping[str, Result]) -> Product:
    assert isinstance(program, Checkpoint)
    result, order, output = require_done(results[COMPILED]), program.compiled, model.output
    assert result.folder is not None
    store, facts = model.selection.store, read(Written, result.facts)
    files = {path.name: path for path in sorted(result.folder.iterdir())}
    record = Record(
        order=order,
        size=facts.size,
        source=source_of(order, store),
        files=digests_of(store, files),
    )
    genie = order.through == GENIE
    content = f"{facts.binaries} binaries" if genie else "a program"
    float_lines, warnings = _about_float(order, facts)
    costs = f"{seconds(result.facts['cpu_seconds'])} of a core and {size(result.facts['peak'])} of memory"
    # Genie is in the environment of this command; ExecuTorch's program runs with the profile's QNN.
    profile = [] if genie else profile_flags(model.selection.profile)
    words = [
        f"{output}: {content}, {size(facts.size)}, {costs}; see its README.md",
        *float_lines,
        f"try it: {session('run', output, 'The answer is', *profile)}",
    ]
    written = {"README.md": readme_of(order), RECORD: record.to_json()}
    return Product({**files, **written}, words, warnings=warnings, stale=_files_of_earlier_compile(output))


def _files_of_earlier_compile(output: Path) -> list[Path]:
    """Return the files that an earlier compile wrote, which may have had more parts or another runtime."""
    earlier = record_in(output)
    if earlier is None:
        return []
    return [path for path in output.absolute().iterdir() if path.name in earlier.files]


def _about_float(order: CompileOrder, written: Written) -> tuple[list[str], list[str]]:
    """Say how good the checkpoint itself is on the text that it was quantized by."""
    if not written.losses:
        return [], []
    model = float_model(order.calibration, written.losses)
    return [model.describe()], [f"{model.warning}; {CAUSES}"] if model.warning else []


def readme_of(order: CompileOrder) -> str:
    text = f"{README}{READMES[order.through]}{README_OF_RECORD if order.quantized else ''}"
    selected = ("--profile", "wheels-2.51", "--target", "aarch64-linux", "--soc", order.soc)
    bundle = session("bundle", *selected, "FOLDER")
    return text.format(name=Path(order.model).name, order=order, bundle=bundle)
