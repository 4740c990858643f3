"""The everyday commands. One worker process does the work. Files appear in the output all at once."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ci.lanes.llm.architecture import Architecture, beginning_warning, read_architecture, read_object
from ci.lanes.llm.beginning import load_tokenizer
from ci.lanes.llm.genie import (
    CONFIG,
    NONE,
    PROGRAM,
    GeneratedText,
    encoded,
    generate,
    require_short,
    require_sizes,
    setting,
)
from ci.lanes.llm.orders import (
    EXECUTORCH,
    GENIE,
    AnswerOrder,
    CompileOrder,
    Rounded,
    SpokenText,
    record_in,
    record_of,
)
from ci.lanes.llm.prompts import chat_text, require_no_nul, tokens_of, without_beginning, words_after
from ci.lanes.llm.suite import FOUR_BITS, PRECISIONS
from ci.lanes.llm.weights import require_adapter, require_tensors
from ci.lanes.llm.work import WORKER, environment, home_of, measured_rounding
from ci.one_model.model import Language, OneModel
from ci.plain import as_json, read
from ci.suite.installed import ready_environment
from ci.suite.precision import precision_named, scheme_named
from ci.work import Asker, asking
from provisioning.base.command_line import Parser
from provisioning.base.commands import add_flags, leave_out
from provisioning.base.errors import UsageError
from provisioning.base.settings import Selection
from provisioning.base.units import size
from provisioning.manifest import soc_named

PART = 1 << 30
"""Largest context binary in bytes: compiling one of this size took 6 GB of memory."""
LOG = Path("reports", "llm", "compile.log")
EMULATOR_BYTES = 3_200_000_000
"""Of context binaries that the emulator loads in one process: 3.23 GB it did, at 3.36 GB it said 1002."""


def is_wrong_in_genie(precision: str, parts: int) -> bool:
    """Genie's logits of 3 and 5 parts in fp16 are others than float's, though each part is right. Those of 1,
    2 and 4, and of 3 that are quantized, are right."""
    return precision == "fp16" and parts > 1 and parts % 2 == 1


def compile_order(model: OneModel, language: Language, folder: Path) -> tuple[Architecture, CompileOrder]:
    """Checks everything before anything heavy is imported; what it is quantized by comes later."""
    selection, through = model.selection, language.through
    context, prefill = language.context, language.prefill
    if len(selection.socs) > 1:
        chips = ", ".join(selection.socs)
        raise UsageError(f"a language model is compiled for one chip, found {chips}", fix="name one --soc")
    soc_named(selection.soc)
    text = calibrate_of(model)
    precision = _precision(model.precision or "fp16", through)
    adapter = str((Parser.user_folder() / language.adapter).absolute()) if language.adapter else ""
    shape = read_architecture(folder, adapter)
    if through == GENIE:
        require_sizes(context, [prefill])
    elif language.shared_weights:
        raise UsageError(
            "--shared-weights is for Genie; a program of ExecuTorch's has its weights once",
            fix=leave_out("--shared-weights"),
        )
    if prefill >= context:
        raise UsageError(f"prefill by {prefill} fills a context of {context}", fix="take a longer context")
    if context > shape.context:
        raise UsageError(
            f"a context of {context} tokens: the model was made for {shape.context}",
            fix=add_flags("--context", str(shape.context)),
        )
    require_tensors(folder, shape)
    if shape.adapter:
        require_adapter(shape.adapter, shape.tensors)
    if warning := beginning_warning(folder, shape):
        sys.stderr.write(f"warning: {warning}\n")
    if not (folder / "tokenizer.json").is_file():
        tokenizer = "tokenizer.model alone" if (folder / "tokenizer.model").is_file() else "none"
        raise UsageError(
            f"{folder}: expected tokenizer.json, which the device reads; found {tokenizer}",
            fix="AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) writes it",
        )
    if not shape.eos:
        raise UsageError(
            f"{folder}/config.json names no eos_token_id, and the device wants it",
            fix="add it: generation_config.json of the same model may have it",
        )
    if precision != "fp16" and text is None:
        raise UsageError(f"{precision} needs text to calibrate by", fix="--calibrate text.txt")
    if text is not None and not text.is_file():
        raise UsageError(f"--calibrate {text}: there is no such file", fix="name a text file")
    executorch = through == EXECUTORCH
    parts = language.parts or (1 if executorch else parts_of(shape, precision))
    _require_parts(parts, 1 if executorch else shape.num_layers, precision, through)
    return shape, CompileOrder(
        model=str(folder),
        adapter=adapter,
        through=through,
        soc=selection.soc,
        precision=precision,
        context=context,
        prefill=prefill,
        parts=parts,
        shared=language.shared_weights,
        calibration=[],
    )


def calibrate_of(model: OneModel) -> Path | None:
    """The text to calibrate by."""
    return Parser.user_folder() / model.calibrate if model.calibrate else None


def _require_parts(parts: int, most: int, precision: str, through: str) -> None:
    right = [count for count in range(1, most + 1) if not is_wrong_in_genie(precision, count)]
    if parts in right:
        return
    expected = f"at most {most} through {through}"
    if parts <= most:
        expected = f"1 or an even number, as Genie computes others in {precision} wrong"
    nearest = min(right, key=lambda count: (abs(count - parts), -count))
    raise UsageError(f"--parts {parts}: expected {expected}", fix=add_flags("--parts", str(nearest)))


def _precision(name: str, through: str) -> str:
    known, precision = PRECISIONS[through], scheme_named(name)
    if through == GENIE and precision != FOUR_BITS:
        precision = precision_named(name).written
    if precision not in known:
        raise UsageError(
            f"precision {name}: language models are compiled in {', '.join(known)} through {through}",
            fix="take 16a8w",
        )
    return precision


def parts_of(shape: Architecture, precision: str) -> int:
    """The fewest of which none is larger than PART, or than a layer with all words."""
    # Quantizing holds a part as floats.
    weight = 2 if precision == "fp16" else 4
    most = max(PART, max(shape.weights(shape.num_layers)) * weight)
    counts = (count for count in range(1, shape.num_layers + 1) if not is_wrong_in_genie(precision, count))
    fitting = (count for count in counts if max(shape.weights(count)) * weight <= most)
    return next(fitting, shape.num_layers - 1)


def ask_worker(
    through: str, selection: Selection, logs: Path, timeout: float
) -> contextlib.AbstractContextManager[Asker]:
    """The worker that loads what was compiled: ExecuTorch's has the profile's QNN."""
    log = logs / LOG.name
    if through == GENIE:
        return asking(home_of("generate", logs), f"{WORKER}:answer", log, timeout)
    variables = environment(ready_environment(selection, os.environ))
    return asking(home_of("lower", logs, variables), f"{WORKER}:answer", log, timeout)


@dataclass(frozen=True, slots=True)
class Emulated:
    """The processes in which a model runs on the emulator."""

    worker: Callable[..., contextlib.AbstractContextManager[Asker]] = ask_worker
    genie: Callable[..., list[GeneratedText]] = generate
    genie_tokenizer: Callable[..., list[list[int]]] = encoded
    rounding: Callable[..., Rounded] = measured_rounding


@dataclass(frozen=True, slots=True)
class Prompt:
    folder: Path
    text: str
    chat: bool
    system: str
    tokens: int
    timeout: float
    selection: Selection
    emulated: Emulated


def run_model(prompt: Prompt) -> int:
    config = compiled_file(prompt.folder)
    tokenizer = load_tokenizer(config.parent)
    require_no_nul(prompt.text + prompt.system, "the prompt")
    text = chat_text(config.parent, prompt.text, prompt.system) if prompt.chat else prompt.text
    order = record_of(config.parent).order
    tokens = without_beginning(tokens_of(tokenizer, text), beginning_of(config))
    require_short(tokens, order.context, order.prefill)
    if order.through == EXECUTORCH:
        return _run_program(prompt, config, tokenizer, tokens)
    with limited(config, prompt.tokens) as copy:
        sys.stdout.write("" if prompt.chat else prompt.text)
        sys.stdout.flush()
        tokens_so_far, written = list[int](), 0

        def write(token: int) -> None:
            nonlocal written
            tokens_so_far.append(token)
            text = words_after(tokenizer, tokens, tokens_so_far)
            # The rest of a letter comes with the next token.
            if not text.endswith("\ufffd"):
                sys.stdout.write(text[written:])
                sys.stdout.flush()
                written = len(text)

        [generated] = prompt.emulated.genie(copy, [tokens], timeout=prompt.timeout, on_token=write)
    sys.stdout.write(words_after(tokenizer, tokens, generated.tokens)[written:] + "\n")
    _say_speed(len(generated.tokens), generated.stopped, generated.seconds)
    return 0


def _run_program(prompt: Prompt, program: Path, tokenizer: Any, tokens: Sequence[int]) -> int:
    """What ExecuTorch's program says. The folder has what is read of the checkpoint."""
    logs = prompt.selection.reports.absolute() / "llm"
    if not program.with_name("config.json").is_file():
        raise UsageError(f"{prompt.folder}: there is no config.json", fix="compile it again")
    folder = str(program.parent)
    compiled = replace(record_of(program.parent).order, model=folder, adapter="", into=folder)
    order = AnswerOrder(compiled=compiled, prompt=list(tokens), most=prompt.tokens)
    with prompt.emulated.worker(EXECUTORCH, prompt.selection, logs, prompt.timeout) as ask:
        said = read(SpokenText, ask(do="answer", **as_json(order)))
    words = words_after(tokenizer, tokens, said.tokens)
    sys.stdout.write(f"{'' if prompt.chat else prompt.text}{words}\n")
    _say_speed(len(said.tokens), said.stopped, said.seconds)
    return 0


def _say_speed(count: int, stopped: str, seconds: float) -> None:
    rate = f"{count / seconds:.1f} a second on the emulator"
    sys.stderr.write(f"{count} tokens, stopped by {stopped}; {rate}\n")


def beginning_of(compiled: Path) -> int:
    """The token that a prompt must not begin with, since it is put first."""
    if compiled.name == CONFIG:
        return int(setting(compiled, "context", "bos-token"))
    bos = read_architecture(compiled.parent).bos
    return NONE if bos is None else bos


def compiled_file(folder: Path) -> Path:
    """Genie's configuration, or ExecuTorch's program."""
    config, program = (folder.absolute() / name for name in (CONFIG, PROGRAM))
    if program.is_file() and not config.is_file():
        return program
    if not config.is_file():
        raise UsageError(f"{folder}: there is no {CONFIG} and no {PROGRAM}", fix="name what compile wrote")
    record = record_in(config.parent)
    if record and record.order.shared:
        raise UsageError(
            f"{folder}: prefill and decode share their weights, which the emulator refuses",
            fix="compile it without --shared-weights to another folder, and try that",
        )
    return config


def sizes_of(config: Path) -> dict[str, int]:
    """By kind, the bytes of its context binaries."""
    sizes: dict[str, int] = {}
    for name in setting(config, "engine", "model", "binary", "ctx-bins"):
        file = config.with_name(name)
        if not file.is_file():
            raise UsageError(f"{file} is missing", fix="compile it again")
        kind = _kind(name)
        sizes[kind] = sizes.get(kind, 0) + file.stat().st_size
    return sizes


def _kind(binary: str) -> str:
    return binary.rpartition("_")[0]


def require_loadable(sizes: Mapping[str, int], *kinds: str) -> None:
    """Refuse binaries of which the emulator cannot load even those of one kind."""
    for kind in kinds:
        if sizes.get(kind, 0) > EMULATOR_BYTES:
            raise UsageError(
                f"the binaries of {kind} have {size(sizes[kind])}, and the emulator loads only some"
                f" {size(EMULATOR_BYTES)} in one process",
                fix="check --on parts judges each part by itself, and --on cpu a quantized model;"
                " --precision 16a8w about halves the binaries",
            )


def kinds_for_genie(sizes: Mapping[str, int]) -> list[str]:
    """All, or decode alone if the emulator cannot load all binaries in one process."""
    if sum(sizes.values()) <= EMULATOR_BYTES:
        return list(sizes)
    require_loadable(sizes, "decode")
    return ["decode"]


@contextlib.contextmanager
def limited(config: Path, most: int) -> Iterator[Path]:
    """A copy of the configuration for a context of that many tokens, beside links to its files. Of binaries
    that are too large for the emulator together it names those of decode."""
    with tempfile.TemporaryDirectory(prefix="qnn-ci-llm-") as scratch:
        changed = read_object(config, fix="compile it again, or correct it")
        changed["dialog"]["max-num-tokens"] = most
        sizes = sizes_of(config)
        kinds = kinds_for_genie(sizes)
        if len(kinds) < len(sizes):
            total = size(sum(sizes.values()))
            sys.stderr.write(f"decode reads the prompt too: the emulator does not load {total} at once\n")
        binary = changed["dialog"]["engine"]["model"]["binary"]
        binary["ctx-bins"] = [name for name in binary["ctx-bins"] if _kind(name) in kinds]
        for file in config.parent.iterdir():
            Path(scratch, file.name).symlink_to(file)
        copy = Path(scratch, "limited.json")
        copy.write_text(json.dumps(changed), encoding="utf-8")
        yield copy
