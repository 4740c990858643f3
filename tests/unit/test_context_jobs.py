"""A program that is more than one context is refused for devices that run contexts, with the reason."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest

from ci.models.inputs import Sample
from ci.suite.context_jobs import DeviceWanted, NotOneContext, prepare_job
from ci.suite.judged_samples import JudgedSamples, SampleFacts
from ci.suite.model_outputs import ModelOutputs
from tests.support.programs import program


def test_a_program_with_an_operator_on_the_cpu_is_no_context_and_the_operator_is_named(
    tmp_path: Path,
) -> None:
    path = tmp_path / "net.pte"
    path.write_bytes(program())
    sample: Sample = {"0": numpy.zeros((1, 10), numpy.float32)}
    samples = JudgedSamples(
        facts=SampleFacts(program="digest", soc="SM8650", build_id="v2", kind="fp16"),
        inputs=[sample],
        exact=ModelOutputs([sample]),
        reference=ModelOutputs([]),
        emulated=[sample],
    )
    with pytest.raises(NotOneContext, match=r"aten::erf.out"):
        prepare_job(
            "net", path, samples, tmp_path / "libQnnSystem.so", DeviceWanted(name="a phone"), tmp_path
        )
