"""`--recheck`: what a user may type, and when two results are the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ci.artifacts.program import digest_without_time
from ci.lanes.onnx import verb as onnx
from ci.outcome import Result
from ci.recheck import Repeats
from ci.suite.options import work_of
from tests.support.programs import context, program
from tests.support.typed import parsed


@pytest.mark.parametrize(("text", "share"), [("20%", 0.2), ("100%", 1), ("0.5%", 0.005)])
def test_a_share_is_taken(text: str, share: float) -> None:
    assert work_of(parsed(onnx, "--recheck", text)).recheck == pytest.approx(share)


@pytest.mark.parametrize(
    "text", ["", "20", "0%", "101%", "-5%", "10min", "0.0%", "1e3%", "٣%", "nan%", "min", "20%%"]
)
def test_anything_else_is_refused_with_an_example(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(onnx, f"--recheck={text}")
    assert ended.value.code == 2 and "10%" in capsys.readouterr().err


FACTS = {"seconds": 3.0, "near": {"sqnr_db": 40.0}, "left": [], "ok": True}


def difference(second: Mapping[str, Any], repeats: Repeats = Repeats()) -> list[str]:  # noqa: B008
    results = Result(FACTS), Result({**FACTS, **second})
    return [change.field for change in repeats.differences(*results)]


def test_every_fact_is_compared_but_time_and_memory() -> None:
    assert difference({}) == difference({"seconds": 9.0, "peak": 5}) == []
    assert difference({"near": {"sqnr_db": 40.001}}) == ["near.sqnr_db"]
    assert difference({"left": [{"operator": "add"}]}) == ["left", "left.0.operator"]
    assert difference({"ok": 1}) == ["ok"], "true is no number"
    assert difference({"new": None}) == ["new"]


def test_figures_may_be_off_by_what_the_step_says() -> None:
    near = Repeats(figures={"near.*": 0.01})
    assert difference({"near": {"sqnr_db": 40.3}}, near) == []
    assert difference({"near": {"sqnr_db": 41.0}}, near) == ["near.sqnr_db"]
    assert difference({"near": {"sqnr_db": float("nan")}}, near) == ["near.sqnr_db"]
    assert difference({"near": {}}, near) == ["near", "near.sqnr_db"]
    assert difference({"ok": 1.0}, near) == ["ok"]
    assert difference({"ok": False}, Repeats(changing=("o*",))) == []


def test_files_are_compared_to_the_bit(tmp_path: Path) -> None:
    for name, text in (("first", "one"), ("second", "two")):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "sub/log").write_text(text)
        (tmp_path / name / "same").write_text("same")
    (tmp_path / "second/more").touch()
    results = Result({}, tmp_path / "first"), Result({}, tmp_path / "second")

    def names(repeats: Repeats) -> list[str]:
        return [change.field for change in repeats.differences(*results)]

    assert names(Repeats()) == ["more", "sub/log"]
    assert names(Repeats(changing=("*/log",))) == ["more"]
    assert names(Repeats(digest=lambda path: path.name)) == ["more"]


def test_a_program_repeats_to_the_bit_but_for_the_time_of_its_context(tmp_path: Path) -> None:
    def digest(data: bytes) -> str:
        (tmp_path / "program.pte").write_bytes(data)
        return digest_without_time(tmp_path / "program.pte")

    def program_of(at: bytes, binary: bytes = context()) -> bytes:
        return program(data=b"\xcd\xab\x78\x56" + at + len(binary).to_bytes(8, "little") + binary)

    first = digest(program_of(b"12345678"))
    assert first == digest(program_of(b"87654321"))
    assert first != digest(program_of(b"12345678", context(soc="SM8750")))
    assert digest(program(data=b"12345678" + context())) != digest(program(data=b"87654321" + context()))
    assert digest(b"no program") != digest(b"another")
    (tmp_path / "one.raw").write_bytes(program_of(b"12345678"))
    (tmp_path / "other.raw").write_bytes(program_of(b"87654321"))
    assert digest_without_time(tmp_path / "one.raw") != digest_without_time(tmp_path / "other.raw")
