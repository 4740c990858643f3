"""The stand-alone reproducer of a fault: a Python file that needs nothing of ours, and the text of an issue.

Started without arguments, it runs itself with the argument `run` in a process that may die, and judges what
that says. Its last line begins with `still`, `gone` or `changed`, and its exit code is 1, 0 or 2. So do all
files of manifests/faults/, whoever wrote them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ci.pipeline.reduce import Condition, Reduced
from ci.pipeline.trial import Death, Outcome
from provisioning.base.errors import CheckFailed

MOST_LINES = 40
WORDS = {"gone": 0, "still": 1, "changed": 2}
"""What a reproducer says, and its exit codes."""
SAID = re.compile(rf"^({'|'.join(WORDS)}) - .*", re.MULTILINE)

FACT = re.compile(r"print\('(SQNR|EQUAL|CPU|SIZE)'")
SQNR = (
    "print('SQNR', min(10 * math.log10(max(1e-9, (a**2).sum() / max(1e-15, n if n == n else math.inf)))"
    " for a, b in pairs for n in [((a - b) ** 2).sum()]))"
)
"""Of `pairs` of outputs in float64. What is NaN has nothing in common with float."""
TRAFFIC = "sum(map(int, re.findall(r'(?:read|write)_total_bytes=(\\d+)', said)))"


@dataclass(frozen=True, slots=True)
class Reproducer:
    name: str
    title: str
    needs: str
    """Packages with versions, in words."""
    imports: Sequence[str]
    body: Sequence[str]
    """Makes the model and its inputs."""
    stored: Sequence[str]
    """Reads them from files beside it, for what takes too many lines."""
    refusal: str = field(kw_only=True, default="")
    """What its run says of an operator on the CPU, where it does not name it."""
    run: Sequence[str]
    """Of the function `run`, which prints `SQNR x`, `EQUAL x`, `CPU operators` or `SIZE n`, or dies; a line
    that prints another fact than the wanted one is left out."""

    def text(self, condition: Condition, outcome: Outcome) -> str:
        lines = self._lines(self.body, condition, outcome)
        if not self.body or sum(line.count("\n") + 1 for line in lines) > MOST_LINES:
            lines = self._lines(self.stored, condition, outcome)
        text = "\n".join(lines) + "\n"
        if (count := len(text.splitlines())) > MOST_LINES:
            raise CheckFailed(f"a reproducer of {count} lines", fix=f"at most {MOST_LINES} can be read")
        return text

    def _lines(self, body: Sequence[str], condition: Condition, outcome: Outcome) -> list[str]:
        fact, tried, word = judged(condition, outcome, self.refusal)
        run = [line for line in self.run if not (said := FACT.match(line)) or said[1] == fact]
        title = f"{self.name}: {self.title}".replace("\\", "/").replace('"', "'")
        return [
            f'"""{title}',
            f'It needs {self.needs}. Exit code: 1 still, 0 gone, 2 changed."""',
            "import math, re, signal, subprocess, sys",
            *self.imports,
            *body,
            "def run():",
            *(f"    {line}" for line in run),
            'if "run" in sys.argv: sys.exit(run())',
            'done = subprocess.run([sys.executable, __file__, "run"], capture_output=True, text=True,'
            ' errors="replace")',
            "ended = signal.Signals(-done.returncode).name if done.returncode < 0 else ''",
            "said = done.stdout + done.stderr + ended",
            f"found = {tried}",
            f"word = {word}",
            'print(word, "-", *(found or [" ".join(said.split())[-200:]]))',
            f"sys.exit({json.dumps(WORDS)}[word])",
        ]


def judged(condition: Condition, outcome: Outcome, refusal: str = "") -> tuple[str, str, str]:
    """The fact that its run prints, what a reproducer looks for in what that said, and its word for it."""
    ended = '"gone" if not done.returncode else "changed"'
    if condition.text == "dies":
        return (
            "",
            f"re.findall({Death.pattern(outcome.error)!r}, said)[-1:] if done.returncode else []",
            f'"still" if found else {ended}',
        )
    if condition.text == "cpu" and refusal:
        return "", f"re.findall({refusal!r}, said)[-1:]", f'"still" if found else {ended}'
    if condition.text == "cpu":
        pattern = "|".join(map(re.escape, sorted({*outcome.on_cpu})))
        return (
            "CPU",
            f"re.findall(r'^CPU .*(?:{pattern}).*', said, re.MULTILINE)",
            f'"still" if found else {ended}',
        )
    if (bound := condition.bound) and bound[0] == "ddr":
        return "", f"[{TRAFFIC}]", f'"still" if found[0] > {bound[1]:.0f} else {ended}'
    fact, side, least = ("SQNR", "<", f"{condition.least_db:g}")
    if bound:
        fact, side, least = bound[0].upper(), ">", f"{bound[1]:.0f}"
    elif not {"sqnr_db", "reference_sqnr_db"} & outcome.figures.keys():
        fact, least = "EQUAL", "1"
    return (
        fact,
        f"re.findall(r'^{fact} (\\S+)', said, re.MULTILINE)",
        f'"changed" if not found else "still" if float(found[0]) {side} {least} else "gone"',
    )


def said(printed: str) -> str:
    """The last line of a reproducer that is one of its words; empty if it has none."""
    found = list(SAID.finditer(printed))
    return found[-1][0] if found else ""


EXPECTED = {
    "dies": "It is to compile and run.",
    "wrong": "It is compared with the same model on the CPU: quantized in the same way, or at fp16 in float.",
    "cpu": "All of it is to run on HTP.",
}


def issue_text(
    name: str,
    title: str,
    condition: Condition,
    found: Reduced,
    facts: Mapping[str, str],
    script: str,
    says: str,
) -> str:
    """Markdown for whoever maintains what is at fault."""
    rows = "\n".join(f"| {fact} | {value} |" for fact, value in facts.items())
    expected = EXPECTED.get(condition.text, f"It was looked for by {condition.text}.")
    outcome, flaky = found.outcome.in_words(condition.figure), ""
    if found.flaky:
        flaky = " **It is flaky**: the same program does not always show it."
    text = (
        f"# {title}\n\nOn the HTP emulator: {outcome}. {expected}{flaky}\n\n"
        f"| | |\n| --- | --- |\n{rows}\n\n"
        f"It is what is left of a model of {found.operators} operators.\n"
    )
    if script:
        text += f"\n```console\n$ python {name}.py\n{says}\n```\n\n```python\n{script}```\n"
    return text
