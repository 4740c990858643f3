"""Tables that two pages have, or that measured values are put into: README.md and docs/start.md.

A figure that pages state is written here once, or taken from a manifest, so that two pages cannot contradict
each other.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from pathlib import Path

from packaging.specifiers import SpecifierSet

from provisioning.accepted_file import load_accepted
from provisioning.base import toml
from provisioning.base.errors import ManifestError
from provisioning.base.settings import ROOT

README = ROOT / "README.md"
START = ROOT / "docs" / "start.md"

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
    return with_table(README, "needs", _needs())


def start() -> str:
    return with_table(START, "precisions", _precisions(), with_table(START, "needs", _needs()))


def _needs() -> str:
    rows = {
        "your machine": "does it work?",
        "---": "---",
        f"x86-64 Linux with glibc {LEAST_GLIBC} or later (Ubuntu 22.04, Debian 12)": "yes",
        "Windows": "perhaps, in WSL 2 with Ubuntu 22.04: nobody has tried it",
        "macOS, Linux on Arm": "no",
        "**it needs**": "",
        "Python": _pythons(),
        "a C++ compiler, g++ or clang++": "it builds the program that runs your model on the emulator",
        "for the first `compile`": f"{FIRST_COMPILE}; later commands take seconds",
        "a phone, an account, Qualcomm's 2.4 GB SDK": "not needed",
    }
    return "".join(f"| {left} | {right} |\n" for left, right in rows.items())


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


def with_table(page: Path, name: str, table: str, text: str | None = None) -> str:
    """This table between `<!-- NAME -->` and `<!-- end of NAME -->` of the page, or of its `text` to be."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    before, first, rest = (page.read_text(encoding="utf-8") if text is None else text).partition(begin)
    _, last, after = rest.partition(end)
    if not first or not last:
        raise ManifestError(page, name, expected=f"the lines {begin.strip()} and {end.strip()}", found="none")
    return f"{before}{begin}\n{table}\n{end}{after}"
