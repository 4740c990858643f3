"""What the scripts of known faults say, and what becomes of a fault that is gone."""

from __future__ import annotations

import ast
import shutil
import sys
from pathlib import Path

import pytest

from lab.faults.stage import (
    FaultRun,
    HowToRun,
    check_all,
    judge,
    said,
)
from provisioning.accepted_file import Accepted, load_accepted
from provisioning.base.settings import Selection
from provisioning.base.stage_run import StageRun
from provisioning.known_faults import FIGURES, SCRIPTS, Fault, load_faults
from provisioning.lock_files import LOCKS
from provisioning.python_environments import IN_IMAGE
from tests.support.sources import statements

FAULT = load_faults()[0].model_copy(update={"id": "x", "versions": ">=2.49.40", "product": "qnn"})
SHOWN = sorted(SCRIPTS.glob("*.py"))


PACKAGES = {"torch", "torchao", "executorch", "numpy", "onnx", "onnxruntime", "onnxruntime_qnn"}


def test_a_script_is_of_a_fault_short_and_without_code_of_ours() -> None:
    wrong: dict[str, object] = {}
    for path in SHOWN:
        text = path.read_text(encoding="utf-8")
        imported = {
            name.split(".")[0]
            for node in statements(ast.parse(text))
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        }
        if others := imported - PACKAGES - set(sys.stdlib_module_names):
            wrong[path.stem] = others
        if len(text.splitlines()) > 45:
            wrong[path.stem] = "more than 45 lines"
    assert SHOWN and not wrong
    assert {path.stem for path in SHOWN} <= {fault.id for fault in load_faults()}


def test_a_script_begins_with_the_title_of_its_fault() -> None:
    titles = {fault.id: fault.title for fault in load_faults()}
    first = {path.stem: path.read_text(encoding="utf-8").partition("\n")[0] for path in SHOWN}
    assert first == {name: f'"""{name}: {titles[name]}' for name in first}


@pytest.mark.parametrize(
    ("printed", "code", "word"),
    [
        ("[INFO] a log\nstill - 7.3 dB\n", 1, "still"),
        ("gone - 44.0 dB\n", 0, "gone"),
        ("changed - 3 dB without the fault\n", 2, "changed"),
        # What it says and how it ends differ, it died, or it says nothing.
        ("gone - 44.0 dB\n", 1, "changed"),
        ("still - 7 dB\nSegmentation fault\n", -11, "changed"),
        ("", 1, "changed"),
        ("still - 7.3 dB\n # A library says something when the process ends.", 1, "still"),
    ],
)
def test_a_script_is_believed_where_its_word_is_its_exit_code(printed: str, code: int, word: str) -> None:
    assert said(printed, code)[0] == word


def rules_of(run: FaultRun, fault: Fault = FAULT, **ended: str) -> list[str]:
    result = StageRun("faults", "wheels", "x86_64-linux", "nox -s faults")
    figures = Accepted(FIGURES, {fault.id: {"figure": "7 dB"}})
    judge(result, {fault: run}, ended, figures)
    return [finding.rule for finding in result.findings]


def test_what_is_not_as_its_entry_says_is_an_error() -> None:
    assert rules_of(FaultRun("still", "7 dB", "2.49.40")) == []
    assert rules_of(FaultRun("still", "19 dB", "2.49.40")) == ["fault-changed"]
    assert rules_of(FaultRun("gone", "44 dB", "2.51.0")) == ["fault-gone"]
    assert rules_of(FaultRun("gone", "44 dB", "2.51.0"), x=">=2.49.40,<2.51.0") == []
    assert rules_of(FaultRun("changed", "it ends", "2.49.40")) == ["fault-changed"]
    assert rules_of(FaultRun("", "no answer after 600 s", "2.49.40")) == ["fault-not-measured"]
    # Its entry says already that it is not there, or does not say that it is.
    old = FAULT.model_copy(update={"versions": "<2.48"})
    assert rules_of(FaultRun("gone", "44 dB", "2.51.0"), old) == []
    assert rules_of(FaultRun("still", "7 dB", "2.51.0"), old) == ["fault-wider"]


def test_what_a_script_prints_is_an_error_until_it_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(name: str, word: str, code: int) -> None:
        lines = f"print('{word} - 7 dB')\nexit({code})"
        (tmp_path / f"{name}.py").write_text(lines, encoding="utf-8")

    faults = {name: FAULT.model_copy(update={"id": name, "lane": "onnx"}) for name in ("a", "b")}
    environment = tmp_path / "environments" / "onnx"
    (environment / "bin").mkdir(parents=True)
    shutil.copy(LOCKS / "onnx.txt", environment / "lock.txt")
    (environment / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.setenv(IN_IMAGE, str(environment.parent))
    selection = Selection("wheels", "x86_64-linux", "SM8650", tmp_path, tmp_path / "reports")

    def run(*names: str, accepts: bool = False) -> int:
        how = HowToRun(600, accepts=accepts, scripts=tmp_path, figures=tmp_path / "figures.json")
        chosen = [faults[name] for name in names]
        return check_all(selection, lambda: chosen, how, {})

    write("a", "still", 1)
    write("b", "still", 1)
    assert run("a") == 1
    assert run("a", "b", accepts=True) == 0 and run("a", "b") == 0
    write("a", "gone", 0)
    assert run("a", "b", accepts=True) == 1


def test_each_fault_with_a_script_has_what_the_script_printed() -> None:
    accepted = load_accepted(FIGURES)
    for fault in load_faults():
        assert bool(fault.figure) == bool(fault.script) == bool(accepted.of(fault.id)), fault.id
        assert fault.figure in fault.measurement, fault.id
