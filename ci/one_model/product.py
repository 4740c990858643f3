"""The product of a lane for the user's model, treated as a suite of one: its files, words and outcome, and
how they are written and printed; and which of two outcomes is better."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from ci.one_model.model import OneModel
from ci.one_model.output import Publish, document_of, file_line, origin_of, require_own
from ci.one_model.report import ModelReport
from ci.suite.figures import against_nearest, describe_figures
from ci.suite.programs import Program
from ci.suite.stage import Plan
from ci.work import first_line, words_of
from provisioning.base import answer
from provisioning.base.commands import Fix
from provisioning.base.errors import CheckFailed, ToolkitError, UsageError, exit_code_of
from provisioning.base.findings import Finding
from provisioning.base.guard import show_error
from provisioning.base.parser import Parser
from provisioning.base.places import Places
from provisioning.base.rendering import plural
from provisioning.base.settings import DEFAULT_SOC
from provisioning.base.units import EXACT_DB, format_decibels, readable
from provisioning.known_faults import SuspectedFault
from provisioning.manifest import soc_named

T = TypeVar("T")
P = TypeVar("P", bound=Plan)
WORSE_DB = 1.0
"""Two figures that differ by less are equally good."""
CHEAPER = 0.98
"""If it is no more accurate, a program is better if its DDR traffic is less than this share of the
other's."""
GAINS = {
    **dict.fromkeys(("sqnr_db", "reference_sqnr_db", "slice_sqnr_db"), WORSE_DB),
    **dict.fromkeys(("agreement", "choice_agreement"), 0.01),
}
"""Maps a figure to the difference by which it must grow for a program to be better."""


class NoGraph(ToolkitError):
    """Raised if the model has no graph in which a fix could be tried."""


class CompilerDied(ToolkitError):
    """Raised if the compiler dies of the model."""

    crashed = False
    """Whether a signal ended its process."""
    step: Mapping[str, object] | None = None
    """The step that raised an exception, as JSON has it, if that is known."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of compiling and running a program."""

    error: str = ""
    """The reason why there is no program, or why it does not run."""
    fix: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    """The figures of its outputs against float and, with the prefix `reference_`, against the quantized
    model."""
    costs: Mapping[str, float] = field(default_factory=dict)
    """`ddr` and `size` in bytes, and the `cpu_seconds` of compiling it."""
    worst_db: float | None = None
    """The least SQNR of a single sample."""
    on_cpu: tuple[str, ...] = ()
    """The operators that run on the CPU."""
    wrong: Sequence[Finding] = ()
    """The findings about its figures that no suite would accept."""
    of_chip: bool | None = None
    """The result of `is_of_chip` for its figures."""
    crashed: bool = False
    """Whether a signal ended the compiler's process."""

    @classmethod
    def from_error(cls, error: ToolkitError) -> Outcome:
        """Make the outcome of a program that could not be made. Raises the error if the program is not to
        blame."""
        if error.exit_code != CheckFailed.exit_code:
            raise error
        return cls(error.message.splitlines()[0], error.fix)

    @property
    def green(self) -> bool:
        return not (self.error or self.wrong)

    @property
    def verdict(self) -> str:
        if self.green:
            return f"{plural(len(self.on_cpu), 'operator')} on the CPU" if self.on_cpu else "green"
        return "dies" if self.error else "wrong"

    @property
    def reason(self) -> str:
        """The reason why it is not green."""
        return self.error or "; ".join(finding.message for finding in self.wrong)

    @property
    def sqnr_db(self) -> float:
        """The SQNR against float; minus infinity for a program that does not compile."""
        lost = float("-inf")
        return lost if self.error else self.figures.get("sqnr_db", 0.0)

    def near(self, name: str, default: float) -> float:
        """A figure against the quantized model, or against float if there is none."""
        return self.figures.get(against_nearest(self.figures) + name, default)

    def same_kind_as(self, other: Outcome) -> bool:
        """Whether both fail with the same error, or both run."""
        if self.error and other.error:
            return words_of(first_line(self.error)) == words_of(first_line(other.error))
        return bool(self.error) == bool(other.error)

    def worse_than(self, other: Outcome) -> bool:
        if self.green != other.green:
            return other.green
        return self.sqnr_db < other.sqnr_db - WORSE_DB and len(self.on_cpu) >= len(other.on_cpu)

    def improves_on(self, other: Outcome) -> bool:
        """Whether this outcome is better. A program that fails with another error counts as better: it got
        farther."""
        if self.error or other.error:
            return bool(other.error) and not self.same_kind_as(other)
        if self.green != other.green or self.worse_than(other):
            return self.green and not other.green
        lost, costs = float("-inf"), [outcome.costs.get("ddr") for outcome in (self, other)]
        saves = costs[0] is not None and costs[1] is not None and costs[0] < CHEAPER * costs[1]
        gains = (
            self.figures.get(name, lost) > other.figures.get(name, lost) + by for name, by in GAINS.items()
        )
        return len(self.on_cpu) < len(other.on_cpu) or saves or any(gains)

    def summary_line(self) -> str:
        parts = [self.error.partition("\n")[0][:300]] if self.error else []
        if (sqnr := self.near("sqnr_db", float("nan"))) == sqnr:
            parts += [f"{format_decibels(sqnr)} SQNR" if sqnr > -EXACT_DB else "NaN values"]
        if (share := self.near("agreement", 1.0)) < 1:
            parts += [f"{100 * share:.4g} % of integers equal"]
        parts += [f"on the CPU: {', '.join(sorted({*self.on_cpu}))}"] if self.on_cpu else []
        return "; ".join(parts) or "it runs"


def cells_of(outcome: Outcome) -> dict[str, str]:
    """The cells of a program in a table of several, by column."""
    figures = outcome.figures
    cells = {
        "against float": describe_figures(figures) or "not run",
        "against the quantized model": describe_figures(figures, "reference_") or "-",
        "on the CPU": str(len(outcome.on_cpu)),
    }
    titles = {"size": "bytes", "ddr": "bytes of DDR"}
    costs = outcome.costs
    return cells | {titles[name]: f"{costs[name]:,.0f}" for name in titles if name in costs}


NOT_TRIED = Outcome()


@dataclass(frozen=True, slots=True)
class Product:
    """The files written for a program, and what is printed about it."""

    files: Mapping[str, Path | str]
    """Maps the name of a file in the output to the file to copy, or to its text."""
    words: Sequence[str] = ()
    """The verdict in one line, then what the reader may have to act on."""
    more: Sequence[str] = ()
    """Further words, which only an answer (--json) has."""
    warnings: Sequence[str] = ()
    outcome: Outcome = NOT_TRIED
    """If it has `wrong` findings, the command ends with exit code 1. The files are written all the same."""
    findings: Sequence[Finding] = ()
    """The findings that an answer (--json) has."""
    suspects: Sequence[SuspectedFault] = ()
    """The known faults that nodes of the program can have."""
    facts: Mapping[str, object] = field(default_factory=dict)
    """The values that an answer has beside the program's record."""
    chips: str = ""
    """The chips for a table of several precisions; if empty, the product has no row there."""
    stale: Sequence[Path] = ()
    """The files of an earlier product: they are removed, unless they are written again."""
    run_fields: Mapping[str, object] = field(default_factory=dict)
    """The fields that a run in a suite gets, beside the options that were typed."""


def require_fp16(programs: Iterable[Program]) -> None:
    """Refuse floats for a chip without 16-bit floats."""
    for program in programs:
        if program.run.kind == "fp16" and not soc_named(program.soc).fp16:
            raise UsageError(
                f"{program.soc} has no fp16: QNN refuses it, or computes it in float32",
                fix=Fix(
                    "{} or 16a8w; or a chip that has fp16: --soc {}", ("--precision", "8a8w"), DEFAULT_SOC
                ),
            )


@dataclass(slots=True)
class History:
    """The words that a command has printed and the work that it has done for its model, at all precisions."""

    words: set[str] = field(default_factory=set)
    rows: list[Mapping[str, str]] = field(default_factory=list)
    """The row of each program in a table of several precisions."""
    searched: bool = False
    """Whether it has searched for a cause or a fix. That takes minutes, so it is not repeated for other
    precisions."""


def write_products(
    products: Sequence[Product],
    model: OneModel,
    scratch: Path,
    publish: Publish,
    report: ModelReport,
    history: History,
) -> None:
    """Put the files of all products into the output at once, and print what they are. Their records name the
    model's origin, and no other model's file is overwritten."""
    output, typed = model.output, model.typed
    require_own([output / name for product in products for name in product.files], typed)
    for product in products:
        for name, content in product.files.items():
            if isinstance(content, Path):
                shutil.copyfile(content, scratch / name)
            else:
                (scratch / name).write_text(content, encoding="utf-8")
            if name.endswith(".json") and "schema" in (record := document_of(scratch / name)):
                (scratch / name).write_text(
                    json.dumps({**record, "origin": origin_of(typed, output)}, indent=2) + "\n"
                )
    paths = publish([scratch / name for product in products for name in product.files])
    report.wrote(path for path in paths if path.suffix != ".json")
    for product in products:
        report.warn(product.warnings)
        if product.chips:
            row = {"precision": str(model.precision), "chip": product.chips}
            history.rows.append({**row, **cells_of(product.outcome)})
        for path in {*product.stale} - {*paths}:
            path.unlink(missing_ok=True)
        new = [warning for warning in product.warnings if warning not in history.words]
        sys.stderr.write(readable("".join(f"warning: {warning}\n" for warning in new), sys.stderr))
        history.words.update(new)
        mark = f"{'✗' if product.outcome.wrong else '✓'} " if product.outcome.figures else ""
        files = [path for path in paths if path.name in product.files]
        lines = [
            *(f"{mark}{line}" for line in product.words[:1]),
            *map(file_line, files),
            *product.words[1:],
        ]
        sys.stdout.write(readable("".join(f"{line}\n" for line in lines), sys.__stdout__ or sys.stdout))
        # The search for a cause may take a minute.
        sys.stdout.flush()
        answer.add_findings(map(Places.of().located, product.findings))
    folder = Parser.user_folder() / output
    answer.add(programs=[_answer_of(folder, product) for product in products])


def _answer_of(folder: Path, product: Product) -> dict[str, object]:
    """A product's record, with its files and words."""
    documents = (document_of(folder / name) for name in product.files if name.endswith(".json"))
    record = next((document for document in documents if "soc" in document), {})
    files = [str(folder / name) for name in product.files]
    return {
        **record,
        **product.facts,
        "files": files,
        "words": [*product.words, *product.more],
        "warnings": [*product.warnings],
    }


def judge_products(products: Sequence[Product], report: ModelReport) -> int:
    """Report what is wrong, and return the exit code."""
    places = Places.of()
    wrong = [places.located(finding) for product in products for finding in product.outcome.wrong]
    answer.add_findings(wrong)
    for finding in wrong:
        error = CheckFailed(f"{finding.subject}: {finding.message}", fix=finding.fix)
        report.fail(error.message, error.fix, finding.place, finding.edit)
        show_error(error)
    return exit_code_of(good=not wrong)
