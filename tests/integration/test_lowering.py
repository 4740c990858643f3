"""Lowering with the real compiler: what is left on the CPU, what is kept, and what goes wrong in words."""

from __future__ import annotations

import ast
import math
import random
import re
from collections.abc import Iterable
from datetime import date
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ci.artifacts.program import digest_without_time
from ci.lanes.executorch.suite import programs_of
from ci.report.collect import rows_of
from provisioning.base.findings import Severity
from provisioning.base.settings import ROOT
from tests.support import whole
from tests.support.lowering_suites import Done, environment, run, suite
from tests.support.sdk import sdk_root
from tests.support.typed import typed

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]

BAD = {
    "raises": ("lowering-factory", "RuntimeError: no such checkpoint"),
    "killed": ("lowering-machine", "ended by SIGKILL, as the system does when memory runs out"),
    "too_large": ("lowering-machine", "can't allocate memory"),
    "decides": (
        "lowering-export",
        "The model branches on, or takes a size from, a value that is only known at run time",
    ),
    "spectrum": ("lowering-compile", "complex numbers, which ExecuTorch does not have"),
    "largest": ("lowering-compile", "torch.return_types.max"),
    "indices": ("lowering-compile", "output 1 is int32 in the program and int64 in the model"),
    "integers": ("lowering-compile", "output 0 is float32 in the program and int64 in the model"),
    "no_number": ("lowering-quantize", "NaN"),
    "places": ("lowering-compile", "The size of a tensor depends on values"),
    "changes_input": ("lowering-compile", "the model changes its input in place (lowering_models.py:"),
    "alone": ("lowering-factory", "found a module alone, and the suite names no inputs"),
    "no_module": ("lowering-factory", "importing no_such_module raises ModuleNotFoundError"),
    "nothing_excluded": ("lowering-suite", "nodes = 'conv*' matches no node; nodes are "),
}
"""By factory or case: the rule of its one finding, and what it names."""

DYING = {
    "recurrent": ("8a8w", "aten.full.default", "self.gru(x)", True),
    "volume": ("16a4w", "aten.convolution.default", "self.conv(x)", False),
    "normed": ("16a4w", "aten._native_batch_norm_legit_no_training.default", "", True),
}
"""By factory: the scheme, the operator that QNN dies of, and its line, none of which QNN's log names; and
whether ExecuTorch has a kernel of it for the CPU: there is none for three dimensions."""

WITH_WHOLE = (
    "alone",
    "places",
    "spectrum",
    "changes_input",
    "named",
    "largest",
    "indices",
    "integers",
    "no_number",
)
"""Cases that the whole suites have beside the ordinary run's, as they go the way of others."""


def dying(name: str) -> dict[str, str]:
    return {"factory": f"lowering_models:{name}", "scheme": DYING[name][0]}


@pytest.fixture(scope="module")
def done(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Done:
    base = tmp_path_factory.mktemp("bad")
    cases = {name: {"factory": f"lowering_models:{name}"} for name in (*BAD, "fixed")}
    cases["changes_input"]["scheme"] = "fp16"
    cases["no_module"] = {"factory": "no_such_module:net"}
    cases["nothing_excluded"] = {"run": 'nodes = { fp16 = ["conv*"] }'}
    inputs = "inputs = [{ shape = [1, 8, 16], low = -2 }]"
    cases["named"] = {"factory": "lowering_models:alone", "case": inputs}
    cases["good"] = {}
    if not request.config.getoption(whole.FLAG):
        cases = {name: case for name, case in cases.items() if name not in WITH_WHOLE}
    (base / "lowering_extra.py").write_text("WIDTH = 32\n")
    return run("test_lowering", base, "--suite", suite(base, cases))


def of_cases(cases: Iterable[str]) -> pytest.MarkDecorator:
    marked = [pytest.param(case, marks=pytest.mark.whole if case in WITH_WHOLE else ()) for case in cases]
    return pytest.mark.parametrize("case", marked)


@pytest.mark.long("each bad model starts a worker that imports torch")
class TestBadInput:
    @of_cases(BAD)
    def test_each_ends_in_one_finding_that_says_why(self, done: Done, case: str) -> None:
        rule, message = BAD[case]
        (finding,) = [finding for finding in done.report.findings if finding.subject.startswith(f"{case}/")]
        assert finding.rule == rule and message in finding.message

    def test_where_a_model_decides_by_a_value_is_reported_in_one_line(self, done: Done) -> None:
        (finding,) = [finding for finding in done.report.findings if finding.subject.startswith("decides/")]
        assert "lowering_models.py:" in finding.message and "\n" not in finding.message
        assert "torch.where" in finding.fix

    def test_what_was_changed_of_a_factorys_model_is_a_warning(self, done: Done) -> None:
        assert done.rules("fixed") == {"factory-training-mode", "factory-fixed-inputs"}

    @of_cases(["good", "named"])
    def test_the_good_ones_among_them_are_good(self, done: Done, case: str) -> None:
        assert not done.rules(case) and done.code == 3
        rows: Any = done.report.metrics["programs"]
        (row,) = (row for name, row in rows.items() if name.startswith(f"{case}/"))
        assert (row["delegates"], row["cached"]) == (1, False) and Path(row["program"]).is_file()
        # As the report's page reads it.
        (shown,) = (row for row in rows_of(done.report, "programs").values() if row.case == case)
        assert (shown.delegates, shown.cpu_operators, shown.scheme) == (1, 0, row["scheme"])
        assert len(shown.partition) == 1 and shown.costs["pte_bytes"]


@pytest.mark.whole
@pytest.mark.parametrize("name", DYING)
def test_the_operator_that_the_compiler_dies_of_is_named_with_a_fix_that_works_where_there_is_one(
    tmp_path: Path, name: str
) -> None:
    _, operator, code, has_kernel = DYING[name]
    died = run("test_lowering", tmp_path, "--suite", suite(tmp_path, {name: dying(name)}))
    (finding,) = (finding for finding in died.report.findings if finding.subject.startswith(f"{name}/"))
    assert (died.code, finding.rule) == (1, "lowering-compile")
    assert operator in finding.message and code in finding.message
    if code:
        assert finding.place
        lines = (tmp_path / finding.place.file).read_text(encoding="utf-8").splitlines()
        assert code in lines[finding.place.line - 1]
    options = re.findall(r"(?:cpu_nodes|modules) = \[.*?\]|delegates = \d+|cpu_budget = \d+", finding.fix)
    assert bool(options) is has_kernel
    if not has_kernel:
        assert operator in finding.fix
        return
    cases = {name: {**dying(name), "run": "\n".join(options)}}
    ran = run("test_emulator", tmp_path, "--suite", suite(tmp_path, cases, "followed.toml"))
    assert not [finding for finding in ran.report.findings if finding.severity == Severity.ERROR]
    assert ran.code == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what executorch imports
def test_an_operator_leaves_a_partition_with_the_constants_that_are_computed_for_it() -> None:
    import torch

    from ci.operators.partition_parts import Partition

    class Shifted(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.relu() + torch.arange(4) * 2

    partition = Partition(torch.export.export(Shifted(), (torch.rand(2, 4),), strict=True), [])
    constants = {node.name: {row.name for row in partition.constants_of(node)} for node in partition.calls}
    # What is computed of the input is none.
    assert constants == {"relu": set(), "arange": set(), "mul": {"arange"}, "add": {"mul", "arange"}}
    assert {node.name for node in partition.operators} == {"relu", "add"}


def test_a_chip_that_the_sdk_lacks_is_one_finding_without_compiling(tmp_path: Path) -> None:
    old = tmp_path / "sdk"
    (old / "lib").mkdir(parents=True)
    (old / "lib/x86_64-linux-clang").symlink_to(sdk_root() / "lib/x86_64-linux-clang")
    (old / "lib/hexagon-v79/unsigned").mkdir(parents=True)
    done = run(
        "test_lowering",
        tmp_path,
        *("--suite", suite(tmp_path, {"net": {"soc": "SM8850"}})),
        environ=environment(QNN_SDK_ROOT=str(old)),
    )
    assert (done.code, done.rules("net")) == (1, {"lowering-soc"})
    assert "SM8850 has HTP v81, and QNN v2.49.40" in done.report.findings[0].message


CHIPS = ("SM8650", "SM8750", "SM8550", "SM8850")


def _digests(done: Done) -> dict[str, str]:
    programs: Any = done.report.metrics["programs"]
    return {name: digest_without_time(Path(row["program"])) for name, row in programs.items()}


@pytest.mark.long("three compiles")
def test_chips_share_what_is_alike_and_each_program_is_the_one_that_is_compiled_alone(tmp_path: Path) -> None:
    cases = {"net": {"scheme": "8a8w", "soc": 'SM8650", "SM8750'}}
    flags = ("--suite", suite(tmp_path, cases), "--no-cache")
    both = run("test_lowering", tmp_path / "both", *flags)
    alone = run("test_lowering", tmp_path / "alone", *flags, "-k", "SM8750")
    assert both.code == alone.code == 0
    assert _digests(both)["net/8a8w/SM8750"] == _digests(alone)["net/8a8w/SM8750"]
    assert len({*_digests(both).values()}) == 2
    assert "done as a whole" not in both.err and not list(tmp_path.rglob("*.common.log"))


@pytest.mark.whole
def test_a_chip_that_cannot_what_the_others_can_fails_alone(tmp_path: Path) -> None:
    cases = {"net": {"soc": 'SM8650", "SM8450", "SM8750'}}
    done = run("test_lowering", tmp_path, "--suite", suite(tmp_path, cases), "--no-cache")
    assert done.code == 1 and "done as a whole" in done.err
    errors = {row.subject for row in done.report.findings if row.severity is Severity.ERROR}
    assert errors == {"net/16a16w/SM8450"}


SHIPPED = ROOT / "manifests/suites/models.toml"


@pytest.mark.whole
@pytest.mark.parametrize("case", sorted({program.case_name for program in programs_of(SHIPPED)}))
def test_a_shipped_model_compiled_for_four_chips_at_once_is_the_one_compiled_for_each_alone(
    tmp_path: Path, case: str
) -> None:
    def of_chips(folder: str, *chips: str) -> dict[str, str]:
        shipped = SHIPPED.read_text(encoding="utf-8")
        text = re.sub(r"^socs = \[.*\]$", f"socs = {list(chips)}", shipped, flags=re.MULTILINE)
        path = tmp_path / folder / "suite.toml"
        path.parent.mkdir()
        path.write_text(text, encoding="utf-8")
        done = run("test_lowering", path.parent, "--suite", path, "--no-cache", "-k", f"{case}/")
        return _digests(done)

    at_once = of_chips("all", *CHIPS)
    for chip in CHIPS:
        alone = of_chips(chip, chip)
        assert alone == {name: digest for name, digest in at_once.items() if name.endswith(f"/{chip}")}


def test_what_lowers_for_several_chips_does_what_executorch_does_for_one() -> None:
    """`lower_for_chips` follows this function, which lowers for one chip. If it is another one, compare."""
    place = find_spec("executorch.backends.qualcomm.utils")
    assert place and place.submodule_search_locations
    (folder,) = place.submodule_search_locations
    text = Path(folder, "utils.py").read_text(encoding="utf-8")
    name = "to_edge_transform_and_lower_to_qnn"
    functions = (node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef))
    (function,) = (ast.get_source_segment(text, node) for node in functions if node.name == name)
    assert function and sha256(function.encode()).hexdigest()[:16] == "5a4219b549a4bce8"


@pytest.mark.whole
def test_a_program_that_is_compiled_twice_is_the_same(tmp_path: Path) -> None:
    """A tenth of the shipped programs, others each day: a cached result would else be one of several."""
    listed = typed("test_lowering", "--list", env=environment()).stdout.splitlines()
    drawn = random.Random(date.today().isoformat()).sample(listed, math.ceil(len(listed) / 10))
    names = [line.split()[0] for line in drawn]
    chosen = [word for name in names for word in ("-k", name)]
    digests = []
    for folder in ("first", "second"):
        ended = run("test_lowering", tmp_path / folder, "--no-cache", *chosen)
        programs: Any = ended.report.metrics["programs"]
        assert ended.code == 0 and set(programs) == set(names), ended.err
        digests.append({name: digest_without_time(Path(row["program"])) for name, row in programs.items()})
    assert digests[0] == digests[1]
