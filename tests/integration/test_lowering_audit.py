"""What the real partitioner leaves on the CPU of our suites' operators, and why; and what it can quantize."""

from __future__ import annotations

import pytest

from ci.lanes.executorch.suite import AS_IT_IS
from ci.suite.precision import SCHEMES
from provisioning.base.findings import Finding
from provisioning.base.settings import ROOT
from tests.support.lowering_suites import Done, run

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]

OPERATORS = "ci/models/shipped/operators.py"
SUITES = (ROOT / "manifests/suites/models.toml", ROOT / "lab/suites/models.toml")
WORDS = (
    *("op_erf/fp16/", "op_cumprod/", "op_repeated_attention/", "op_gelu/fp16/", "op_gelu_tanh/"),
    *("op_cumprod_as_sum/", "op_grouped_attention/16a4w/"),
)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    words = [part for word in WORDS for part in ("-k", word)]
    suites = [part for path in SUITES for part in ("--suite", path)]
    return run("test_lowering", tmp_path_factory.mktemp("audit"), *suites, *words)


def _left(done: Done, case: str) -> list[Finding]:
    return [
        finding
        for finding in done.report.findings
        if finding.rule == "lowering-cpu-operator" and finding.subject.startswith(f"{case}/")
    ]


def _line(text: str, file: str = OPERATORS) -> str:
    """Where a model has it, as a finding writes it."""
    lines = (ROOT / file).read_text().splitlines()
    (number,) = [index for index, line in enumerate(lines, 1) if text in line]
    return f"{file}:{number} `"


@pytest.mark.whole
@pytest.mark.parametrize(
    ("case", "operator", "code", "consequence", "way_out"),
    [
        ("op_erf", "aten.erf.default", "torch.erf(", "", "torch.nn.functional.gelu"),
        (
            "op_cumprod",
            "aten.cumprod.default",
            "torch.cumprod(",
            "no CPU kernel",
            "torch.exp(torch.cumsum(torch.log(x)",
        ),
    ],
)
def test_what_falls_back_is_named_with_line_reason_and_measured_way_out(
    done: Done, case: str, operator: str, code: str, consequence: str, way_out: str
) -> None:
    findings = _left(done, case)
    assert findings
    for finding in findings:
        assert finding.message.startswith(f"{operator} at {_line(code)}")
        assert consequence in finding.message and "No node visitor, unsupported" in finding.message
        assert way_out in finding.fix


def test_weights_calibration_and_comparison_have_random_numbers_of_their_own() -> None:
    import torch

    from ci.models.factory import CALIBRATION_SEED, make

    loaded = make("tests.support.lowering_models:noise", {}, ROOT)
    drawn = [
        loaded.model.get_parameter("weight").flatten(),
        *(loaded.sample(n)[0] for n in (0, 1, CALIBRATION_SEED)),
    ]
    for index, first in enumerate(drawn):
        for other in drawn[:index]:
            assert abs(torch.corrcoef(torch.stack((first.detach(), other.detach())))[0, 1]) < 0.2
    again = make("tests.support.lowering_models:noise", {}, ROOT)
    assert torch.equal(again.model.get_parameter("weight"), loaded.model.get_parameter("weight"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_suite_knows_every_scheme_that_the_quantizer_has() -> None:
    from executorch.backends.qualcomm.quantizer.quantizer import QuantDtype

    names = {kind.name.removeprefix("use_") for kind in QuantDtype}
    assert names == set(SCHEMES) - set(AS_IT_IS)
