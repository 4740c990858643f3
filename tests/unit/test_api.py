"""The functions and the fixture of a user's own Python, with a stand-in for the command that they start."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

import qnn_ci
from provisioning.base.settings import ROOT
from qnn_ci import api

STAND_IN = """\
import json, pathlib, sys
place = pathlib.Path(__file__).parent
words = sys.argv[1:]
wanted = json.loads((place / "wanted.json").read_text())
(place / "words.json").write_text(json.dumps(words))
pathlib.Path(words[words.index("--json") + 1]).write_text(json.dumps(wanted["answer"]))
if "-o" in words:
    folder = pathlib.Path(words[words.index("-o") + 1])
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_text(json.dumps({"outputs": [{"name": "y", "file": "y.npy"}]}))
sys.exit(wanted["code"])
"""
PYTHON = "/their/environments/executorch/bin/python"
ERROR = {"severity": "error", "message": "it is bad", "fix": "write another"}
Words = Callable[[], list[str]]


def place(folder: Path, code: int = 0, **facts: Any) -> Path:
    """A command that answers so."""
    answer = {"python": PYTHON, "findings": [ERROR] * bool(code), **facts}
    (folder / "wanted.json").write_text(json.dumps({"answer": answer, "code": code}), encoding="utf-8")
    command = folder / "command.py"
    command.write_text(STAND_IN, encoding="utf-8")
    return command


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Words]:
    def answer(code: int = 0, **facts: Any) -> Words:
        monkeypatch.setattr(api, "COMMAND", place(tmp_path, code, **facts))
        return lambda: [str(word) for word in json.loads((tmp_path / "words.json").read_text())]

    return answer


@pytest.mark.parametrize("function", [qnn_ci.compile, qnn_ci.audit, qnn_ci.run])
def test_all_that_a_function_takes_and_gives_has_a_type(function: Any) -> None:
    code, hints = function.__code__, get_type_hints(function)
    assert {*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount], "return"} <= set(hints)
    assert issubclass(hints["return"], api.Answer)


ROWS: Mapping[str, Any] = {"fp16": {"cpu": [{"operator": "aten.erf.default"}]}, "8a8w": {"error": "it dies"}}


def test_an_audit_tells_what_stays_on_the_cpu_although_a_precision_gives_no_program(
    answers: Callable[..., Words],
) -> None:
    words = answers(1, precisions=ROWS)
    done = qnn_ci.audit("net.onnx", precisions=["fp16", "8a8w"], soc="SM8750")
    assert done.on_cpu("fp16") == [{"operator": "aten.erf.default"}] and done.python == PYTHON
    typed = " ".join(words())
    assert typed.startswith("audit ") and "--precision fp16 --precision 8a8w" in typed
    assert "net.onnx --soc SM8750" in typed


def test_what_was_compiled_is_given_by_its_record(answers: Callable[..., Words]) -> None:
    softmax = {"operator": "aten.erf.default", "line": "net.py:3", "reason": "no float"}
    record = {"files": ["/out/net.json", "/out/net.pte"], "delegates": 2, "on_cpu": [softmax]}
    words = answers(programs=[{**record, "accuracy": {"sqnr_db": 31.5, "cosine": 0.99}}])
    done = qnn_ci.compile("net.py:make", precision="8a8w", calibrate="data", options=["--optrace"])
    assert done.program == Path("/out/net.pte") and (done.sqnr_db, done.delegates) == (31.5, 2)
    assert done.on_cpu == [softmax] and done.accuracy["cosine"] == 0.99
    typed = " ".join(words())
    assert typed.startswith("compile ") and "net.py:make --calibrate data --precision 8a8w" in typed
    assert typed.endswith("--no-search --optrace")
    answers(programs=[{"files": ["/out/net.json", "/out/net_ctx.onnx"]}])
    assert qnn_ci.compile("net.onnx").program == Path("/out/net_ctx.onnx")


def test_a_run_takes_arrays_and_files_and_gives_the_outputs_files(
    answers: Callable[..., Words], tmp_path: Path
) -> None:
    words, given = answers(), tmp_path / "given.npy"
    np.save(given, np.zeros(2))
    done = qnn_ci.run(tmp_path / "net.pte", np.ones(3, np.float32), given, output=tmp_path / "out")
    inputs = [words()[index + 1] for index, word in enumerate(words()) if word == "--input"]
    assert inputs[0].endswith(".npy") and inputs[1] == str(given)
    assert done.outputs == [tmp_path / "out" / "y.npy"]


USERS_TEST = """\
import pytest, qnn_ci.api
from pathlib import Path
qnn_ci.api.COMMAND = Path(__file__).with_name("command.py")

def test_net(qnn):
    assert qnn.compile("net.py:make").sqnr_db == 30
"""


def test_the_tests_end_says_which_python_compiled(tmp_path: Path) -> None:
    place(tmp_path, programs=[{"files": [], "accuracy": {"sqnr_db": 30.0}}])
    (tmp_path / "test_net.py").write_text(USERS_TEST, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "qnn_ci.pytest_plugin", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-p", "no:hydra_pytest"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert f"qnn: compiled and run by {PYTHON}" in done.stdout
