"""Verdicts and fixes as a user meets them: what is lost is red in every lane, and each printed fix works."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from provisioning.base.settings import ROOT
from tests.support import faulty_models
from tests.support.lowering_suites import environment, run
from tests.support.typed import typed

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]

RUN = """
[case.{name}]
factory = "faulty_models:{factory}"
arguments = {{ {arguments} }}
[[case.{name}.run]]
lane = "{lane}"
precision = "{precision}"
socs = ["SM8650"]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copyfile(ROOT / "tests/support/faulty_models.py", tmp_path / "faulty_models.py")
    page = (ROOT / "docs/model.md").read_text(encoding="utf-8")
    code = next(block for block in page.split("```python\n") if "class Attention" in block)
    (tmp_path / "of_the_page.py").write_text(code.partition("```")[0])
    return tmp_path


def suite_of(folder: Path, *rows: tuple[str, str, str, str], lane: str = "executorch") -> Path:
    """`rows` are a name, a function, its arguments and the precision."""
    path = folder / f"{lane}.toml"
    fields = ("name", "factory", "arguments", "precision")
    path.write_text(
        "schema = 2\n" + "".join(RUN.format(lane=lane, **dict(zip(fields, row, strict=True))) for row in rows)
    )
    return path


def ci(folder: Path, *words: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = typed(*words, env=environment(QNN_CI_STARTED_IN=str(folder)))
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done


DETECTORS = (
    ("lost", "detector", "", "8a8w"),
    ("apart", "detector", "apart = true", "8a8w"),
)
BESIDE = (
    # Where only ties differ, there is nothing to fix.
    ("chooses", "chooses", "", "8a8w"),
    ("loud", "loud", "", "fp16"),
)


# Nightly, as each compiles two detectors: tests/unit/test_lost_parts.py has outputs of one in each run.
@pytest.mark.whole
@pytest.mark.parametrize(("stage", "lane"), [("test_emulator", "executorch"), ("test_onnx", "onnx")])
def test_a_detector_that_detects_nothing_fails_and_with_scores_of_their_own_it_passes(
    folder: Path, stage: str, lane: str
) -> None:
    done = run(stage, folder, "--suite", suite_of(folder, *DETECTORS, *BESIDE, lane=lane))
    assert done.code == 1
    assert [rule for rule in done.rules("lost") if rule.endswith("-accuracy")]
    good = [rule for case in ("apart", "chooses") for rule in done.rules(case)]
    assert not [rule for rule in good if rule.endswith("-accuracy")]
    rows: Any = done.report.metrics["programs"]
    lost, apart = (
        next(row for name, row in rows.items() if name.startswith(start)) for start in ("lost", "apart")
    )
    assert lost["figures"]["sqnr_db"] > 30 and lost["figures"]["slice_sqnr_db"] == 0
    assert "slices 4 to 83 of 84" in lost["slices"][0] and not apart["slices"]
    loud = [finding for finding in done.report.findings if finding.subject.startswith("loud/")]
    assert any("x * 0.01" in row.fix and "faulty_models.py:" in row.message for row in loud)


@pytest.mark.whole
def test_compile_of_such_a_detector_ends_with_1_and_its_fix_helps(folder: Path) -> None:
    words = ("compile", "faulty_models.py:detector")
    done = ci(folder, *words, "--precision", "8a8w", "-o", folder / "out", code=1)
    assert "own output" in done.stderr and "--precision 16a8w" in done.stderr
    assert (folder / "out" / "faulty_models-detector-SM8650-8a8w.pte").is_file()
    ci(folder, *words, "--precision", "16a8w", "-o", folder / "out")


# Nightly: README's first example has its cause named with a fix that was tried, in each run.
@pytest.mark.whole
def test_a_moved_mask_of_int64_is_named_at_its_line_with_a_fix_that_was_tried(folder: Path) -> None:
    words = ("compile", "faulty_models.py:masked", "--precision", "8a8w", "-o", folder / "out")
    said, _, tried = ci(folder, *words, code=1).stderr.rpartition("try: ")
    line = "`return self.linear(x) * mask.unsqueeze(-1).float()`"
    assert re.search(r"the cause is aten.to.dtype at faulty_models.py:\d+ " + re.escape(line), said)
    figures = [float(figure) for figure in re.findall(r"([\d.]+) dB SQNR", tried)]
    assert "`mask.float().unsqueeze(-1)` for" in tried
    assert len(figures) == 1 and min(figures) > 25


BROKEN = (
    ("normed", "normed", "", "fp16", "remove_parametrizations"),
    ("bag", "bag", "", "fp16", ".sum(1)"),
    ("volume", "volume", "", "16a4w", "--precision 16a8w"),
    ("recurrent", "recurrent", "", "8a8w", "first state as an input"),
    ("biased", "biased", "", "8a8w", "register_buffer"),
    ("named", "named", "", "fp16", "torch.export.save"),
    ("lacking", "lacking", "", "fp16", "torch.export.save"),
    ("anchored", "anchored", "", "8a8w", "keep it with register_buffer"),
    ("loud", "loud", "", "fp16", "x * 0.01"),
    ("mixed", "mixed", "", "fp16", "w[i : i + 1]"),
    ("retrieves", "retrieves", "", "fp16", ".to(torch.int32).to(torch.int64)"),
    ("attentive", "attentive", "", "fp16", "the Attention of docs/model.md"),
)
FIXED = (
    ("normed", "normed", "removed = true", "fp16"),
    ("bag", "bag", "summed = true", "fp16"),
    ("volume", "volume", "", "16a8w"),
    ("recurrent", "recurrent", "state = true", "8a8w"),
    ("biased", "biased", "kept = true", "8a8w"),
    ("anchored", "anchored", "kept = true", "8a8w"),
    ("loud", "loud", "smaller = true", "fp16"),
    ("mixed", "mixed", "sliced = true", "fp16"),
    ("retrieves", "retrieves", "by_int32 = true", "fp16"),
    ("attentive", "attentive", "replaced = true", "fp16"),
)


# Nightly: README's example, typed in each run, is such a model, with the fix that it names.
@pytest.mark.whole
def test_each_model_that_does_not_compile_names_its_fix_and_with_it_compiles(folder: Path) -> None:
    done = run("test_emulator", folder, "--suite", suite_of(folder, *(row[:4] for row in BROKEN)))
    assert done.code == 1
    for name, *_, fix in BROKEN:
        fixes = [finding.fix for finding in done.report.findings if finding.subject.startswith(f"{name}/")]
        assert any(fix in text for text in fixes), (name, fixes)
    fixed = run("test_emulator", folder, "--suite", suite_of(folder, *FIXED))
    assert fixed.code == 0, fixed.out


def test_fp16_for_a_chip_without_it_is_refused_before_anything_is_compiled(folder: Path) -> None:
    done = ci(folder, "compile", "faulty_models.py:bag", "--soc", "SM8350", "-o", folder / "out", code=2)
    assert "SM8350 has no fp16" in done.stderr and not (folder / "out").exists()


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore::FutureWarning")  # Of torch's own exporter.
def test_the_fix_of_recurrent_layers_holds_onnx_runtime_takes_them_whole_and_draws_its_samples(
    folder: Path,
) -> None:
    model, inputs = faulty_models.recurrent()
    sample = inputs(torch.Generator().manual_seed(0))
    torch.onnx.export(model, sample, str(folder / "net.onnx"), dynamo=True, external_data=False)
    done = ci(folder, "compile", "net.onnx", "--precision", "8a8w", "-o", folder / "out")
    assert "nothing on the CPU" in done.stdout and "random inputs" in done.stderr
    listed = ci(folder, "quantize", "net.onnx", "--precision", "8a8w", "--where").stdout
    assert "GRU" in listed and not (folder / "exposed.onnx").exists()
