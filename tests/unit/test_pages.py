"""Output that pages show is what the program prints. Others: tests/integration/test_pages.py."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ci.__main__ import VERBS
from ci.diagnose.rules import failure_rules
from provisioning.__main__ import VERBS as PROVISIONING
from provisioning.base import toml
from provisioning.base.command_line import main
from provisioning.base.settings import ROOT
from tests.integration.test_pages import HELD as HELD_BY_INTEGRATION
from tests.support.onnx_models import conv_model, write
from tests.support.page_examples import Example, examples, examples_of, not_printed

HELD = {
    "docs/start.md: qnn-ci diagnose build.log",
    'docs/chips.md: qnn-ci chips "Galaxy S25"',
    'docs/chips.md: qnn-ci chips "Galaxy S24"',
    "docs/chips.md: qnn-ci validate --soc 618",
    "docs/model.md: qnn-ci compile net.py:model --precision fp16 --soc SM875O -o out --json",
    "docs/signing.md: qnn-ci sign_lpai --soc SM8650",
    "docs/onnx.md: qnn-ci compile net.onnx --option htp_perfomance_mode=burst -o out",
    "docs/upgrades.md: qnn-ci report --reports after --against before",
}


@pytest.mark.parametrize(
    "example", [example for example in examples() if example.name in HELD], ids=lambda page: page.name
)
def test_a_page_shows_what_is_printed(
    example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(conv_model(), tmp_path / "net.onnx")
    (tmp_path / "net.py").write_text("def model(): ...", encoding="utf-8")
    log = failure_rules()["datatypes-mismatch"].example
    (tmp_path / "build.log").write_text(log, encoding="utf-8")
    for name, build in (("before", "2.51.0"), ("after", "2.49.40")):
        shutil.copytree(ROOT / "tests" / "support" / "two_builds" / build, tmp_path / name)
    package, verbs = ("provisioning", PROVISIONING) if example.words[0] in PROVISIONING else ("ci", VERBS)
    monkeypatch.chdir(tmp_path)
    main(f"python -m {package}", "", verbs, example.words)
    printed = capsys.readouterr()
    # The page's reader is in this folder.
    assert not_printed(example, (printed.err + printed.out).replace(f"{tmp_path}/", "")) == []


def test_each_shown_output_is_compared_or_listed_with_the_reason() -> None:
    names = [example.name for example in examples()]
    listed = toml.loads((ROOT / "tests" / "shown.toml").read_text(encoding="utf-8"))["not_compared"]
    held = HELD | HELD_BY_INTEGRATION
    assert held <= set(names) and all(listed.values())
    assert sorted(names) == sorted({*held, *listed}) and not held & set(listed)


def test_a_line_that_is_not_printed_is_seen_and_figures_may_differ(tmp_path: Path) -> None:
    page = ROOT / "docs" / "onnx.md"
    first = next(example for example in examples_of(page) if "run out/" in example.command)
    printed = """\
1 part on the emulator (HTP, SM8750, QNN v2.51.0.260929181845); nothing on the CPU
y: float32[1, 4, 8, 8]  1.5, 0, -3, 2, …
"""
    assert not_printed(first, printed) == []
    assert not_printed(first, printed.replace("float32", "float64"))
    assert not_printed(first, "")
