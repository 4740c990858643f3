"""One file for all lanes; and suites of earlier releases, as they are read and as they are converted."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ci.__main__ import VERBS
from ci.accept.convert import convert
from ci.gate import verb as gate
from ci.gate.table import gate_table
from ci.lanes.executorch.suite import SUITES as EXECUTORCH
from ci.lanes.llm.suite import SUITES as LLM
from ci.lanes.onnx.suite import SUITES as ONNX
from ci.pipeline.baseline import load_baseline
from ci.pipeline.earlier_suite import earlier_accepted
from ci.pipeline.lane import earlier_forms
from ci.pipeline.stage import baselines_of
from ci.pipeline.suite import AnyProgram, Suites
from ci.pipeline.suite_file import accepted_path
from provisioning.base.command_line import main
from provisioning.base.errors import ManifestError, ToolkitError, UsageError

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
        assert compiled.request["run"]["precision"] == "u8u8"

    @pytest.mark.parametrize(
        ("old", "new", "key", "fix"),
        [
            ("delegates = 2", "perplexity = 3", "case.net.perplexity", "'llm'"),
            ('lane = "onnx"\n', 'lane = "onnx"\nqat = true\n', "case.net.run.1.qat", "'executorch'"),
            ('lane = "onnx"\n', 'lane = "onxn"\n', "case.net.run.1.lane", "lane"),
            ('lane = "onnx"\n', "", "case.net.run.1.lane", "lane"),
            ("delegates = 2", "delegatse = 2", "case.net.delegatse", "delegatse"),
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

    def test_a_stage_without_a_run_of_its_lane_is_a_usage_error_that_names_those_there(
        self, tmp_path: Path
    ) -> None:
        path = written(tmp_path, THREE.replace("[case.tiny]", "#").partition("#")[0])
        with pytest.raises(UsageError, match="test_lowering, test_emulator") as caught:
            LLM.programs_of(path)
        assert caught.value.exit_code == 2 and "test_onnx" in caught.value.message

    def test_variables_that_no_model_can_read_are_refused(self, tmp_path: Path) -> None:
        words = THREE.partition("[case.tiny]")[2]
        path = written(tmp_path, f'schema = 2\nvariables = ["WIDTH"]\n[case.tiny]{words}')
        with pytest.raises(ManifestError) as caught:
            LLM.programs_of(path)
        assert caught.value.key == "variables"

    def test_programs_with_one_name_have_each_their_lanes_accepted_values(self, tmp_path: Path) -> None:
        path = written(tmp_path)
        for suites, size in ((EXECUTORCH, 1), (ONNX, 2)):
            (baseline,) = baselines_of(suites.programs_of(path), "wheels").values()
            values = {"build_id": "v1", "ddr_read": size}
            thresholds = {"net/8a8w": {"least.cosine": size / 4}}
            baseline.rewritten({"net/8a8w/SM8650": values}, thresholds, {"net/8a8w"})
        for suites, size in ((EXECUTORCH, 1), (ONNX, 2)):
            (baseline,) = baselines_of(suites.programs_of(path), "wheels").values()
            recorded = baseline.of("net/8a8w/SM8650")
            assert recorded and recorded.ddr_read == size
            assert suites.programs_of(path)[0].accepted.cosine == size / 4


EARLIER_EXECUTORCH = """\
# Ours.
schema = 1  # of last year
variables = ["WIDTH"]

[case.net]
factory = "net:make"  # the model
samples = "samples"
delegates = 2

# Before the run.
[[case.net.run]]  # the usual one
# Beside its scheme.
scheme = "w8a16"  # sixteen bits
socs = ["SM8650", "SM8750"]
tags = ["pr"]
thresholds = { sqnr_db = 30.0, reference_sqnr_db = 40.0 }

[[case.net.run]]
  socs = ["SM8650"]
  scheme = "8a8w"
  label = "head"
  modules = [{ name = "head", scheme = "16a8w" }]  # the head
  [case.net.run.thresholds]
  sqnr_db = 20.0
"""
EARLIER_ONNX = """\
#:schema ../schema/onnx_suite.json
schema = 1
[case.Net]
model = "net.onnx"
calibrate = "samples"  # ours
run = [{ precision = "u8u8", socs = ["SM8650"] }, { precision = "u8s8", socs = ["SM8650"] }]
[case.whole]
factory = "net:make"
[[case.whole.run]]
precision = "u16u8"
socs = ["SM8650"]
thresholds.sqnr_db = 30.0
[[case.whole.run]]
label = "settings"
precision = "u16/u8"
socs = ["SM8650"]
[case.whole.run.options]
vtcm_mb = 4
"""
EARLIER_LLM = """\
schema = 1
[case.tiny]
perplexity = 16
[[case.tiny.run]]
precision = "u16u8"  # Genie's
cache = "uint16"
parts = 2
socs = ["SM8650"]
limits = { first_choice = 0.9, perplexity_ratio = 1.1, divergence = 0.1, divergence_99 = 0.2, regret = 0.1 }
[[case.tiny.run]]
through = "executorch"
precision = "fp16"
socs = ["SM8650"]
"""


@dataclass(frozen=True)
class Earlier:
    suites: Suites[Any]
    text: str
    named: Mapping[str, str]
    """The names of programs of now, by those of the earlier release."""


EARLIER = {
    "executorch": Earlier(
        EXECUTORCH,
        EARLIER_EXECUTORCH,
        {name: name for name in ("net/16a8w/SM8650", "net/16a8w/SM8750", "net/head/SM8650")},
    ),
    "onnx": Earlier(
        ONNX,
        EARLIER_ONNX,
        {
            "Net/u8u8/SM8650": "Net/8a8w/SM8650",
            "Net/u8s8/SM8650": "Net/u8s8/SM8650",
            "whole/u16u8/SM8650": "whole/16a8w/SM8650",
            "whole/settings/SM8650": "whole/settings/SM8650",
        },
    ),
    "llm": Earlier(
        LLM,
        EARLIER_LLM,
        {
            "tiny/genie-u16u8-uint16-2-parts/SM8650": "tiny/genie-16a8w-uint16-2-parts/SM8650",
            "tiny/executorch-fp16/SM8650": "tiny/executorch-fp16/SM8650",
        },
    ),
}


def values(program: AnyProgram[Any, Any]) -> Any:
    """All that work and verdict get of it."""
    run = program.run.model_dump(exclude={"label"})
    return program.request["case"], run, program.soc, program.needs, program.thresholds


@pytest.fixture(params=EARLIER, ids=str)
def earlier(request: pytest.FixtureRequest) -> Earlier:
    return EARLIER[request.param]


@pytest.fixture
def suite(tmp_path: Path, earlier: Earlier) -> Path:
    """With a baseline as earlier releases wrote it."""
    path = written(tmp_path, earlier.text)
    recorded = {name: {"build_id": "v2.49", "ddr_read": len(name)} for name in earlier.named}
    text = json.dumps({"schema": 1, "programs": {**recorded, "gone/fp16/SM8650": {"build_id": "v1"}}})
    earlier_accepted(path, "wheels").write_text(text)
    return path


@pytest.mark.parametrize("values", [{"ddr_raed": 1}, {"ddr_read": "much"}, {"accuracy": {"beauty": 1.0}}])
def test_values_of_an_earlier_release_that_mean_nothing_are_refused(
    tmp_path: Path, values: dict[str, object]
) -> None:
    suite = written(tmp_path)
    text = json.dumps({"schema": 2, "programs": {"onnx/net/8a8w/SM8650": values}})
    earlier_accepted(suite, "wheels").write_text(text)
    for read in (convert, lambda path: load_baseline(path, "wheels", "onnx")):
        with pytest.raises(ManifestError, match="onnx/net/8a8w/SM8650"):
            read(suite)
    assert earlier_accepted(suite, "wheels").read_text() == text
    assert not accepted_path(suite, "wheels").exists()


class TestEarlier:
    def test_it_is_read_with_the_names_and_accepted_values_that_it_had(
        self, earlier: Earlier, suite: Path
    ) -> None:
        programs = earlier.suites.programs_of(suite)
        assert [program.name for program in programs] == list(earlier.named)
        (baseline,) = baselines_of(programs, "wheels").values()
        assert {
            name: program.ddr_read for name, program in baseline.programs.items() if program.ddr_read
        } == {name: len(name) for name in earlier.named}
        (warning,) = earlier_forms(programs)
        assert warning.subject == str(suite) and warning.fix.endswith(f"--convert {suite}")

    def test_converted_it_has_the_same_programs_thresholds_and_accepted_values(
        self, earlier: Earlier, suite: Path
    ) -> None:
        before = [values(program) for program in earlier.suites.programs_of(suite)]
        assert set(convert(suite)) == {suite, accepted_path(suite, "wheels")}
        programs = earlier.suites.programs_of(suite)
        assert [program.name for program in programs] == list(earlier.named.values())
        assert [values(program) for program in programs] == before
        (baseline,) = baselines_of(programs, "wheels").values()
        for was, now in earlier.named.items():
            recorded = baseline.of(now)
            assert recorded and recorded.ddr_read == len(was)
        assert baseline.of("gone/fp16/SM8650")
        assert not list(earlier_forms(programs))

    def test_comments_stay_and_to_convert_it_again_changes_nothing(
        self, earlier: Earlier, suite: Path
    ) -> None:
        convert(suite)
        text = suite.read_text()
        comments = [line.partition("#")[2] for line in earlier.text.splitlines() if "#" in line[1:]]
        assert all(comment in text for comment in comments)
        assert convert(suite) == [] and suite.read_text() == text

    @pytest.mark.parametrize("suite_too", [True, False])
    def test_after_an_end_between_the_files_the_command_is_repeated(
        self, earlier: Earlier, suite: Path, suite_too: bool
    ) -> None:
        before = earlier_accepted(suite, "wheels").read_text()
        convert(suite)
        done = accepted_path(suite, "wheels").read_text()
        earlier_accepted(suite, "wheels").write_text(before)
        if not suite_too:
            suite.write_text(earlier.text)
        (warning,) = earlier_forms(earlier.suites.programs_of(suite))
        assert warning.fix.endswith(f"--convert {suite}")
        assert accepted_path(suite, "wheels") in convert(suite)
        assert accepted_path(suite, "wheels").read_text() == done
        assert not list(earlier_forms(earlier.suites.programs_of(suite)))


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda text: text.replace('"w8a16"', '"w9a99"'), id="no precision"),
        pytest.param(lambda text: text.replace("delegates = 2", "colour = 2"), id="no field"),
        pytest.param(lambda text: text.replace('"w8a16"', '"w8a16"\nprecision = "8a8w"'), id="both names"),
        pytest.param(lambda text: text + "[case", id="no TOML"),
        pytest.param(lambda text: text.replace("schema = 1", "schema = 3"), id="a later form"),
        pytest.param(lambda text: text.replace("socs =", 'lane = "onnx"\nsocs =', 1), id="half converted"),
    ],
)
def test_what_cannot_be_converted_is_refused_and_nothing_changes(
    tmp_path: Path, damage: Callable[[str], str]
) -> None:
    suite = written(tmp_path, damage(EARLIER_EXECUTORCH))
    baseline = earlier_accepted(suite, "wheels")
    baseline.write_text('{"schema": 1, "programs": {}}')
    before = suite.read_text(), baseline.read_text()
    with pytest.raises(ToolkitError):
        convert(suite)
    assert (suite.read_text(), baseline.read_text()) == before


def test_a_baseline_that_does_not_say_of_which_lane_it_is_is_refused(tmp_path: Path) -> None:
    suite = written(tmp_path)
    baseline = earlier_accepted(suite, "wheels")
    baseline.write_text('{"schema": 1, "programs": {"gone/8a8w/SM8650": {}}}')
    with pytest.raises(UsageError, match="gone/8a8w/SM8650"):
        convert(suite)
    assert not load_baseline(suite, "wheels", "onnx").programs and earlier_forms(ONNX.programs_of(suite))


def test_the_command_says_what_it_rewrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite = written(tmp_path, EARLIER_ONNX)
    assert main("python -m ci", "", VERBS, ["accept", "--convert", str(suite)]) == 0
    assert str(suite) in capsys.readouterr().out and "schema/suite.json" in suite.read_text()
    assert main("python -m ci", "", VERBS, ["accept", "--convert", str(tmp_path / "none.toml")]) == 2


class TestGate:
    def stages(self, path: Path, *named: str) -> dict[str, tuple[str, ...]]:
        stages = gate.with_lanes(gate_table().stage, [path] if path.name else [], named)
        return {stage.name: stage.flags for stage in stages if stage.lane}

    def test_it_runs_the_stages_of_the_lanes_that_the_suites_have(self, tmp_path: Path) -> None:
        flags = ("--suite", str(tmp_path / "models.toml"))
        assert self.stages(written(tmp_path)) == dict.fromkeys(
            ("test_lowering", "test_emulator", "test_onnx", "test_llm"), flags
        )
        assert self.stages(written(tmp_path, EARLIER_ONNX)) == {"test_onnx": flags}

    def test_without_a_suite_it_runs_those_of_executorch_and_those_that_are_named(self) -> None:
        assert list(self.stages(Path())) == ["test_lowering", "test_emulator"]
        assert "test_onnx" in self.stages(Path(), "test_onnx")

    def test_a_named_stage_without_a_run_of_its_lane_is_a_usage_error(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="test_onnx") as caught:
            self.stages(written(tmp_path, EARLIER_ONNX), "test_lowering")
        assert caught.value.exit_code == 2
