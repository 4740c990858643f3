"""`compile --suite`: what is written to a suite, and what is not touched."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from ci.__main__ import VERBS
from ci.lanes.executorch.suite import SUITES, programs_of
from ci.models.user_model import UserModel, user_model
from ci.one_model.into_suite import Addition, factory_in, suite_with
from ci.one_model.product import Product
from ci.suite.options import stage_options
from ci.suite.suite_file import Thresholds
from provisioning.base.command_line import arguments_of
from provisioning.base.errors import ManifestError, ToolkitError, UsageError
from tests.support.workflows import WORKFLOWS

MODEL = {"factory": "net:make"}
RUN = {"precision": "16a8w", "cpu_nodes": ["x"], "delegates": None}
AUTHORS = """\
schema = 2  # mine

[case.net]
factory = "net:make"
inputs = [{ shape = [1] }]

[[case.net.run]]  # in two parts
lane = "executorch"
precision = "16a8w"
label = "parts"
delegates = 2
socs = ["SM8550"]

[[case.net.run]]
lane = "executorch"
precision = "w8a16"
socs = ["SM8650"]
tags = ["nightly"]
thresholds = { sqnr_db = 20 }
"""


def extended(suite: Path, factory: str = "net:make") -> int:
    text, number = suite_with(suite, "net", {"factory": factory}, "executorch", RUN, ["SM8750"])
    suite.write_text(text)
    return number


def addition(suite: Path, run: Mapping[str, object], case: Mapping[str, object] = MODEL) -> Addition:
    return Addition(SUITES, suite, "net", case, run, ["SM8650"], "wheels")


def product(**fields: object) -> Product:
    return Product({}, run_fields=fields)


def test_the_command_that_is_printed_accepts_the_run_and_nothing_is_accepted_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = tmp_path / "models.toml"
    addition(suite, {"precision": "fp16"}).write([product(cpu_nodes=["x"], cpu_budget=1)])
    assert [path.name for path in tmp_path.iterdir()] == ["models.toml"]
    (program,) = programs_of(suite)
    assert (program.run.cpu_nodes, program.run.cpu_budget) == (("x",), 1)
    (command,) = (line for line in capsys.readouterr().out.splitlines() if "--accept" in line)
    _, _, typed = command.partition("test_emulator ")
    options = stage_options(arguments_of(VERBS["test_emulator"], typed.removeprefix("-- ").split()))
    assert options.accept and options.choice.suites == (suite,)
    assert SUITES.choose([program], words=options.choice.words) == [program]


def test_chips_of_several_kinds_are_no_one_run(tmp_path: Path) -> None:
    suite = tmp_path / "models.toml"
    with pytest.raises(UsageError, match="delegates"):
        addition(suite, {"precision": "fp16"}).write([product(delegates=1), product(delegates=2)])
    assert not suite.exists()


def test_the_workflow_that_is_printed_may_call_the_gate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ci").mkdir()
    (tmp_path / ".git").mkdir()
    addition(tmp_path / "ci/mine.toml", {"precision": "fp16"}).write([product()])
    printed = yaml.safe_load("name: " + capsys.readouterr().out.partition("\nname: ")[2])
    (job,) = printed["jobs"].values()
    assert job["with"] == {"suite": "ci/mine.toml"}
    jobs = WORKFLOWS["gate.yml"]["jobs"].values()
    asked = {right for asking in jobs for right in asking["permissions"].items()}
    assert asked == set(job["permissions"].items())


def test_what_the_author_demands_of_a_run_stays(tmp_path: Path) -> None:
    suite = tmp_path / "models.toml"
    suite.write_text(AUTHORS)
    addition(suite, {"precision": "16a8w"}, {}).write([product()])
    assert "thresholds = { sqnr_db = 20 }" in suite.read_text()
    (_, *mine) = programs_of(suite)
    assert [program.thresholds for program in mine] == [Thresholds(sqnr_db=20)]


def test_sizes_of_an_input_are_the_same_when_it_is_written_again(tmp_path: Path) -> None:
    suite, case = tmp_path / "models.toml", {"model": "net.onnx", "dimensions": {"x": (1, 3, 64, 64)}}
    for _ in range(2):
        text, number = suite_with(suite, "net", case, "onnx", {"precision": "fp16"}, ["SM8650"])
        suite.write_text(text)
        assert number == 0 and "x = [1, 3, 64, 64]" in text


def test_an_authors_suite_keeps_everything_but_the_run_that_is_the_same(tmp_path: Path) -> None:
    suite = tmp_path / "models.toml"
    suite.write_text(AUTHORS)
    assert extended(suite) == 1
    text = suite.read_text()
    assert text.startswith(AUTHORS.partition('precision = "w8a16"')[0])
    (parts, *mine) = programs_of(suite)
    assert (parts.run.delegates, parts.soc) == (2, "SM8550")
    assert [program.soc for program in mine] == ["SM8650", "SM8750"]
    assert mine[0].run.tags == ("nightly",) and mine[0].run.cpu_nodes == ("x",)


@pytest.mark.parametrize("spelling", ["u16s8", "s16/s8"])
def test_a_run_is_the_same_by_the_scheme_that_its_lane_computes(tmp_path: Path, spelling: str) -> None:
    suite = tmp_path / "models.toml"
    suite.write_text(AUTHORS.replace("w8a16", spelling))
    assert extended(suite) == 1
    assert [program.soc for program in programs_of(suite)] == ["SM8550", "SM8650", "SM8750"]


def test_what_is_no_precision_is_named_as_the_suites_mistake(tmp_path: Path) -> None:
    suite = tmp_path / "models.toml"
    suite.write_text(AUTHORS.replace('"w8a16"', "16"))
    with pytest.raises(ManifestError):
        addition(suite, RUN, {}).require_possible()


def test_refuses_another_model_of_that_name_and_what_is_no_toml(tmp_path: Path) -> None:
    suite = tmp_path / "models.toml"
    suite.write_text(AUTHORS)
    with pytest.raises(UsageError):
        extended(suite, "other:make")
    suite.write_text("[case")
    with pytest.raises(ManifestError):
        extended(suite)


def test_a_model_is_named_as_the_suites_folder_finds_it(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "net.py").write_text("def make(): ...\n")

    def named(target: str, suite: Path) -> str:
        return factory_in(user_model(target, tmp_path), suite)

    here, below = tmp_path / "models.toml", tmp_path / "package" / "models.toml"
    assert named("package.net:make", here) == "package.net:make"
    assert named("package/net.py:make", here) == "package.net:make"
    assert named("package/net.py:make", below) == "net:make"
    assert named("installed.net:make", below) == "installed.net:make"
    pt2 = UserModel("net", "net.pt2", tmp_path, tmp_path / "net.pt2")
    assert factory_in(pt2, below) == "../net.pt2"
    with pytest.raises(ToolkitError):
        named("package.net:make", below)


def test_a_run_of_another_lane_is_another_run(tmp_path: Path) -> None:
    suite = tmp_path / "models.toml"
    suite.write_text(
        AUTHORS.replace('"executorch"', '"onnx"').replace('label = "parts"\ndelegates = 2\n', "")
    )
    assert extended(suite) == 0
    assert [program.name for program in programs_of(suite)] == ["net/16a8w/SM8750"]
