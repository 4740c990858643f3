"""Models that no suite has: each compiles and runs, or fails with its line and a fix that works."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from provisioning.base.findings import Severity
from provisioning.base.settings import ROOT
from tests.support.lowering_suites import Done, run, suite

pytestmark = [pytest.mark.whole, pytest.mark.heavy, pytest.mark.timeout(3600)]

COMPILES = ("convnext", "swin", "whisper_encoder", "distilbert", "rank_six", "called_again")
WRITTEN_ANEW = {"assigns": "y[:, 0] = 0", "own_operator": "double("}
"""Each fails at fp16 with this line; more of the kind are in test_lowering."""
DIES = {
    "lstm-8a8w": "self.rnn(x)",
    "unet-8a8w": "max_pool2d(",
    "unet-fp16": "max_pool2d(",
}
"""Each fails with this line, and the fix is fields of the run."""
SCHEMES = ("fp16", "8a8w")
FIELDS = re.compile(r"cpu_nodes = \[.*?\]|delegates = \d+|cpu_budget = \d+")


def _run(folder: Path, names: list[tuple[str, str]], fields: dict[str, str]) -> Done:
    """With a budget for the CPU that a stranger's model needs; what it is, is not asked here."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(ROOT / "tests/support/common_models.py", folder / "common_models.py")
    cases = {
        f"{name}-{scheme}": {
            "factory": f"common_models:{name}",
            "scheme": scheme,
            "soc": "SM8750",
            "thresholds": "sqnr_db = 10",
            "run": fields.get(f"{name}-{scheme}", ""),
        }
        for name, scheme in names
    }
    return run("test_emulator", folder, "--suite", suite(folder, cases), timeout=3000)


def _errors(done: Done, case: str) -> list[tuple[str, str]]:
    return [
        (finding.message, finding.fix)
        for finding in done.report.findings
        if finding.subject.startswith(f"{case}/") and finding.severity is Severity.ERROR
    ]


def _names_only(message: str, code: str) -> bool:
    """Whether a message names lines, and each of them holds the code."""
    lines = (ROOT / "tests/support/common_models.py").read_text().splitlines()
    named = [lines[int(match) - 1] for match in re.findall(r"common_models\.py:(\d+)", message)]
    return bool(named) and all(code in line for line in named)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    names = [(name, scheme) for name in (*COMPILES, "lstm", "unet") for scheme in SCHEMES]
    names += [(name, "fp16") for name in WRITTEN_ANEW]
    return _run(tmp_path_factory.mktemp("models"), names, {})


@pytest.mark.parametrize("case", [*(f"{n}-{scheme}" for n in COMPILES for scheme in SCHEMES), "lstm-fp16"])
def test_it_compiles_and_the_emulator_agrees(done: Done, case: str) -> None:
    assert not _errors(done, case)


@pytest.mark.parametrize("name", WRITTEN_ANEW)
def test_what_must_be_written_in_another_way_is_named_with_its_line(done: Done, name: str) -> None:
    ((message, _),) = _errors(done, f"{name}-fp16")
    assert _names_only(message, WRITTEN_ANEW[name])


def test_the_fixes_of_what_the_compiler_dies_of_work(done: Done, tmp_path: Path) -> None:
    fields = {}
    for case, line in DIES.items():
        ((message, fix),) = _errors(done, case)
        assert _names_only(message, line)
        fields[case] = "\n".join(FIELDS.findall(fix))
    followed = _run(tmp_path, [(case.partition("-")[0], case.partition("-")[2]) for case in DIES], fields)
    assert followed.code == 0
