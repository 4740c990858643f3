"""`inspect` of files that are no programs, and taking contexts out of programs."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from pathlib import Path

import pytest

from ci.artifacts.program import CONTEXT_MARK
from ci.inspect import verb
from provisioning.base.errors import CheckFailed, UsageError
from tests.support.elves import Library, skel
from tests.support.onnx_models import context_model
from tests.support.programs import BUILD_ID, context, program
from tests.support.typed import run_here
from tests.support.windows import dll


def inspect(*words: str | Path) -> int:
    return run_here(verb, *words)


def framed(data: bytes) -> bytes:
    """A context as ExecuTorch's backend stores it."""
    return struct.pack("<IQQ", 0x5678ABCD, 1, len(data)).ljust(256, b"\0") + data


def dlc() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("model", struct.pack("<3I", 0x4AD5, 1, 8) + b"NETD")
    return stream.getvalue()


def flexible() -> bytes:
    """A context for two chips in one file, as QNN 2.50 and later write it."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("dlc.metadata2.3.0", "{}")
        for chip in ("sm8650", "sm8750"):
            archive.writestr(f"htp.cache.{chip}.0", f"{BUILD_ID} {chip}")
    return stream.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("both.dlc", flexible(), ("DLC", "SM8650, SM8750", BUILD_ID)),
        ("QnnHtp.dll", dll(content=BUILD_ID.encode()), ("Windows library for Arm64", BUILD_ID)),
        (
            "libQnnHtpV73Skel.so",
            skel(73, BUILD_ID).encode(),
            ("Hexagon skel for v73", BUILD_ID, "signing -- inspect"),
        ),
        ("forward.dlc", dlc(), ("DLC", "not compiled yet", "model (16 bytes)")),
        (
            "libmine.so",
            Library(android_api=30, ndk=("r27c", "12479018"), alignment=0x4000).encode(),
            ("API level 30", "r27c (12479018)", "16,384 bytes"),
        ),
    ],
)
def test_a_file_is_named_for_what_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes, words: tuple[str, ...]
) -> None:
    (tmp_path / name).write_bytes(content)
    assert inspect(tmp_path / name) == 0
    out = capsys.readouterr().out
    assert all(word in out for word in words)
    assert inspect(tmp_path / name, "--json", tmp_path / "answer.json") == 0
    assert json.loads((tmp_path / "answer.json").read_text())["file"] == str(tmp_path / name)
    with pytest.raises(UsageError, match="--extract"):
        inspect(tmp_path / name, "--extract", tmp_path)


def test_of_a_folder_of_programs_one_is_to_be_named(tmp_path: Path) -> None:
    (tmp_path / "net.pte").write_bytes(program())
    with pytest.raises(UsageError) as refused:
        inspect(tmp_path)
    assert str(tmp_path / "net.pte") in refused.value.fix


CUT = CONTEXT_MARK + struct.pack("<3Q", 16, 4096, 512) + BUILD_ID.encode()


@pytest.mark.parametrize("length", [len(CONTEXT_MARK) - 6, len(CUT), 4096 + 511])
def test_a_context_that_ends_before_its_header_says_so_is_refused(tmp_path: Path, length: int) -> None:
    whole = CUT.ljust(4096 + 512, b"\0")
    for file in ("context.bin", "model_ctx_qnn.bin"):
        model = context_model(tmp_path) if "qnn" in file else tmp_path / file
        (tmp_path / file).write_bytes(whole)
        assert inspect(model) == 0
        (tmp_path / file).write_bytes(whole[:length])
        with pytest.raises(CheckFailed):
            inspect(model)


@pytest.mark.parametrize(
    ("data", "name"), [(framed(context()), "m.forward_0.bin"), (dlc(), "m.forward_0.dlc")]
)
def test_what_qnn_compiled_is_taken_out_of_a_program(tmp_path: Path, data: bytes, name: str) -> None:
    (tmp_path / "m.pte").write_bytes(program(data=data))
    assert inspect(tmp_path / "m.pte", "--extract", tmp_path / "out") == 0
    (written,) = (tmp_path / "out").iterdir()
    assert (written.name, written.read_bytes()) == (name, context() if name.endswith("bin") else data)


@pytest.mark.parametrize("embed", [True, False])
def test_a_compiled_model_has_its_context_beside_it_and_none_is_taken_out(
    tmp_path: Path, embed: bool
) -> None:
    model = context_model(tmp_path / "m", embed=embed)
    with pytest.raises(UsageError, match="--extract"):
        inspect(model, "--extract", tmp_path / "out")
