"""A program on a hosted phone: AI Hub's client and a stand-in whose phones are QNN's emulator."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest

from ci.models.inputs import Sample
from ci.report.collect import report_in
from ci.report.page import html
from ci.suite.judged_samples import JudgedSamples, SampleFacts, digest_of_files, samples_path, write_samples
from ci.suite.model_outputs import ModelOutputs
from provisioning.base.settings import DEFAULT_SOC, ROOT
from provisioning.build_ids import build_ids
from provisioning.stage_variables import HOST_LIBRARIES
from tests.support.hub import OTHER_PHONE, PHONE, TOKEN, Play, StandIn, stand_in
from tests.support.runner import Home, dist, home, programs, runner_reports
from tests.support.sdk import qnn_environment, sdk_root
from tests.support.typed import typed

__all__ = ["dist", "home", "programs", "runner_reports"]

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.long("each starts the service, and its client twice"),
]

INPUTS, OUTPUTS = ((2, 4), (5, 3)), ((5, 6), (5, 6))
"""The shapes of the program `pair`."""
SAMPLES = 2


@pytest.fixture
def program(home: Home) -> Path:
    """A program with the samples that the emulator ran, as `compile --keep-samples` leaves it."""
    generator = numpy.random.default_rng(0)
    inputs: list[Sample] = []
    lines = []
    for number in range(SAMPLES):
        sample = {str(i): generator.random(shape, numpy.float32) for i, shape in enumerate(INPUTS)}
        for index, array in sample.items():
            array.tofile(home.folder / f"drawn_{number}_{index}.raw")
        lines.append(" ".join(f"drawn_{number}_{index}.raw" for index in sample))
        inputs.append(sample)
    home.write("pair.txt", "\n".join(lines) + "\n")
    assert home.program("pair", environ=qnn_environment()).code == 0
    emulated: list[Sample] = [
        {
            str(i): numpy.frombuffer(home.read(f"out/output_{number}_{i}.raw"), numpy.float32).reshape(shape)
            for i, shape in enumerate(OUTPUTS)
        }
        for number in range(SAMPLES)
    ]
    path = home.folder / "pair.pte"
    (build_id,) = build_ids(libraries() / "libQnnHtp.so")
    facts = SampleFacts(program=digest_of_files([path]), soc=DEFAULT_SOC, build_id=build_id, kind="fp16")
    write_samples(samples_path(path), judged_samples(facts, inputs, emulated))
    return path


def judged_samples(facts: SampleFacts, inputs: Sequence[Sample], emulated: Sequence[Sample]) -> JudgedSamples:
    """The float model gives what the emulator gives."""
    exact, reference = ModelOutputs(emulated), ModelOutputs([])
    return JudgedSamples(facts=facts, inputs=inputs, exact=exact, reference=reference, emulated=emulated)


def libraries() -> Path:
    return sdk_root() / "lib" / HOST_LIBRARIES


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[StandIn]:
    folder = tmp_path / "hub"
    folder.mkdir()
    with stand_in(folder, playing()) as service:
        yield service


def playing(**changes: Any) -> Play:
    return replace(Play(libraries=str(libraries())), **changes)


PHONE_OF_PROGRAM = str(OTHER_PHONE["name"])


class Asked:
    """`run_device --on aihub` as it is typed, and its report."""

    def __init__(self, hub: StandIn, program: Path, *flags: str, **environ: str) -> None:
        reports = hub.folder / "reports"
        shutil.rmtree(reports, ignore_errors=True)
        done = typed(*words_for(hub, program), *flags, env={**environ_of(hub), **environ})
        self.code, self.printed = done.returncode, done.stdout + done.stderr
        text = (reports / "run_device.json").read_text(encoding="utf-8")
        written = [path.read_text(errors="replace") for path in reports.rglob("*") if path.is_file()]
        assert TOKEN not in "".join([self.printed, *written])
        self.report: Any = json.loads(text)

    @property
    def row(self) -> Any:
        return self.report["metrics"]["programs"]["pair"]

    @property
    def rules(self) -> list[str]:
        return [finding["rule"] for finding in self.report["findings"]]


def words_for(hub: StandIn, program: Path) -> list[str]:
    words = ["run_device", str(program), "--on", "aihub", "--reports", str(hub.folder / "reports")]
    return [*words, "--store", str(hub.folder / "store")]


def environ_of(hub: StandIn) -> dict[str, str]:
    return {**os.environ, **hub.environ, "QNN_SDK_ROOT": str(sdk_root())}


YES = ("--device", PHONE_OF_PROGRAM, "--yes")


def test_a_phone_that_computes_as_the_emulator_is_equal_to_the_bit(hub: StandIn, program: Path) -> None:
    asked = Asked(hub, program, *YES, "--measure")
    assert (asked.code, asked.rules, asked.row["verdict"]) == (0, [], "pass"), asked.printed
    assert asked.row["against_emulator"]["equal"] == 1
    assert asked.row["ran_on"]["device"] == PHONE_OF_PROGRAM
    assert asked.row["ran_on"]["build_id"] == "2.50.0"
    assert asked.row["ran_on"]["profile"]["latency_us"] == 500
    page = html([report_in(hub.folder / "reports" / "run_device.json")])
    assert PHONE_OF_PROGRAM in page and "0.5 ms" in page
    # A result is cached, so nothing is uploaded that needs to be agreed to.
    again = Asked(hub, program, "--device", PHONE_OF_PROGRAM, "--measure")
    assert again.code == 0 and again.row["figures"] == asked.row["figures"]
    assert hub.requests("POST jobs") == 1


def test_a_phone_with_one_layer_that_differs_is_found_and_the_output_is_named(
    hub: StandIn, program: Path
) -> None:
    hub.plays(playing(layer_differs=True))
    asked = Asked(hub, program, *YES)
    assert "device-differs" in asked.rules
    assert 0 < asked.row["against_emulator"]["differing"] <= 1
    assert "output " in asked.report["findings"][-1]["message"]


@pytest.mark.whole
def test_what_is_uploaded_is_named_and_needs_to_be_agreed_to(hub: StandIn, program: Path) -> None:
    asked = Asked(hub, program, "--device", PHONE_OF_PROGRAM)
    assert asked.code == 2 and "--yes" in asked.printed and f"{SAMPLES} samples" in asked.printed
    assert hub.requests("POST models") == 0


@pytest.mark.whole
@pytest.mark.parametrize(
    ("play", "flags", "environ", "code", "words"),
    [
        ({}, YES, {"QAIHUB_API_TOKEN": "", "QAIHUB_CLIENT_INI": "/nowhere"}, 3, "https://"),
        ({"token": "another"}, YES, {}, 3, "QAIHUB_API_TOKEN"),
        ({}, ("--device", "Galaxy S24 Plus", "--yes"), {}, 2, PHONE_OF_PROGRAM),
        ({}, ("--device", str(PHONE["name"]), "--yes"), {}, 1, "v79"),
        ({"runtimes": ("2.47.0", "2.48.0")}, YES, {}, 3, "2.47.0, 2.48.0"),
        ({"refused": {"POST jobs": (403, "terms")}}, YES, {}, 3, "terms"),
        ({"refused": {"POST datasets": (413, "too large")}}, YES, {}, 1, "fewer samples"),
        ({"refused": {"GET devices": (503, "down")}}, YES, {}, 4, "same command"),
        ({"withdrawn": [PHONE_OF_PROGRAM]}, YES, {}, 4, PHONE_OF_PROGRAM),
        ({"state": "PROVISIONING_DEVICE"}, (*YES, "--timeout", "1"), {}, 4, "same command"),
        (
            {"state": "FAILED", "reason": "it did not load", "log": "qnn error 5000\n"},
            YES,
            {},
            1,
            "it did not load",
        ),
    ],
    ids=[
        "no token",
        "refused token",
        "unknown device",
        "other chip",
        "older runtime",
        "terms",
        "too large",
        "down",
        "withdrawn",
        "never ends",
        "failed",
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said_with_its_fix_and_exit_code(
    hub: StandIn,
    program: Path,
    play: dict[str, Any],
    flags: tuple[str, ...],
    environ: dict[str, str],
    code: int,
    words: str,
) -> None:
    hub.plays(playing(**play))
    asked = Asked(hub, program, *flags, **environ)
    assert asked.code == code and words in asked.printed, asked.printed


@pytest.mark.whole
def test_an_interrupted_command_goes_on_with_its_job_when_typed_again(hub: StandIn, program: Path) -> None:
    hub.plays(playing(state="PROVISIONING_DEVICE"))
    command = [sys.executable, "-m", "ci", *words_for(hub, program), *YES]
    with subprocess.Popen(
        command, cwd=ROOT, env=environ_of(hub), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        while not hub.requests("POST jobs"):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert process.returncode == 130
    hub.plays(playing())
    assert Asked(hub, program, *YES).code == 0
    assert hub.requests("POST jobs") == 1


@pytest.mark.whole
def test_a_program_with_an_operator_on_the_cpu_is_not_run_and_the_operator_is_named(
    hub: StandIn, program: Path, home: Home
) -> None:
    mixed = home.folder / "add.pte"
    facts = SampleFacts(program=digest_of_files([mixed]), soc=DEFAULT_SOC, build_id="v2", kind="fp16")
    sample: Sample = {"0": numpy.zeros(1, numpy.float32)}
    judged = JudgedSamples(
        facts=facts,
        inputs=[sample],
        exact=ModelOutputs([sample]),
        reference=ModelOutputs([]),
        emulated=[sample],
    )
    write_samples(samples_path(mixed), judged)
    asked = Asked(hub, mixed, *YES)
    assert (asked.code, asked.rules) == (1, ["device-not-run"])
    assert "aten::" in asked.report["findings"][0]["message"]
    assert hub.requests("GET devices") == 0
