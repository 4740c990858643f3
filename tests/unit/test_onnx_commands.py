"""The everyday commands with a stand-in for the worker: one writer at a time, and nothing half-written."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import checker

from ci.__main__ import VERBS
from ci.artifacts.compiler_log import Traffic
from ci.explain.divergence import DivergenceResult
from ci.explain.losses import ScoreRequest, Scores
from ci.lanes.onnx import product
from ci.lanes.onnx import steps as onnx_steps
from ci.lanes.onnx.explain import scores_of
from ci.lanes.onnx.model_file import load_graph, signature_of
from ci.lanes.onnx.orders import Mixed, QuantizedModel, RunReply
from ci.lanes.onnx.product import program_of
from ci.lanes.onnx.samples import read_samples
from ci.lanes.onnx.suite import programs_of
from ci.model_commands import tune
from ci.model_commands.typed_model import one_model_of
from ci.models.inputs import InputsUsed
from ci.one_model.output import SCRATCH, file_line, keep_origins, require_own, writing_into
from ci.suite.lane_head import TUNE
from ci.work import trouble
from ci.work.plain import to_json
from provisioning.base.command_line import main
from provisioning.base.errors import EnvironmentLacking, UsageError
from qnn_ci.api import Compiled, Ran
from tests.support import onnx_worker
from tests.support.onnx_models import context_model, conv_model, write
from tests.support.onnx_suites import CONTEXT, PREPARED, near
from tests.support.schemas import check_answer
from tests.support.stand_in_lane import POWER
from tests.support.typed import parsed, typed


class TestOutput:
    def test_what_was_there_before_stays_after_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "mine").write_text("mine")
        with pytest.raises(KeyError), writing_into(tmp_path / "out", tmp_path / "store"):
            raise KeyError
        assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]

    def test_a_full_disk_is_the_machines(self, tmp_path: Path) -> None:
        with pytest.raises(EnvironmentLacking), writing_into(tmp_path / "out", tmp_path / "store"):
            raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path))

    def test_two_commands_never_write_into_one_folder(self, tmp_path: Path) -> None:
        store = tmp_path / "store"
        with writing_into(tmp_path / "out", store) as (scratch, _):
            with pytest.raises(UsageError, match="another compile is writing"):
                writing_into(tmp_path / "out", store).__enter__()
            assert scratch.is_dir()
        with writing_into(tmp_path / "out", store):
            pass

    def test_what_a_killed_compile_left_is_cleared_away(self, tmp_path: Path) -> None:
        (tmp_path / f"{SCRATCH}1" / "compiled").mkdir(parents=True)
        (tmp_path / "mine").touch()
        with writing_into(tmp_path, tmp_path.parent / "store"):
            pass
        assert [path.name for path in tmp_path.iterdir()] == ["mine"]

    def test_what_is_in_the_way_is_said(self, tmp_path: Path) -> None:
        (tmp_path / "net.pte").mkdir()
        with writing_into(tmp_path, tmp_path.parent / "store") as (scratch, publish):
            (scratch / "net.pte").touch()
            with pytest.raises(UsageError):
                publish([scratch / "net.pte"])
        assert [path.name for path in tmp_path.iterdir()] == ["net.pte"]

    def test_another_models_file_is_never_overwritten_and_a_users_own_one_is(self, tmp_path: Path) -> None:
        files = [tmp_path / "net.pt2", tmp_path / "net-samples"]
        files[0].write_text("the user's own")
        require_own(files, "a/net.py:make")
        files[1].mkdir()
        keep_origins(files, "a/net.py:make")
        require_own(files, "a/net.py:make")
        for path in files:
            with pytest.raises(UsageError) as error:
                require_own([path], "b/net.py:make")
            assert "a/net.py:make" in error.value.message and str(path) in (error.value.fix or "")
        files[0].unlink()
        require_own(files[:1], "b/net.py:make")


def onnx(*arguments: str) -> int:
    return main(
        "python -m ci", "", {name: VERBS[name] for name in ("run", "compile", "divergence")}, [*arguments]
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--soc", "SM8651"), "SM8650"),
        (("--option", "vtcm=4"), "did you mean vtcm_mb?"),
        (("--dimension", "batch=0"), "expected NAME=N"),
        (("--dimension", "batch=1", "--dimension", "batch=2"), "batch is both 1 and 2"),
    ],
)
def test_a_wrong_flag_is_exit_code_2_with_the_right_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    model = write(conv_model(), tmp_path / "net.onnx")
    assert onnx("compile", str(model), "-o", str(tmp_path / "out"), *arguments) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


MIXED = Mixed({"Conv": 1}, (), 1, Traffic(8, 8))
PROBLEM = {"rule": "onnx-type", "subject": "x", "message": "x is float64", "fix": "export in float32"}
REFUSAL = {"kind": "N", "exit_code": 1, "message": "no", "fix": "other", "problems": [PROBLEM]}


class StandIn:
    """In ONNX Runtime's place: answers each part of an order with what it was told to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "orders.jsonl").write_text("")
        self.wrong: dict[str, str] = {}
        self.replies: dict[str, dict[str, Any]] = {
            "prepare": to_json(replace(PREPARED, used=InputsUsed(0, 3, noise=True))),
            "quantize": to_json(QuantizedModel(model="quantized.onnx", calibrated_by=3)),
            "compile_context": to_json(CONTEXT),
            "run": to_json(RunReply("v2.0.0.1")),
            "compile_mixed": to_json(MIXED),
        }

    def environment(self, own: object = None) -> dict[str, str]:
        text = json.dumps({"replies": self.replies, "wrong": self.wrong})
        (self.folder / "replies.json").write_text(text)
        return {"PATH": os.environ["PATH"], onnx_worker.STAND_IN: str(self.folder)}

    @property
    def orders(self) -> list[tuple[str, dict[str, Any]]]:
        lines = (self.folder / "orders.jsonl").read_text().splitlines()
        return [(order["do"], order) for order in map(json.loads, lines)]


@pytest.fixture
def stand_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stand_in_folder: Path, own_places: None
) -> StandIn:
    stand_in = StandIn(stand_in_folder)
    for module in (onnx_steps, product):
        monkeypatch.setattr(module, "WORKER", onnx_worker.__name__)
    monkeypatch.setattr(onnx_steps, "environment", stand_in.environment)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    return stand_in


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("how", ["crashes", "computes"])
def test_what_a_search_knows_when_it_is_ended_is_its_answer_and_is_not_cached(
    stand_in: StandIn,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    how: str,
) -> None:
    # Other tests run beside this one: what computes does so however little of the processor it gets.
    monkeypatch.setattr(trouble, "BUSY", 0.0)
    known = DivergenceResult("float", 30.0, 3.0, POWER, {POWER.node: 3.0}, {}, ("early", "late"))
    stand_in.replies["diverge"] = to_json(known)
    stand_in.wrong = {"do": "diverge", "how": how}
    model = write(conv_model(), tmp_path / "net.onnx")
    for _ in range(2):
        assert onnx("divergence", str(model), "--timeout", "1") == 1
        assert POWER.node in capsys.readouterr().out
    assert [what for what, _ in stand_in.orders].count("diverge") == 2


class TestCompile:
    def compiled(self, folder: Path, *arguments: str) -> int:
        model = write(conv_model(), folder / "net.onnx")
        return onnx("compile", str(model), "-o", str(folder / "out"), *arguments)

    def test_a_worker_that_crashes_is_reported_with_its_log(
        self, stand_in: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        stand_in.wrong = {"do": "anything", "how": "crashes"}
        assert self.compiled(tmp_path) == 1 and not (tmp_path / "out").exists()
        text = capsys.readouterr().err
        assert "SIGSEGV" in text and f"diagnose -- {tmp_path}/reports/onnx/" in text

    def test_of_several_precisions_the_first_that_needs_it_is_searched(
        self, stand_in: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        lost = replace(CONTEXT, near=near(sqnr_db=3.0, reference_sqnr_db=60.0))
        stand_in.replies["compile_context"] = to_json(lost)
        stand_in.replies["prepare"] = to_json(replace(PREPARED, used=InputsUsed(3, 9, given=12)))
        stand_in.replies["scores"] = {"found": {"units": [], "whole": [0.1], "left": 0}}
        stand_in.replies["rewrite"] = {"error": REFUSAL}
        precisions = ("--precision", "8a8w", "--precision", "16a8w")
        assert self.compiled(tmp_path, "--calibrate", "x", *precisions) == 1
        assert [what for what, _ in stand_in.orders].count("scores") == 1
        assert "quantize --" in capsys.readouterr().err

    def test_an_unchanged_model_is_cached_until_it_or_a_flag_changes(
        self, stand_in: StandIn, tmp_path: Path
    ) -> None:
        def orders(*arguments: str) -> int:
            before = len(stand_in.orders)
            assert self.compiled(tmp_path, *arguments) == 0
            shutil.rmtree(tmp_path / "out")
            return len(stand_in.orders) - before

        # The model is looked at each time.
        assert [orders(), orders(), orders("--no-cache")] == [3, 1, 3]
        for arguments in (("--embed",), ("--soc", "SM8750")):
            assert orders(*arguments) == 3, arguments

    def test_a_suite_gets_the_model_and_the_user_the_program(self, stand_in: StandIn, tmp_path: Path) -> None:
        suite, out = tmp_path / "models.toml", tmp_path / "out"
        assert self.compiled(tmp_path, "--suite", str(suite)) == 0
        (program,) = programs_of(suite)
        assert program.name == "net/fp16/SM8650" and program.case.model == "net.onnx"
        assert names_in(out) == ["net_ctx.json", "net_ctx.onnx"]

    def test_its_record_is_one_that_the_functions_of_qnn_ci_read(
        self, stand_in: StandIn, tmp_path: Path
    ) -> None:
        out, file = tmp_path / "out", tmp_path / "answer.json"
        assert self.compiled(tmp_path, "--json", str(file)) == 0
        answer = check_answer(file.read_text())
        compiled = Compiled(answer, out, answer["programs"][0])
        assert (compiled.program, compiled.sqnr_db) == (out / "net_ctx.onnx", 30.0)
        assert compiled.accuracy["top1"] == 1.0 and not compiled.on_cpu


class TestRun:
    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        np.save(tmp_path / "x.npy", np.zeros((1, 3, 8, 8), np.float32))
        return context_model(tmp_path / "model")

    def ran(self, model: Path, *arguments: str) -> int:
        return onnx("run", str(model), "--input", str(model.parents[1] / "x.npy"), *arguments)

    @pytest.mark.parametrize(("flags", "soc"), [((), "SM8650"), (("--soc", "SM8750"), "SM8750")])
    def test_the_chip_is_the_one_it_was_compiled_for_unless_asked(
        self, stand_in: StandIn, model: Path, flags: tuple[str, ...], soc: str
    ) -> None:
        assert self.ran(model, *flags) == 0
        assert stand_in.orders[0][1]["soc"] == soc

    def test_its_record_is_one_that_the_functions_of_qnn_ci_read(
        self, stand_in: StandIn, model: Path, tmp_path: Path
    ) -> None:
        assert self.ran(model, "-o", str(tmp_path / "out")) == 0
        (output,) = Ran({}, tmp_path / "out").outputs
        assert np.load(output).tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(("rest", "times"), [(0, 1), (2, 2)])
def test_scores_of_all_operators_are_kept_and_those_that_the_time_cut_short_are_not(
    stand_in: StandIn, tmp_path: Path, rest: int, times: int
) -> None:
    stand_in.replies["scores"] = to_json(Scores((), (1.0,), rest))
    model = write(conv_model(), tmp_path / "net.onnx")
    tuned = one_model_of(parsed(tune, model, "--precision", "8a8w", "--floor", "30dB"), TUNE)
    for _ in range(2):
        assert scores_of(tuned, program_of(tuned), ScoreRequest("u16u8")).rest == rest
    assert [what for what, _ in stand_in.orders].count("scores") == times


class TestAudit:
    def audited(self, folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
        model, out = write(conv_model(), folder / "net.onnx"), folder / "audit.json"
        code = main("qnn-ci", "", VERBS, ["audit", str(model), "--json", str(out), *arguments])
        return code, json.loads(out.read_text())["precisions"]

    def test_every_precision_is_compiled_once(self, stand_in: StandIn, tmp_path: Path) -> None:
        code, rows = self.audited(tmp_path)
        assert code == 0 and list(rows) == ["fp16", "8a8w", "16a8w"]
        compiled = [order["precision"] for what, order in stand_in.orders if what == "compile_mixed"]
        assert compiled == ["fp16", "u8u8", "u16u8"]
        assert self.audited(tmp_path) == (0, rows)
        assert [what for what, _ in stand_in.orders].count("compile_mixed") == 3

    def test_what_a_model_is_refused_for_is_exit_code_1(self, stand_in: StandIn, tmp_path: Path) -> None:
        stand_in.replies["prepare"] = {"error": REFUSAL}
        code, rows = self.audited(tmp_path)
        assert code == 1 and rows["8a8w"] == {"error": "x is float64", "fix": "export in float32"}


def test_a_written_file_is_named_as_it_is_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "out" / "net.pte"
    file.parent.mkdir()
    file.write_bytes(b"x" * 1234)
    assert file_line(Path("out/net.pte")) == file_line(file) == "       1,234  out/net.pte"
    monkeypatch.chdir(file.parent)
    assert file_line(file) == "       1,234  net.pte"


def test_the_example_has_an_onnx_with_samples_that_it_takes_and_no_folder_is_mixed_with_it(
    tmp_path: Path,
) -> None:
    assert typed("example", cwd=tmp_path).returncode == 0
    model = tmp_path / "net.onnx"
    checker.check_model(str(model), full_check=True)
    samples = read_samples(tmp_path / "samples", signature_of(load_graph(model)))
    assert len(samples) == 8 and not np.array_equal(samples[0]["x"], samples[1]["x"])
    (tmp_path / "again" / "samples").mkdir(parents=True)
    assert typed("example", cwd=tmp_path / "again").returncode == 2
    assert [path.name for path in (tmp_path / "again").iterdir()] == ["samples"]


@pytest.mark.parametrize(
    ("model", "flags"),
    [
        ("net.onnx", ["--through", "onnx"]),
        ("net.py:model", ["--through", "genie"]),
        ("Llama", ["--through", "onnx"]),
        ("net.py:model", ["--through", "onnx", "--backend", "htp"]),
        ("net.py:model", ["--through", "onnx", "--dimension", "batch=1"]),
    ],
)
def test_what_through_onnx_cannot_mean_is_refused_before_anything_is_exported(
    model: str, flags: list[str], tmp_path: Path
) -> None:
    assert typed("example", cwd=tmp_path).returncode == 0
    (tmp_path / "Llama").mkdir()
    (tmp_path / "Llama" / "config.json").write_text("{}")
    done = typed("compile", model, *flags, "-o", "out", cwd=tmp_path)
    assert done.returncode == 2 and flags[-2] in done.stderr, done.stderr
    assert not (tmp_path / "out").exists()


def test_an_export_takes_the_place_of_no_model_of_the_users(tmp_path: Path) -> None:
    assert typed("example", cwd=tmp_path).returncode == 0
    before = (tmp_path / "net.onnx").read_bytes()
    done = typed("compile", "net.py:model", "--through", "onnx", "-o", ".", cwd=tmp_path)
    assert done.returncode == 2 and (tmp_path / "net.onnx").read_bytes() == before, done.stderr
