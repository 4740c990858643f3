"""A suite's programs are judged on a device: against float and the emulator, and by what was accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy
import pytest

from ci.models.inputs import Sample
from ci.suite.accepted import Recorded
from ci.suite.device_stage import (
    HostedDevices,
    ReadyProgram,
    accepted_fields,
    check_device,
    device_results,
    verdict_on_device,
)
from ci.suite.judged_samples import JudgedSamples, SampleFacts
from ci.suite.model_outputs import ModelOutputs
from ci.suite.options import DeviceFlags
from ci.suite.suite_file import Thresholds
from ci.work.outcome import Result
from provisioning.base.commands import Fix, session
from provisioning.base.errors import UsageError
from provisioning.base.findings import Finding, Severity
from tests.support.toy_lane import ToyCase, ToyProgram, ToyRun

FLOAT: list[Sample] = [
    {"0": numpy.random.default_rng(seed).random((1, 100), numpy.float32)} for seed in range(3)
]
EMULATED: list[Sample] = [{"0": sample["0"] * numpy.float32(1.001)} for sample in FLOAT]
NO_HOST = HostedDevices(lambda jobs, into: {}, Path("none"))
AGAIN = session("test_device", "-k", "net")


class Device:
    """A folder of outputs, and a suite's program that the emulator ran."""

    def __init__(self, folder: Path) -> None:
        self.outputs, self.logs, file = folder / "outputs", folder / "logs", folder / "program.pte"
        self.outputs.mkdir()
        file.write_bytes(b"a program")
        facts = SampleFacts(program="digest", soc="SM8650", build_id="v2", kind="fp16")
        samples = JudgedSamples(
            facts=facts,
            inputs=FLOAT,
            exact=ModelOutputs(FLOAT),
            reference=ModelOutputs([]),
            emulated=EMULATED,
        )
        self.ready = ReadyProgram(samples, [file])
        run = ToyRun(width=1, socs=("SM8650",))
        self.program = ToyProgram(folder / "suite.toml", "net", ToyCase(run=(run,)), run, "SM8650")
        self.program = replace(self.program, accepted=Thresholds(sqnr_db=40.0))

    def give(self, samples: Sequence[Sample]) -> None:
        folder = self.outputs / self.program.name
        folder.mkdir(parents=True)
        for number, sample in enumerate(samples):
            sample["0"].tofile(folder / f"output_{number}_0.raw")

    def judged(self) -> Result:
        flags = DeviceFlags(outputs=self.outputs)
        results = device_results([self.program], lambda program: self.ready, flags, self.logs, NO_HOST)
        return results[self.program.name]

    def findings(self, **recorded: float) -> list[Finding]:
        program = (
            replace(self.program, recorded=Recorded.model_validate(recorded)) if recorded else self.program
        )
        verdict = verdict_on_device(program, self.judged(), AGAIN, {})
        assert verdict is not None
        self.row = verdict.row
        return list(verdict.findings)


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return Device(tmp_path)


def changed(by: float) -> list[Sample]:
    """The emulator's outputs, of which the last sample's are a little larger."""
    return [*EMULATED[:2], {"0": EMULATED[2]["0"] * numpy.float32(1 + by)}]


def test_a_device_that_gives_what_the_emulator_gives_passes_with_its_figures(device: Device) -> None:
    device.give(EMULATED)
    assert device.findings() == []
    assert device.row["figures"] == device.row["emulated"] and device.row["thresholds"]
    against = device.row["against_emulator"]
    assert isinstance(against, dict) and against["equal"] == 1


def test_a_difference_that_nobody_accepted_is_a_warning_of_its_own(device: Device) -> None:
    device.give(changed(1e-4))
    (finding,) = device.findings()
    assert (finding.rule, finding.severity) == ("device-differs", Severity.WARNING)
    assert "sample 2" in finding.message and "--accept" in finding.fix


@pytest.mark.parametrize(("by", "rules"), [(1e-4, []), (1.1e-4, []), (2e-4, ["device-differs"])])
def test_what_was_accepted_passes_and_a_larger_difference_is_an_error_although_both_are_right(
    device: Device, by: float, rules: list[str]
) -> None:
    device.give(changed(1e-4))
    accepted = accepted_fields(device.judged())
    assert accepted.keys() == {"device_sqnr_db"}
    for path in device.outputs.rglob("*.raw"):
        path.unlink()
    for number, sample in enumerate(changed(by)):
        sample["0"].tofile(device.outputs / device.program.name / f"output_{number}_0.raw")
    findings = device.findings(**accepted)
    assert [finding.rule for finding in findings] == rules
    assert all(finding.severity is Severity.ERROR for finding in findings)


def test_a_device_that_misses_a_threshold_of_the_suite_is_red(device: Device) -> None:
    device.give(changed(0.05))
    (accuracy, _) = device.findings()
    assert (accuracy.rule, accuracy.severity) == ("device-accuracy", Severity.ERROR)


def test_what_no_device_has_run_is_red_and_what_a_runner_needs_is_written(device: Device) -> None:
    (finding,) = device.findings()
    assert (finding.rule, finding.severity) == ("device-not-run", Severity.ERROR)
    kit = device.logs / "to-run" / device.program.name
    assert str(kit) in finding.fix and (kit / "program.pte").read_bytes() == b"a program"
    lists = (kit / "input_list.txt").read_text(encoding="utf-8").split()
    assert lists == ["input_0_0.raw", "input_1_0.raw", "input_2_0.raw"]
    for name, sample in zip(lists, FLOAT, strict=True):
        assert (kit / name).read_bytes() == sample["0"].tobytes()


def test_outputs_of_too_few_samples_are_red(device: Device) -> None:
    device.give(EMULATED[:2])
    assert [finding.rule for finding in device.findings()] == ["device-missing"]


@pytest.mark.parametrize("outputs", [None, Path("nowhere")])
def test_a_folder_that_is_not_there_is_a_mistake_of_the_command_line(
    device: Device, outputs: Path | None
) -> None:
    with pytest.raises(UsageError, match="--outputs"):
        check_device(DeviceFlags(outputs=outputs))


def test_a_program_that_did_not_run_on_the_emulator_has_no_row(device: Device) -> None:
    flags = DeviceFlags(outputs=device.outputs)
    assert device_results([device.program], lambda program: None, flags, device.logs, NO_HOST) == {}
    assert verdict_on_device(device.program, None, Fix("x"), {}) is None
