"""`run` and `check` of a compiled language model.

`run_model` prints what it generates. `check_model` compares it with the float model: it refuses what cannot
be checked before any worker starts (`prepare_check`), has workers read a text, and judges the figures by
`verdicts`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from ci.lanes.llm import verdicts
from ci.lanes.llm.architecture import read_architecture
from ci.lanes.llm.float_model import CAUSES, float_model
from ci.lanes.llm.genie import (
    CONFIG,
    NONE,
    encode_texts,
    generate,
    kinds_for_genie,
    require_loadable,
    require_short,
    setting,
    sizes_of,
)
from ci.lanes.llm.model_options import CheckOptions, LlmOptions
from ci.lanes.llm.orders import (
    EXECUTORCH,
    GENIE,
    KINDS,
    AnswerOrder,
    CompileOrder,
    JudgedText,
    MeasuredProgram,
    MeasureOrder,
    Record,
    SpokenText,
    measure_program,
    record_of,
)
from ci.lanes.llm.steps import WORKER, changed_files, environment, home_of, source_of
from ci.lanes.llm.text import PREFIX, judged_text
from ci.lanes.llm.tokenizer import (
    TEMPLATE_FIX,
    chat_text,
    drop_beginning,
    encoded_by_transformers,
    has_template,
    load_tokenizer,
    template_problems,
    tokenizer_decides,
    tokens_of,
    words_after,
)
from ci.one_model.model import OneModel
from ci.suite.findings import verdict
from ci.suite.ready_environment import ready_environment
from ci.work import Asker, asking, read, to_json
from provisioning.base.commands import session
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.findings import Finding, Metric, Severity
from provisioning.base.parser import Parser
from provisioning.base.settings import Selection
from provisioning.base.stage_run import StageRun

LOG = "worker.log"
TOKENS_OF_PREFIX = 25
"""Genie continues one prefix for this many tokens of windows."""


def ask_worker(
    through: str, selection: Selection, logs: Path, timeout: float
) -> contextlib.AbstractContextManager[Asker]:
    """Start the worker that loads what was compiled; ExecuTorch's worker has the profile's QNN."""
    log = logs / LOG
    if through == GENIE:
        return asking(home_of("generate", logs), f"{WORKER}:answer", log, timeout)
    variables = environment(ready_environment(selection, os.environ))
    return asking(home_of("lower", logs, variables), f"{WORKER}:answer", log, timeout)


def run_model(model: OneModel, prompt: str) -> int:
    """Print what the model generates after the prompt."""
    options = model.own(LlmOptions)
    order = compiled_in(Parser.user_folder() / model.typed)
    folder = Path(order.into)
    tokenizer = load_tokenizer(folder)
    text = chat_text(folder, prompt, options.system) if options.chat else prompt
    tokens = drop_beginning(tokens_of(tokenizer, text), _beginning_of(order))
    require_short(tokens, order.context, order.prefill)
    if order.through == GENIE:
        answer = generate(folder / CONFIG, tokens, options.tokens, timeout=model.work.timeout)
    else:
        answer = _answer_of_program(model, order, tokens)
    words = words_after(tokenizer, tokens, answer.tokens)
    sys.stdout.write(f"{'' if options.chat else prompt}{words}\n")
    sys.stderr.write(f"{len(answer.tokens)} tokens, stopped by {answer.stopped}\n")
    return 0


def _answer_of_program(model: OneModel, order: CompileOrder, tokens: Sequence[int]) -> SpokenText:
    """Ask ExecuTorch's program. Its folder has the checkpoint's files that are needed."""
    logs = model.selection.reports.absolute() / "llm"
    compiled = replace(order, model=order.into)
    answer = AnswerOrder(compiled=compiled, prompt=list(tokens), most=model.own(LlmOptions).tokens)
    with ask_worker(EXECUTORCH, model.selection, logs, model.work.timeout) as ask:
        return read(SpokenText, ask(do="answer", **to_json(answer)))


def _beginning_of(order: CompileOrder) -> int:
    """Return the token that a prompt must not begin with, because the runtime puts it first."""
    if order.through == GENIE:
        return int(setting(Path(order.into, CONFIG), "context", "bos-token"))
    bos = read_architecture(Path(order.into)).bos
    return NONE if bos is None else bos


def compiled_in(folder: Path) -> CompileOrder:
    """Return the order that a folder was compiled by, with the folder's current place."""
    out = folder.absolute()
    return replace(record_of(out).order, into=str(out))


# Is it the same model?


def check_model(compiled: Path, selection: Selection, options: CheckOptions) -> int:
    """Compare what was compiled with the float model."""
    stage = StageRun("check", "", "", session("check", *sys.argv[2:]))
    with stage.reported(selection.reports, "llm-refused", compiled.absolute().name):
        prepare_check(compiled, selection, options).all(stage)
    return stage.close(selection.reports)


def prepare_check(compiled: Path, selection: Selection, options: CheckOptions) -> Check:
    """Refuse what cannot be checked, before any worker starts."""
    order = compiled_in(compiled)
    out, record = Path(order.into), record_of(Path(order.into))
    folder = (options.checkpoint or Path(order.model)).absolute()
    if not folder.is_dir():
        raise UsageError(
            f"{folder}, from which {compiled} was compiled, is not there",
            fix="name where the checkpoint is now: --checkpoint FOLDER",
        )
    order = replace(order, model=str(folder))
    if not options.text.is_file():
        raise UsageError(f"--text {options.text}: there is no such file", fix="name a text file")
    if files := changed_files(out, record, selection.store):
        raise CheckFailed(f"{out / files[0]} is not what compile wrote", fix="compile it again")
    fills_context = True
    if order.through == GENIE and options.on == "both":
        sizes = sizes_of(out / CONFIG)
        require_loadable(sizes, *KINDS)
        fills_context = "prefill" in kinds_for_genie(sizes)
    prefixes = max(4, options.tokens // TOKENS_OF_PREFIX)
    shape = read_architecture(folder)
    text = judged_text(order, shape, options.text, options.tokens, prefixes, fills_context=fills_context)
    return Check(compiled.absolute().name, selection, options, record, order, text)


@dataclass(frozen=True)
class Check:
    """Holds a compiled checkpoint, and the text that it is judged by."""

    name: str
    selection: Selection
    options: CheckOptions
    record: Record
    order: CompileOrder
    """The checkpoint was compiled by this order; its paths are the current ones."""
    text: JudgedText

    @property
    def asks_genie(self) -> bool:
        return self.order.through == GENIE and self.options.on == "both"

    def all(self, stage: StageRun) -> None:
        options, order, name, store = self.options, self.order, self.name, self.selection.store

        def add(rule: str, messages: Iterable[str], fix: str, severity: Severity = Severity.ERROR) -> None:
            stage.findings += [Finding(rule, severity, name, message, fix) for message in messages]

        if self.asks_genie:
            add("llm-text", self._tokenizer_problems(), "report it with the checkpoint's tokenizer.json")
        source = source_of(order, store)
        names = sorted({*source, *self.record.source})
        changes = [file for file in names if source.get(file) != self.record.source.get(file)]
        if changes:
            sys.stderr.write(f"{order.model}: changed since it was compiled: {', '.join(changes)}\n")
        program = self._measure()
        windows = program.rounded.read[verdicts.WINDOWS]
        model = float_model(self.text.rows, [loss for window in windows for loss in window.theirs])
        sys.stdout.write(f"{model.describe()}\n")
        if model.warning:
            add("llm-float", [model.warning], CAUSES, Severity.WARNING)
        add("llm-template", template_problems(Path(order.model)), TEMPLATE_FIX, Severity.WARNING)
        judgement = verdicts.Judgement.of(order.precision, program, options.limits)
        add("llm-accuracy", judgement.problems, self._fix(changes, judgement.fix))
        if warning := judgement.bounds.warning:
            fix = "take a higher precision; calibrating by other text helps where activations are cut off"
            add("llm-rounding", [warning], fix, Severity.WARNING)
        for line in judgement.lines(parts=options.on == "parts"):
            sys.stdout.write(f"{line}\n")
        if order.through == GENIE and options.on != "both":
            sys.stdout.write(f"Genie was not run: --on {options.on}\n")
        row: dict[str, Metric] = {
            "verdict": verdict(stage.findings),
            "soc": order.soc,
            "context": order.context,
            "through": order.through,
            "precision": order.precision,
        }
        stage.metrics["programs"] = {name: {**row, "float": model.metric_values(), **judgement.row}}

    def _fix(self, changes: Sequence[str], fix: str) -> str:
        """Say what to do if the model differs, first about files that are not those that were compiled."""
        if not changes:
            return fix
        files = ", ".join(changes)
        if checkpoint := self.options.checkpoint:
            return (
                f"name the checkpoint that was compiled: {checkpoint} has other files ({files}). If it is the"
                f" right one, compile it, and check that. If that fails: {fix}"
            )
        return f"compile it again, as {files} changed since, and check that. If that fails: {fix}"

    def _tokenizer_problems(self) -> Iterator[str]:
        """Report where Genie's tokenizer differs. Genie has its own, which also reads the chat template's
        special tokens."""
        folder, texts = Path(self.order.into), [self.text.sample]
        tokenizer, bos = load_tokenizer(folder), setting(folder / CONFIG, "context", "bos-token")
        if has_template(folder):
            texts.append(chat_text(folder, texts[0][:PREFIX], ""))
            drop_beginning(tokens_of(tokenizer, texts[-1]), bos)
        rows = encode_texts(folder / CONFIG, texts, timeout=self.options.timeout)
        for name, text, tokens in zip(("text", "chat"), texts, rows, strict=False):
            yield from tokenizer_differences(Path(self.order.model), name, text, tokens, bos)

    def _measure(self) -> MeasuredProgram:
        options, order = self.options, self.order
        timeout, logs = options.timeout, self.selection.reports.absolute() / "llm"
        measure = MeasureOrder(compiled=order, text=self.text, timeout=timeout)
        with ask_worker(order.through, self.selection, logs, timeout) as ask:
            return measure_program(ask, measure, self.record.size, logits=options.on == "both")


def tokenizer_differences(
    checkpoint: Path, name: str, text: str, tokens: Sequence[int], bos: int
) -> Iterator[str]:
    """Report where Genie's tokens, including the one that it puts first, differ from what transformers'
    tokenizer gives by default. In a chat, the template writes the first token."""
    reading, special = list(tokens), False
    if tokenizer_decides(checkpoint):
        reading = [*([] if bos == NONE else [bos]), *drop_beginning(tokens, bos)]
        special = name == "text"
    reference, _ = encoded_by_transformers(checkpoint, text, special)
    if reading != reference:
        place = next(at for at, pair in enumerate(zip_longest(reading, reference)) if pair[0] != pair[1])
        near = slice(max(0, place - 1), place + 3)
        yield (
            f"of a {name} Genie reads {reading[near]} from position {near.start}, and transformers' tokenizer"
            f" gives {reference[near]}"
        )
