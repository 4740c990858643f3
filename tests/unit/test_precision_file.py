"""A precision file is taken by suites, and its content decides what is compiled."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.lanes.executorch.suite import programs_of
from ci.suite.suite_file import precision_text, read_precision
from provisioning.base.errors import ManifestError

SUITE = """\
schema = 2
[case.net]
factory = "net:make"
[[case.net.run]]
lane = "executorch"
{precision}
socs = ["SM8650"]
"""


def suite(folder: Path, precision: str = 'precision_file = "net.precision.toml"') -> Path:
    path = folder / "suite.toml"
    path.write_text(SUITE.format(precision=precision))
    return path


def precision_file(folder: Path, *names: str, lane: str = "executorch") -> None:
    text = precision_text(lane, "8a8w", {"16a8w": names}, "a comment")
    (folder / "net.precision.toml").write_text(text)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    precision_file(tmp_path, "conv2d", 'a "quoted" name')
    found = read_precision(tmp_path / "net.precision.toml", "executorch")
    assert found.precision == "8a8w" and found.nodes == {"16a8w": ("conv2d", 'a "quoted" name')}


def test_a_suite_takes_precision_and_operators_from_the_file(tmp_path: Path) -> None:
    precision_file(tmp_path, "conv2d")
    (program,) = programs_of(suite(tmp_path))
    assert program.run.precision == "8a8w" and program.run.nodes == {"16a8w": ("conv2d",)}
    assert program.name == "net/8a8w-mixed/SM8650"


def test_the_files_content_and_not_its_name_is_in_the_key(tmp_path: Path) -> None:
    precision_file(tmp_path, "conv2d")
    (program,) = programs_of(suite(tmp_path))
    precision_file(tmp_path, "conv2d_1")
    (changed,) = programs_of(suite(tmp_path))
    assert changed.order != program.order
    (written_out,) = programs_of(suite(tmp_path, 'precision = "8a8w"\nnodes = { 16a8w = ["conv2d"] }'))
    assert written_out.order == program.order


@pytest.mark.parametrize("beside", ['precision = "8a8w"', 'nodes = { 16a8w = ["conv2d"] }'])
def test_nothing_that_the_file_says_is_said_beside_it(tmp_path: Path, beside: str) -> None:
    precision_file(tmp_path, "conv2d")
    with pytest.raises(ManifestError, match="precision_file"):
        programs_of(suite(tmp_path, f'precision_file = "net.precision.toml"\n{beside}'))
