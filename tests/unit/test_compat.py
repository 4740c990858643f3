"""Pairs of executorch and QNN are measured step by step and written down the same way every time."""

from __future__ import annotations

import array
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ci.__main__ import VERBS
from ci.upstream.compat import stage
from provisioning import compat
from provisioning.base.command_line import main
from provisioning.base.errors import EnvironmentLacking, ManifestError, UsageError
from provisioning.base.findings import Severity, StageRun
from provisioning.base.settings import Selection
from provisioning.compat import STEPS, Measured, Pair, Step, load_builds, load_measured
from provisioning.manifest import load_profile
from provisioning.sources.wheel import Wheel
from provisioning.validation import probe
from provisioning.validation.probe import Answer

GOOD = Step(result="passed")
BAD = Step(result="failed", error="unknown custom config socModel 0")
UNREACHED = Step(result="not_reached")


def pair(qnn: str = "2.49.40", executorch: str = "1.5.1", soc: str = "SM8650", works: bool = True) -> Pair:
    steps = dict.fromkeys(STEPS, GOOD if works else UNREACHED) | ({} if works else {"device": BAD})
    return Pair(
        executorch=executorch,
        torch="2.13.0",
        torchao="0.18.0",
        qnn=qnn,
        build_id=f"v{qnn}.260101",
        package="onnxruntime-qnn 2.5.0",
        soc=soc,
        works=works,
        steps=steps,
    )


PAIRS = st.lists(
    st.builds(
        pair,
        st.sampled_from(["2.9.0", "2.10.0", "2.49.40"]),
        st.sampled_from(["1.5.1", "1.10.0", "1.6.0a1"]),
        st.sampled_from(["SM8650", "SM8750"]),
        st.booleans(),
    )
)


def written(pairs: list[Pair]) -> str:
    measured = Measured(schema=1)
    for each in pairs:
        measured = measured.with_pair(each)
    return measured.as_json()


@settings(deadline=None)
@given(PAIRS, st.randoms())
def test_the_order_of_measuring_does_not_show(pairs: list[Pair], source: object) -> None:
    last = {(each.executorch, each.build_id, each.soc): each for each in pairs}
    shuffled = list(last.values())
    source.shuffle(shuffled)  # type: ignore[attr-defined]
    assert written(pairs) == written(shuffled)


@settings(deadline=None)
@given(PAIRS)
def test_what_was_written_is_read(tmp_path_factory: pytest.TempPathFactory, pairs: list[Pair]) -> None:
    path = tmp_path_factory.mktemp("compat") / "compat.json"
    path.write_text(written(pairs), encoding="utf-8")
    assert load_measured(path).as_json() == written(pairs)


def test_versions_are_in_their_own_order_and_not_the_alphabets() -> None:
    measured = Measured(schema=1).with_pair(pair("2.10.0")).with_pair(pair("2.9.0"))
    assert [each.qnn for each in measured.pairs] == ["2.9.0", "2.10.0"]


def test_measuring_a_pair_again_replaces_it() -> None:
    measured = Measured(schema=1).with_pair(pair(works=False)).with_pair(pair())
    assert [each.works for each in measured.pairs] == [True]


def test_the_first_error_names_its_step() -> None:
    assert pair(works=False).error == "device: unknown custom config socModel 0"


def test_a_pair_is_found_by_executorch_and_build_id() -> None:
    measured = Measured(schema=1).with_pair(pair()).with_pair(pair("2.9.0"))
    assert measured.of("1.5.1", "v2.49.40.260101") == (pair(),)
    assert measured.of("1.5.2", "v2.49.40.260101") == ()


@pytest.mark.parametrize("text", ["", "{", '{"schema": 2}', '{"schema": 1, "pairs": [{}]}'])
def test_a_damaged_file_is_a_fault_of_the_manifest(tmp_path: Path, text: str) -> None:
    path = tmp_path / "compat.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ManifestError, match=r"compat\.json"):
        load_measured(path)


def test_the_table_in_the_docs_is_of_the_committed_measurement() -> None:
    page = stage.PAGE.read_text(encoding="utf-8")
    assert stage.with_table(page, load_measured()) == page


def test_every_build_of_the_manifest_was_measured_with_the_profiles_executorch() -> None:
    executorch = load_profile(load_builds().profile).packages["executorch"]
    measured = load_measured()
    assert all(measured.of(executorch, build.build_id) for build in load_builds().builds)


def test_the_build_that_the_profile_pins_works() -> None:
    profile = load_profile(load_builds().profile)
    pinned = profile.components["qnn-sdk"].build_id
    assert pinned in {each.build_id for each in load_measured().working(profile.packages["executorch"])}


def test_the_profiles_own_build_is_its_own_component() -> None:
    pinned = load_profile("wheels").components["qnn-sdk"]
    build = next(b for b in load_builds().builds if b.build_id == pinned.build_id)
    assert build.component(pinned) is pinned


def test_another_build_is_laid_out_as_the_profiles() -> None:
    pinned = load_profile("wheels").components["qnn-sdk"]
    build = next(b for b in load_builds().builds if b.qnn == "2.51.0")
    component = build.component(pinned)
    (part,) = component.parts
    assert isinstance(part.source, Wheel)
    assert (part.source.version, component.version, component.pinned) == ("2.7.0", "2.51.0.260929", True)
    assert part.place == pinned.parts[0].place


def test_a_profile_that_is_no_wheel_is_refused() -> None:
    pinned = load_profile("qnn-2.37").components["qnn-sdk"]
    with pytest.raises(ManifestError, match="x86-64 wheel"):
        load_builds().builds[0].component(pinned)


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("all is well\n", ""),
        ("note\n[ERROR] [Qnn ExecuTorch]:  <E> Failed to load\n[ERROR] more\n", "Failed to load"),
        (
            "[ERROR] [Qnn ExecuTorch]:\n\n[ERROR] [Qnn ExecuTorch]:  <E> second line has it\n",
            "second line has it",
        ),
        ("RuntimeError: Failed to initialize\n", "RuntimeError: Failed to initialize"),
        ("OSError: no /tmp/some/where/model.pte at 0x7f0012345678\n", "OSError: no …/model.pte at 0x…"),
        ("expected 1 delegate of QnnBackend, found []\n", "expected 1 delegate of QnnBackend, found []"),
    ],
)
def test_the_first_error_has_nothing_that_differs_from_run_to_run(log: str, line: str) -> None:
    assert stage.first_error(log) == line


@pytest.mark.parametrize(
    ("one", "other", "cosine"),
    [
        ([1, 2], [2, 4], 1.0),
        ([1, 0], [0, 1], 0.0),
        ([1, 2], [1], 0.0),
        ([], [], 0.0),
        ([0, 0], [0, 0], 0.0),
        ([float("nan"), 1], [1, 1], 0.0),
    ],
)
def test_outputs_are_compared_by_their_cosine(
    tmp_path: Path, one: list[float], other: list[float], cosine: float
) -> None:
    for name, values in (("one", one), ("other", other)):
        (tmp_path / name).write_bytes(array.array("f", values).tobytes())
    assert stage.cosine_of(tmp_path / "one", tmp_path / "other") == pytest.approx(cosine)


def test_no_output_is_no_agreement(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"1234")
    assert stage.cosine_of(tmp_path / "one", tmp_path / "other") == 0.0


def test_a_step_that_ends_badly_says_its_first_error_and_keeps_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    step = stage.run_step([sys.executable, "-c", "raise RuntimeError('Failed to lower')"], {}, 60, log)
    assert step == Step(result="failed", error="RuntimeError: Failed to lower")
    assert log.read_text().startswith("Traceback")


def test_a_step_that_dies_says_its_signal(tmp_path: Path) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    step = stage.run_step([sys.executable, "-c", code], {}, 60, tmp_path / "log")
    assert step.error == "ended by signal 11"


def test_a_step_that_hangs_fails(tmp_path: Path) -> None:
    step = stage.run_step([sys.executable, "-c", "import time; time.sleep(60)"], {}, 0.3, tmp_path / "log")
    assert step == Step(result="failed", error="no end after 0.3 s")


def test_running_a_program_leaves_nothing_where_the_stage_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = tmp_path / "runner"
    runner.write_text(
        f"#!{sys.executable}\nimport sys, pathlib\n"
        "for flag, name in (('etdump', 'etdump.etdp'), ('performance_output', 'inference_speed.txt')):\n"
        "    if f'--{flag}_path=' not in sys.argv: pathlib.Path(name).touch()\n",
        encoding="utf-8",
    )
    runner.chmod(0o755)
    monkeypatch.setattr(stage, "ROOT", tmp_path / "here")
    (tmp_path / "here").mkdir()
    (tmp_path / "work").mkdir()
    stage.emulate(tmp_path / "work", {}, runner, 60, tmp_path / "log")
    assert list((tmp_path / "here").iterdir()) == []


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> dict[str, Step]:
    """What each command of a measurement gives: `fp16`, `8a8w` for lowering."""
    given: dict[str, Step] = {"fp16": GOOD, "8a8w": GOOD}

    def run_step(command: list[str], variables: object, timeout: float, log: Path) -> Step:
        quantization, _, directory = command[-3:]
        if given[quantization] == GOOD:
            Path(directory, "model.pte").touch()
        return given[quantization]

    monkeypatch.setattr(probe, "ask", lambda soc, variables: Answer("device", made_device=True))
    monkeypatch.setattr(stage, "run_step", run_step)
    monkeypatch.setattr(stage, "emulate", lambda *given: GOOD)
    return given


def results(tmp_path: Path) -> dict[str, str]:
    return {
        name: step.result
        for name, step in stage.measure("SM8650", {}, tmp_path, 1, tmp_path / "logs").items()
    }


def test_a_build_that_can_do_everything_works(tmp_path: Path, steps: dict[str, Step]) -> None:
    assert results(tmp_path) == dict.fromkeys(STEPS, "passed")


def test_without_a_device_nothing_more_is_tried(
    tmp_path: Path, steps: dict[str, Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = Answer("backend", detail="unknown custom config; error=14001")
    monkeypatch.setattr(probe, "ask", lambda soc, variables: answer)
    measured = stage.measure("SM8650", {}, tmp_path, 1, tmp_path / "logs")
    assert measured["device"] == Step(result="failed", error="unknown custom config")
    assert {step.result for name, step in measured.items() if name != "device"} == {"not_reached"}


def test_a_model_that_does_not_lower_is_not_run_and_the_other_is(
    tmp_path: Path, steps: dict[str, Step]
) -> None:
    steps["fp16"] = BAD
    assert results(tmp_path) == {
        "device": "passed",
        "lower_fp16": "failed",
        "run_fp16": "not_reached",
        "lower_8a8w": "passed",
        "run_8a8w": "passed",
    }


def test_a_python_that_lacks_something_says_nothing_of_the_pair(
    tmp_path: Path, steps: dict[str, Step]
) -> None:
    steps["fp16"] = Step(result="failed", error="ModuleNotFoundError: No module named 'pydot'")
    with pytest.raises(EnvironmentLacking, match="pydot"):
        stage.measure("SM8650", {}, tmp_path, 1, tmp_path / "logs")


def test_a_chip_that_this_executorch_does_not_know_says_nothing_of_the_pair(
    tmp_path: Path, steps: dict[str, Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = Answer("soc", detail="this executorch does not know the chip SM8650")
    monkeypatch.setattr(probe, "ask", lambda soc, variables: answer)
    with pytest.raises(EnvironmentLacking, match="does not know the chip SM8650"):
        stage.measure("SM8650", {}, tmp_path, 1, tmp_path / "logs")


@pytest.fixture
def measured_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A measurement in which only QNN 2.49.40 works, and which writes to a directory of the test."""
    page = tmp_path / "compat.md"
    page.write_text(f"before\n{stage.BEGIN}{stage.END}after\n", encoding="utf-8")
    runner = tmp_path / "runner"
    runner.touch()
    monkeypatch.setenv("QNN_EXECUTOR_RUNNER", str(runner))
    monkeypatch.setattr(stage, "PAGE", page)
    monkeypatch.setattr(compat, "path", lambda: tmp_path / "compat.json")
    monkeypatch.setattr(stage, "provision", lambda build, pinned, store: Path("sdk") / build.qnn)
    monkeypatch.setattr(
        stage, "_installed", {"executorch": "1.5.1", "torch": "2", "torchao": "3"}.__getitem__
    )

    def measure(soc: str, variables: dict[str, str], runner: Path, timeout: float, logs: Path) -> object:
        logs.mkdir(parents=True, exist_ok=True)
        steps = pair(works=variables["QNN_SDK_ROOT"].endswith("2.49.40")).steps
        for name, step in steps.items():
            (logs / f"{name}.log").write_text(step.error)
        return steps

    monkeypatch.setattr(stage, "measure", measure)
    return tmp_path


def selection(root: Path) -> Selection:
    return Selection("wheels", "x86_64-linux", "SM8650", root / "store", root / "reports")


def test_the_stage_passes_when_the_profiles_build_works(measured_stage: Path) -> None:
    assert stage.measure_all(selection(measured_stage), [], 1, "", {**_runner(measured_stage)}) == 0
    written = load_measured(measured_stage / "compat.json")
    assert [each.qnn for each in written.pairs if each.works] == ["2.49.40"]
    assert "| 1.5.1 | 2.49.40 |" in (measured_stage / "compat.md").read_text(encoding="utf-8")


def test_the_stage_fails_when_the_profiles_build_does_not(
    measured_stage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = stage.measure
    monkeypatch.setattr(
        stage, "measure", lambda soc, variables, *rest: measure(soc, {"QNN_SDK_ROOT": ""}, *rest)
    )
    run = StageRun("compat", "wheels", "x86_64-linux", "")
    stage.report_builds(run, selection(measured_stage), ["2.49.40", "2.51.0"], 1, _runner(measured_stage))
    assert [(f.rule, f.severity) for f in run.findings] == [
        ("compat-profile-broken", Severity.ERROR),
        ("compat-broken", Severity.NOTE),
    ]
    assert all("this ExecuTorch do not fit" in finding.message for finding in run.findings)


def test_the_log_of_every_step_is_linked_and_the_one_that_failed_is_named(measured_stage: Path) -> None:
    run = StageRun("compat", "wheels", "x86_64-linux", "")
    stage.report_builds(run, selection(measured_stage), ["2.51.0"], 1, _runner(measured_stage))
    folder = measured_stage / "reports/compat/2.51.0"
    logs = {Path(artifact.path) for artifact in run.artifacts if artifact.kind == "step-log"}
    assert logs == {folder / f"{name}.log" for name in STEPS}
    assert [finding.remedy for finding in run.findings] == [f"read {folder / 'device.log'}"]


def test_measuring_one_build_leaves_the_others(measured_stage: Path) -> None:
    stage.measure_all(selection(measured_stage), [], 1, "", _runner(measured_stage))
    before = (measured_stage / "compat.json").read_text(encoding="utf-8")
    stage.measure_all(selection(measured_stage), ["2.51.0"], 1, "", _runner(measured_stage))
    assert (measured_stage / "compat.json").read_text(encoding="utf-8") == before


def test_a_build_that_nobody_listed_is_wrong_use_and_reported(measured_stage: Path) -> None:
    with pytest.raises(UsageError, match=r"--build 9\.9"):
        stage.measure_all(selection(measured_stage), ["9.9"], 1, "", _runner(measured_stage))
    report = json.loads((measured_stage / "reports" / "compat.json").read_text(encoding="utf-8"))
    assert report["outcome"] == "error"


def _runner(root: Path) -> dict[str, str]:
    return {"QNN_EXECUTOR_RUNNER": str(root / "runner")}


def test_a_chip_that_is_none_is_wrong_use_and_no_measurement(measured_stage: Path) -> None:
    chosen = replace(selection(measured_stage), named_socs=("SM1",))
    with pytest.raises(UsageError, match="SM1"):
        stage.measure_all(chosen, ["2.51.0"], 1, "", _runner(measured_stage))
    assert not (measured_stage / "compat.json").exists()


def test_a_page_without_its_markers_is_a_fault() -> None:
    with pytest.raises(ManifestError, match="measured pairs"):
        stage.with_table("no table here\n", Measured(schema=1))


def test_rendering_measures_nothing(measured_stage: Path) -> None:
    assert main("python -m ci", "", {"compat": VERBS["compat"]}, ["compat", "--render"]) == 0
    assert "| executorch | QNN |" in (measured_stage / "compat.md").read_text(encoding="utf-8")
