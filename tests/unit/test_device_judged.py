"""Outputs from anywhere are judged as the emulator's are, and where they differ from those is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

from ci.__main__ import VERBS
from ci.models.inputs import Sample
from ci.report.collect import report_in
from ci.report.page import html
from ci.suite.accuracy import compare
from ci.suite.judged_samples import JudgedSamples, SampleFacts, digest_of_files, samples_path, write_samples
from ci.suite.model_outputs import ChosenValues, ModelOutputs
from provisioning.base.command_line import main

SAMPLES = 4
Write = Callable[[Path, list[Sample]], None]


def draw(seed: int) -> list[Sample]:
    generator = numpy.random.default_rng(seed)
    return [
        {"0": generator.random((1, 5), numpy.float32), "1": generator.integers(0, 9, (2, 3))}
        for _ in range(SAMPLES)
    ]


FLOAT = draw(0)
EMULATED = [{"0": row["0"] + numpy.float32(1e-3), "1": row["1"]} for row in FLOAT]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program as `compile --keep-samples` leaves it."""
    path = tmp_path / "net.pte"
    path.write_bytes(b"a program")
    facts = SampleFacts(program=digest_of_files([path]), soc="SM8750", build_id="v2", kind="fp16")
    judged = JudgedSamples(
        facts=facts, inputs=draw(1), exact=ModelOutputs(FLOAT), reference=ModelOutputs([]), emulated=EMULATED
    )
    write_samples(samples_path(path), judged)
    return path


def as_runner(folder: Path, samples: list[Sample]) -> None:
    for number, sample in enumerate(samples):
        for index, array in enumerate(sample.values()):
            array.tofile(folder / f"output_{number}_{index}.raw")


def as_net_run(folder: Path, samples: list[Sample]) -> None:
    for number, sample in enumerate(samples):
        (folder / f"Result_{number}").mkdir()
        for name, array in sample.items():
            array.tofile(folder / f"Result_{number}" / f"output_{name}.raw")


def as_net_run_with_32_bits(folder: Path, samples: list[Sample]) -> None:
    as_net_run(folder, [{"0": sample["0"], "1": sample["1"].astype(numpy.int32)} for sample in samples])


def as_numpy(folder: Path, samples: list[Sample]) -> None:
    arrays = {f"output_{name}": numpy.stack([sample[name] for sample in samples]) for name in samples[0]}
    numpy.savez(folder / "outputs.npz", **arrays)  # type: ignore[arg-type]


class Judged:
    def __init__(self, program: Path, outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
        reports = program.parent / "reports"
        words = [str(program), "--on", "folder", "--outputs", str(outputs), "--reports", str(reports)]
        verbs = {"run_device": VERBS["run_device"]}
        self.code = main("python -m ci", "", verbs, ["run_device", *words])
        self.printed = "".join(capsys.readouterr())
        report = reports / "run_device.json"
        self.report: Any = json.loads(report.read_text(encoding="utf-8")) if report.is_file() else {}

    @property
    def row(self) -> Any:
        return self.report["metrics"]["programs"]["net"]

    @property
    def rules(self) -> list[str]:
        return [finding["rule"] for finding in self.report["findings"]]


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    folder = tmp_path / "from the phone"
    folder.mkdir()
    return folder


FORMS = (as_runner, as_net_run, as_net_run_with_32_bits, as_numpy)


@pytest.mark.parametrize("write", FORMS)
def test_the_emulators_own_outputs_are_equal_to_the_bit_and_have_its_figures(
    program: Path, outputs: Path, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    write(outputs, EMULATED)
    judged = Judged(program, outputs, capsys)
    assert (judged.code, judged.rules, judged.row["verdict"]) == (0, [], "pass")
    assert judged.row["against_emulator"]["equal"] == 1 and judged.row["against_emulator"]["differing"] == 0
    assert judged.row["figures"] == judged.row["emulated"] == compare(ModelOutputs(FLOAT).pairs(EMULATED))
    assert "to the bit" in judged.printed


@pytest.mark.parametrize("write", FORMS)
def test_one_value_that_differs_is_found_and_its_output_and_sample_are_named(
    program: Path, outputs: Path, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    planted = [{name: array.copy() for name, array in sample.items()} for sample in EMULATED]
    planted[2]["0"][0, 3] = numpy.nextafter(planted[2]["0"][0, 3], numpy.float32(2))
    write(outputs, planted)
    judged = Judged(program, outputs, capsys)
    # It reaches the thresholds: the difference is a finding of its own.
    assert (judged.code, judged.rules) == (0, ["device-differs"])
    assert "output 0 of sample 2" in judged.report["findings"][0]["message"]
    assert judged.row["against_emulator"]["differing"] == pytest.approx(1 / (SAMPLES * 11))


def test_a_device_that_misses_what_is_required_is_red_although_the_emulator_passes(
    program: Path, outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    as_runner(outputs, [{"0": sample["0"] * 2, "1": sample["1"]} for sample in EMULATED])
    judged = Judged(program, outputs, capsys)
    assert (judged.code, judged.rules[0], judged.row["verdict"]) == (1, "device-accuracy", "fail")
    assert judged.row["emulated"]["sqnr_db"] > 40


def test_the_report_of_a_device_that_gives_garbage_can_be_read_and_shown(
    program: Path, outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    as_runner(outputs, [{"0": sample["0"] * numpy.float32(3e37), "1": sample["1"]} for sample in EMULATED])
    assert Judged(program, outputs, capsys).code == 1
    page = html([report_in(program.parent / "reports" / "run_device.json")])
    assert "The device against the emulator" in page


def cut(folder: Path) -> None:
    path = folder / "output_1_0.raw"
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(folder: Path) -> None:
    path = folder / "output_1_0.raw"
    path.write_bytes(path.read_bytes() + b"more")


def lose(folder: Path) -> None:
    (folder / "output_3_1.raw").unlink()


def add(folder: Path) -> None:
    (folder / "output_4_0.raw").write_bytes(b"more")


def add_another_form(folder: Path) -> None:
    as_numpy(folder, EMULATED)


def spoil(folder: Path) -> None:
    numpy.full((1, 5), numpy.nan, numpy.float32).tofile(folder / "output_0_0.raw")


@pytest.mark.parametrize(
    ("damage", "rule"),
    [
        (cut, "device-shape"),
        (lengthen, "device-shape"),
        (lose, "device-missing"),
        (add, "device-extra"),
        (add_another_form, "device-extra"),
        (spoil, "device-not-finite"),
    ],
)
def test_outputs_that_are_not_all_of_this_program_are_refused(
    program: Path,
    outputs: Path,
    damage: Callable[[Path], None],
    rule: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    as_runner(outputs, EMULATED)
    damage(outputs)
    judged = Judged(program, outputs, capsys)
    assert (judged.code, judged.rules, judged.row["verdict"]) == (1, [rule], "fail")


@pytest.mark.parametrize("rename", [{"0": "0", "1": "2"}, {"0": "0"}])
def test_arrays_of_other_names_are_refused(
    program: Path, outputs: Path, rename: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    as_numpy(outputs, [{new: sample[old] for old, new in rename.items()} for sample in EMULATED])
    judged = Judged(program, outputs, capsys)
    assert (judged.code, judged.rules) == (1, ["device-missing"])


@pytest.mark.parametrize("content", [b"no zip", b""])
def test_a_file_that_has_no_arrays_is_refused(
    program: Path, outputs: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (outputs / "outputs.npz").write_bytes(content)
    assert Judged(program, outputs, capsys).rules == ["device-missing"]


def test_a_file_with_more_than_the_outputs_is_not_unpacked(
    program: Path, outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    numpy.savez_compressed(outputs / "outputs.npz", output_0=numpy.zeros(1 << 24, numpy.uint8))
    assert Judged(program, outputs, capsys).rules == ["device-shape"]


@pytest.mark.parametrize("file", ["", "dataset-out.h5"])
def test_a_folder_without_outputs_is_a_mistake_of_the_command_line(
    program: Path, outputs: Path, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if file:
        (outputs / file).touch()
    judged = Judged(program, outputs, capsys)
    assert judged.code == 2 and ("numpy.savez" in judged.printed) == bool(file)


def test_samples_of_another_program_are_refused(
    program: Path, outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    as_runner(outputs, EMULATED)
    program.write_bytes(b"another program")
    assert Judged(program, outputs, capsys).code == 1


@pytest.mark.parametrize(("content", "code"), [(None, 2), (b"no samples", 1)])
def test_a_program_without_its_samples_names_the_command_that_keeps_them(
    program: Path, outputs: Path, content: bytes | None, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    as_runner(outputs, EMULATED)
    samples_path(program).unlink()
    if content:
        samples_path(program).write_bytes(content)
    judged = Judged(program, outputs, capsys)
    assert judged.code == code and "--keep-samples" in judged.printed


def test_indices_that_choose_equal_values_agree_on_a_device_too(
    tmp_path: Path, outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "net.pte"
    program.write_bytes(b"a program")
    values = numpy.array([[1, 1, 0, 0, 0, 0]] * 2, numpy.float32)
    chosen = {"0": ChosenValues([values], 1, 0.1)}
    first, other = [{"0": numpy.array([[0], [0]])}], [{"0": numpy.array([[1], [0]])}]
    facts = SampleFacts(program=digest_of_files([program]), soc="SM8750", build_id="v2", kind="8a8w")
    samples = JudgedSamples(
        facts=facts,
        inputs=draw(1)[:1],
        exact=ModelOutputs(first, chosen),
        reference=ModelOutputs(first, chosen),
        emulated=first,
    )
    write_samples(samples_path(program), samples)
    as_runner(outputs, other)
    judged = Judged(program, outputs, capsys)
    assert (judged.code, judged.rules) == (0, ["device-differs"])
    assert judged.row["figures"]["choice_agreement"] == 1 and judged.row["figures"]["agreement"] == 0.5


@pytest.mark.parametrize(
    "words",
    [
        ("net.pte", "--on", "folder"),
        ("net.pte", "--outputs", "of"),
        ("net.pte", "--on", "ssh"),
        ("net.pte", "--on", "adb", "--ssh", "root@board"),
        ("net.pte", "--push-only"),
        ("net.pte", "--inputs", "list.txt"),
        ("bundle", "--on", "folder", "--outputs", "of"),
        ("--outputs", "of"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(words: tuple[str, ...], tmp_path: Path) -> None:
    verbs = {"run_device": VERBS["run_device"]}
    assert main("python -m ci", "", verbs, ["run_device", *words, "--reports", str(tmp_path)]) == 2
