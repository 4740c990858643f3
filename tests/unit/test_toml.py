"""The line at which a key of a TOML file stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioning.base.toml_lines import Place, line_of

TEXT = """\
[case.net]
pairs = [
  ["a", "b"],
  ["a"]
]
model = "x]" # [
[[case.net.run]]
precision = "fp16"
[[case.net.run]]
precision = "8a8w"
"""


@pytest.mark.parametrize(
    ("place", "line"),
    [
        (("case", "net"), 1),
        (("case", "net", "model"), 6),
        (("case", "net", "run", 0, "precision"), 8),
        (("case", "net", "run", 1, "precision"), 10),
        (("other",), 0),
    ],
)
def test_a_key_is_found_behind_rows_of_arrays(place: Place, line: int, tmp_path: Path) -> None:
    path = tmp_path / "suite.toml"
    path.write_text(TEXT, encoding="utf-8")
    assert line_of(place, path) == line
