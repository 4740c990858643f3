"""`wrap`: a context binary as an ExecuTorch program."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import programs
from tests.support.runner import programs as runner_programs
from tests.support.sdk import sdk_root
from tests.support.typed import typed

__all__ = ["runner_programs"]

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module", autouse=True)
def provisioned() -> Path:
    return sdk_root()


@pytest.mark.whole
def test_a_context_becomes_a_program_and_is_the_same_when_taken_out_again(
    tmp_path: Path, runner_programs: Path
) -> None:
    program = runner_programs / "htp.pte"
    assert typed("inspect", program, "--extract", tmp_path / "out").returncode == 0
    context = tmp_path / "out" / "htp.forward_0.bin"
    done = typed("wrap", context, "-o", tmp_path / "wrapped.pte")
    assert done.returncode == 0, done.stderr
    assert typed("inspect", tmp_path / "wrapped.pte", "--extract", tmp_path / "again").returncode == 0
    (again,) = (tmp_path / "again").iterdir()
    assert again.read_bytes() == context.read_bytes()


@pytest.mark.parametrize(
    ("data", "code"),
    [(programs.context(build_id="v2.99.0.260101010101"), 1), (programs.program(), 2), (b"", 1)],
)
def test_what_cannot_be_wrapped_leaves_nothing(tmp_path: Path, data: bytes, code: int) -> None:
    (tmp_path / "context.bin").write_bytes(data)
    done = typed("wrap", tmp_path / "context.bin", "-o", tmp_path / "model.pte")
    assert (done.returncode, [path.name for path in tmp_path.iterdir()]) == (code, ["context.bin"]), (
        done.stderr
    )
