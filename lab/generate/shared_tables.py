"""Tables that two pages have, or whose figures are measured or stand in the code.

A figure that pages state is written here once, or taken from a manifest or the code, so that two pages cannot
contradict each other.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from packaging.specifiers import SpecifierSet

from ci.lanes.llm import verdicts
from ci.suite import limits
from ci.suite.lost_parts import WRONG_DB
from provisioning.accepted_file import load_accepted
from provisioning.base import toml
from provisioning.base.errors import ManifestError
from provisioning.base.settings import ROOT

README = ROOT / "README.md"
START = ROOT / "docs" / "start.md"
ACCURACY = ROOT / "docs" / "accuracy.md"
LLM = ROOT / "docs" / "llm.md"

PART = "[part of an output](#parts-of-an-output)"
LEAST_GLIBC = "2.34"
"""Of QNN's x86 libraries; `validate` reads it from them."""
FIRST_COMPILE = "1.9 GB of disk and three to four minutes"
"""Measured on two cores with an empty store: the environment with torch, QNN, the runner."""

ACCEPTED = (
    ROOT / "manifests" / "accepted" / "models-wheels.json",
    ROOT / "lab" / "suites" / "models.accepted-wheels.json",
)
"""Measured values of the shipped suites' programs."""

PRECISIONS = {
    "fp16": (
        "16-bit floats",
        "first, to see that the model works; needs no calibration. Of V68 chips only SA8295 has it",
    ),
    "8a8w": ("8, 8 bits", "smallest and fastest of the usual ones; good for convolutional nets"),
    "16a8w": ("16, 8 bits", "if 8a8w loses too much: transformers, regression, detection"),
    "16a4w": ("16, 4 bits", "language models, whose weights are most of their size"),
}
"""What each precision is, and when it is chosen."""


def readme() -> str:
    return replace_table(README, "needs", _needs())


def start() -> str:
    return replace_table(START, "precisions", _precisions(), replace_table(START, "needs", _needs()))


def accuracy_page() -> str:
    return replace_table(ACCURACY, "limits", _limits())


def llm_page() -> str:
    return replace_table(LLM, "limits", _limits_of_language_models())


def _limits() -> str:
    least, floats, quantized = limits.DEFAULT_FLOORS, "the float model", "the quantized model"
    usual, usual_of_16_bits = limits.USUAL_OF_FLOAT_DB, limits.USUAL_OF_16_BITS_DB
    in_float = limits.FLOORS_OF_FLOAT["sqnr_db"]
    of_16_bits = limits.FLOORS_OF_16_BITS["reference_sqnr_db"]
    integers = "`agreement`: the share of equal elements of an integer or boolean output, such as `argmax`"
    variation = "`variation_sqnr_db`: the SQNR of the outputs without their mean over all samples"
    mean = f", and more than {limits.MEAN_DB:g} dB below `sqnr_db`"
    top1 = "`top1`: the share of rows whose largest value is at the same index"

    def below(decibels: float) -> str:
        return f"below {decibels:g} dB"

    return _table(
        [
            ("figure of the program", "compared with", "warning", "error"),
            ("---", "---", "---", "---"),
            ("`sqnr_db`, fp16", floats, below(usual), below(in_float)),
            ("`sqnr_db`, all other precisions", floats, "", below(least["sqnr_db"])),
            (
                "`reference_sqnr_db`, 16-bit activations",
                quantized,
                below(usual_of_16_bits),
                below(of_16_bits),
            ),
            ("`reference_sqnr_db`, 8-bit activations", quantized, below(WRONG_DB), "see below"),
            (f"`slice_sqnr_db`: the worst {PART}", floats, "", below(least["slice_sqnr_db"])),
            (integers, floats, "", f"below {least['agreement']:g}"),
            (variation, floats, below(least["sqnr_db"]) + mean, ""),
            (top1, floats, "", "below the accepted value"),
        ]
    )


def _limits_of_language_models() -> str:
    columns = [verdicts.LIMITS[name] for name in ("fp16", "16a8w", "8a8w")]
    rows = [
        ("figure", "fp16", "16a8w", "8a8w and 16a4w"),
        ("---", "---", "---", "---"),
        ("top-1 agreement, at least", *(f"{row['top1'] * 100:g} %" for row in columns)),
        ("perplexity ratio, at most", *(f"{row['perplexity_ratio']:g}" for row in columns)),
        *(
            (f"{verdicts.WORDS[name]}, at most", *(f"{row[name]:g}" for row in columns))
            for name in verdicts.DIVERGENCES
        ),
    ]
    relative = [
        ("figure", "at fp16, at most", "quantized, at most", "but the quantized limit is never below"),
        ("---", "---", "---", "---"),
        *(
            (
                verdicts.WORDS[name],
                f"{verdicts.HALVES} times `rounding alone`",
                f"{verdicts.CHIP:g} times `rounding alone` plus"
                f" {verdicts.STANDARD_ERRORS} of its standard errors",
                f"{verdicts.FLOORS[name]:g}",
            )
            for name in verdicts.DIVERGENCES
        ),
    ]
    second = "A KL divergence has a second limit, by what `rounding alone` costs. The stricter one counts:"
    return f"{_table(rows)}\n{second}\n\n{_table(relative)}"


def _table(rows: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _needs() -> str:
    machines = {
        "your machine": "does it work?",
        "---": "---",
        f"x86-64 Linux with glibc {LEAST_GLIBC} or later (Ubuntu 22.04, Debian 12)": "yes",
        "Windows": "perhaps, in WSL 2 with Ubuntu 22.04: nobody has tried it",
        "macOS, Linux on Arm": "no",
    }
    needs = {
        "it needs": "",
        "---": "---",
        "Python": _pythons(),
        "a C++ compiler": "g++ or clang++",
        "for the first `compile`": FIRST_COMPILE,
        "a phone, an account, Qualcomm's 2.4 GB SDK": "not needed",
    }
    return f"{_table(machines.items())}\n{_table(needs.items())}"


def _pythons() -> str:
    project = toml.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    taken = SpecifierSet(project["requires-python"])
    minors = [minor for minor in range(100) if taken.contains(f"3.{minor}")]
    return f"3.{minors[0]} to 3.{minors[-1]}"


def _precisions() -> str:
    measured = _measured()
    lines = [
        "| precision | activations, weights | choose it | our models reach, in dB |",
        "| --- | --- | --- | --- |",
    ]
    for name, (bits, when) in PRECISIONS.items():
        (least, model), *_, (most, _) = sorted(measured[name])
        median = statistics.median(value for value, _ in measured[name])
        reached = f"{least:.1f} ({model}) to {most:.1f}, median {median:.0f}"
        lines.append(f"| `{name}` | {bits} | {when} | {reached} |")
    return "\n".join(lines) + "\n"


def _measured() -> dict[str, list[tuple[float, str]]]:
    """The SQNR of each program of a whole model, by the precision of its run."""
    measured = defaultdict[str, list[tuple[float, str]]](list)
    for path in ACCEPTED:
        for subject, values in load_accepted(Path(path)).subjects.items():
            _, case, run, *chip = subject.split("/")
            if chip and not case.startswith("op_") and "sqnr_db" in values:
                measured[run].append((float(str(values["sqnr_db"])), case))
    return measured


def replace_table(page: Path, name: str, table: str, text: str | None = None) -> str:
    """This table between `<!-- NAME -->` and `<!-- end of NAME -->` of the page, or of its `text` to be."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    before, first, rest = (page.read_text(encoding="utf-8") if text is None else text).partition(begin)
    _, last, after = rest.partition(end)
    if not first or not last:
        raise ManifestError(page, name, expected=f"the lines {begin.strip()} and {end.strip()}", found="none")
    return f"{before}{begin}\n{table}\n{end}{after}"
