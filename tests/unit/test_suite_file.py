"""One file for all lanes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ci.gate import verb as gate
from ci.gate.options import read_options
from ci.gate.planning import planned_stages
from ci.gate.table import gate_stages
from ci.lanes.executorch.suite import SUITES as EXECUTORCH
from ci.lanes.llm.suite import SUITES as LLM
from ci.lanes.onnx.suite import SUITES as ONNX
from ci.models.package_needs import Needs
from ci.suite.accepted import load_baseline
from ci.suite.programs import Suites
from ci.suite.suite_file import lanes, lanes_of
from provisioning.base.errors import ManifestError, UsageError
from tests.support.typed import parsed

THREE = """\
schema = 2

[case.net]
factory = "net:make"
inferences = 3
delegates = 2

[[case.net.run]]
lane = "executorch"
precision = "8a8w"
socs = ["SM8650"]
calibration = 4

[[case.net.run]]
lane = "onnx"
precision = "u8u8"
socs = ["SM8650", "SM8750"]
thresholds = { sqnr_db = 20.0 }

[[case.net.run]]
lane = "executorch"
precision = "u16u8"
socs = ["SM8650"]
thresholds = { sqnr_db = 25.0 }

[case.tiny]
perplexity = 16

[[case.tiny.run]]
lane = "llm"
precision = "fp16"
socs = ["SM8650"]
"""

ONNX_ALONE = """
schema = 2
[case.net]
model = "net.onnx"
[[case.net.run]]
lane = "onnx"
precision = "fp16"
socs = ["SM8650"]
"""


def written(folder: Path, text: str = THREE) -> Path:
    path = folder / "models.toml"
    path.write_text(text)
    return path


def names(suites: Suites[Any], path: Path) -> list[str]:
    return [program.name for program in suites.programs_of(path)]


class TestOneFile:
    def test_each_lane_reads_its_own_runs_and_a_case_is_written_once(self, tmp_path: Path) -> None:
        path = written(tmp_path)
        assert names(EXECUTORCH, path) == ["net/8a8w/SM8650", "net/16a8w/SM8650"]
        assert names(ONNX, path) == ["net/8a8w/SM8650", "net/8a8w/SM8750"]
        assert names(LLM, path) == ["tiny/genie-fp16/SM8650"]
        lowered, compiled = EXECUTORCH.programs_of(path)[0], ONNX.programs_of(path)[0]
        assert (lowered.case.inferences, compiled.case.inferences, lowered.delegates) == (3, 3, 2)
        assert compiled.order.run["precision"] == "u8u8"

    def test_its_packages_are_those_that_it_names_or_else_those_of_the_variable(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "mine").mkdir()
        for name in ("own.txt", "shared.txt", "mine/setup.cfg"):
            (tmp_path / name).touch()
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("QNN_CI_REQUIREMENTS", "shared.txt")
        for line, requirements, project in (
            ("", "shared.txt", None),
            ('requirements = "own.txt"', "own.txt", None),
            ('project = "mine"\nvariables = ["KEY"]', "shared.txt", tmp_path / "mine"),
        ):
            program = EXECUTORCH.programs_of(written(tmp_path, THREE.replace("2\n", f"2\n{line}\n", 1)))[0]
            variables = ("KEY",) if project else ()
            assert program.needs == Needs(tmp_path / requirements, project, variables)
        monkeypatch.setenv("QNN_CI_REQUIREMENTS", "missing.txt")
        with pytest.raises(UsageError):
            EXECUTORCH.programs_of(written(tmp_path))

    @pytest.mark.parametrize(
        ("old", "new", "key", "fix"),
        [
            ("delegates = 2", "perplexity = 3", "case.net.perplexity", "perplexity"),
            ('lane = "onnx"\n', 'lane = "onxn"\n', "case.net.run.1.lane", "lane"),
            ('lane = "onnx"\n', "", "case.net.run.1.lane", "lane"),
            ('lane = "onnx"\n', 'lane = "ort"\n', "case.net.run.1.lane", 'lane = "onnx"'),
            ("schema = 2", "schema = 1", "schema", "schema = 2"),
            ("delegates = 2", "delegatse = 2", "case.net.delegatse", "delegates?"),
            ("[case.net]", '[case."a net"]', "case.a net.[key]", "a-net"),
            ("delegates = 2", "thresholds = { sqnr_db = 3 }", "case.net.thresholds", "case.NAME.run"),
            ("sqnr_db = 25.0", "sqnr_db = -25.0", "case.net.run.2.thresholds.sqnr_db", "sqnr_db"),
        ],
    )
    def test_a_mistake_is_named_where_the_file_has_it(
        self, tmp_path: Path, old: str, new: str, key: str, fix: str
    ) -> None:
        assert old in THREE
        with pytest.raises(ManifestError) as caught:
            EXECUTORCH.programs_of(written(tmp_path, THREE.replace(old, new)))
        assert caught.value.key == key and fix in str(caught.value.fix)

    @pytest.mark.parametrize(
        ("row", "form"),
        [
            ('tags = "pr"', 'tags = ["pr"]'),
            ("label = 8", 'label = "8"'),
            ('socs = ["SM875O"]', "SM8750"),
            ('socs = ["557"]', 'socs = ["SM8650"]'),
        ],
    )
    def test_a_wrong_value_is_answered_with_its_form(self, tmp_path: Path, row: str, form: str) -> None:
        text = (
            f'schema = 2\n[case.net]\nfactory = "m:f"\n[[case.net.run]]\nlane = "executorch"\n{row}\n'
            + ("" if "socs" in row else 'socs = ["SM8650"]\n')
            + 'precision = "fp16"\n'
        )
        with pytest.raises(ManifestError) as caught:
            EXECUTORCH.programs_of(written(tmp_path, text))
        said = f"{caught.value.message} {caught.value.fix}"
        assert form in said and "--soc" not in said

    @pytest.mark.parametrize(("key", "form"), [("socs", 'socs = ["SM8750"]'), ("run", 'lane = "executorch"')])
    def test_a_missing_key_is_answered_with_an_example(self, tmp_path: Path, key: str, form: str) -> None:
        text = 'schema = 2\n[case.net]\nfactory = "m:f"\n'
        run = '[[case.net.run]]\nlane = "executorch"\nprecision = "fp16"\n'
        with pytest.raises(ManifestError) as caught:
            EXECUTORCH.programs_of(written(tmp_path, text if key == "run" else text + run))
        assert caught.value.key.endswith(key) and form in caught.value.fix

    @pytest.mark.parametrize("precision", ["16", '"8a2w"'])
    def test_what_is_no_precision_of_a_language_model_is_named(self, tmp_path: Path, precision: str) -> None:
        with pytest.raises(ManifestError) as caught:
            LLM.programs_of(written(tmp_path, THREE.replace('"fp16"', precision)))
        assert caught.value.key == "case.tiny.run.0.precision"

    def test_what_user_code_needs_is_refused_of_a_lane_that_runs_none(self, tmp_path: Path) -> None:
        text = 'schema = 2\nvariables = ["A"]\n[case.tiny]' + THREE.partition("[case.tiny]")[2]
        with pytest.raises(ManifestError) as caught:
            LLM.programs_of(written(tmp_path, text))
        assert caught.value.key == "variables"

    def test_a_stage_without_a_run_of_its_lane_is_a_usage_error_that_names_those_there(
        self, tmp_path: Path
    ) -> None:
        path = written(tmp_path, THREE.replace("[case.tiny]", "#").partition("#")[0])
        with pytest.raises(UsageError, match="test_lowering, test_emulator") as caught:
            LLM.programs_of(path)
        assert caught.value.exit_code == 2 and "test_onnx" in caught.value.message

    def test_programs_with_one_name_have_each_their_lanes_accepted_values(self, tmp_path: Path) -> None:
        path = written(tmp_path)
        for suites, size in ((EXECUTORCH, 1), (ONNX, 2)):
            values = {"build_id": "v1", "ddr_read": size}
            thresholds = {"net/8a8w": {"least.top1": size / 4}}
            baseline = load_baseline(path, "wheels", suites.lane)
            baseline.rewritten({"net/8a8w/SM8650": values}, thresholds, {"net/8a8w"})
        for suites, size in ((EXECUTORCH, 1), (ONNX, 2)):
            program = suites.programs_of(path)[0]
            assert program.recorded and program.recorded.ddr_read == size
            assert program.accepted.top1 == size / 4


class TestGate:
    def stages(self, path: Path, *named: str) -> dict[str, tuple[str, ...]]:
        suites = ["--suite", path] if path.name else []
        only = [word for name in named for word in ("--only", name)]
        stages = planned_stages(gate_stages(), read_options(parsed(gate, *suites, *only)))
        return {stage.name: stage.flags for stage in stages if stage.lane}

    def test_it_runs_the_stages_of_the_lanes_that_the_suites_have(self, tmp_path: Path) -> None:
        flags = ("--suite", str(tmp_path / "models.toml"))
        assert self.stages(written(tmp_path)) == dict.fromkeys(
            ("test_lowering", "test_emulator", "test_onnx", "test_llm"), flags
        )
        assert self.stages(written(tmp_path, ONNX_ALONE)) == {"test_onnx": flags}

    def test_without_a_suite_it_runs_those_of_executorch_and_those_that_are_named(self) -> None:
        assert list(self.stages(Path())) == ["test_lowering", "test_emulator"]
        assert "test_onnx" in self.stages(Path(), "test_onnx")

    def test_a_stage_that_is_named_gets_suites_that_have_nothing_for_it_and_says_so_itself(
        self, tmp_path: Path
    ) -> None:
        path = written(tmp_path, ONNX_ALONE)
        assert self.stages(path, "test_llm")["test_llm"] == ("--suite", str(path))
        with pytest.raises(UsageError, match="nothing for test_llm"):
            LLM.programs_of(path)


def test_of_a_suite_that_cannot_be_read_one_lane_is_left_to_say_what_is_wrong(tmp_path: Path) -> None:
    assert lanes_of(written(tmp_path)) == ("executorch", "onnx", "llm")
    (lane,) = lanes_of(written(tmp_path, "schema = ["))
    assert lane in lanes()


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("x = " + "[" * 5000 + "]" * 5000, id="arrays"),
        pytest.param(".".join(["x"] * 3000) + " = 1", id="tables"),
        pytest.param("x = " + "9" * 6000, id="digits"),
        pytest.param("x = 0x" + "f" * 6000, id="hexadecimal digits"),
    ],
)
def test_a_suite_too_deep_or_too_large_for_a_reader_is_one_line(tmp_path: Path, value: str) -> None:
    (path := tmp_path / "suite.toml").write_text(f"{value}\n{THREE}")
    with pytest.raises(ManifestError) as refused:
        EXECUTORCH.programs_of(path)
    assert len(refused.value.message.splitlines()) == 1
