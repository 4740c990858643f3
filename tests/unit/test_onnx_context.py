"""A compiled model and its record: what was changed, moved or made for something else is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ci.artifacts.records import record_path
from ci.lanes.onnx.model_file import ContextRecord, read_context, require_fit
from provisioning.base.errors import CheckFailed
from provisioning.base.files import hash_file
from provisioning.manifest import soc_named
from tests.support.onnx_models import BUILD_ID, context_model

OTHER = "v2.49.40.260810104044"
SM8650 = soc_named("SM8650")


def recorded(folder: Path, path: Path | None = None, **changes: object) -> Path:
    path = path or context_model(folder)
    context = read_context(path)
    values: dict[str, object] = {
        "model": path.name,
        "files": {file.name: hash_file(file) for file in (path, *context.data_files)},
        "soc": "SM8650",
        "soc_id": 57,
        "arch": 75,
        "precision": "u16u8",
        "build_id": BUILD_ID,
        "packages": {},
        "source": "0" * 64,
    }
    ContextRecord(**{**values, **changes}).write(record_path(path))  # type: ignore[arg-type]
    return path


@pytest.mark.parametrize("embed", [False, True])
def test_a_compiled_model_says_what_it_is_for(tmp_path: Path, embed: bool) -> None:
    context = read_context(context_model(tmp_path, embed=embed))
    assert (context.build_ids, context.soc_id, context.arch) == ((BUILD_ID,), 57, 75)
    assert [file.name for file in context.data_files] == ([] if embed else ["model_ctx_qnn.bin"])


@pytest.mark.parametrize(
    ("flags", "half"),
    [
        ("relaxed_precision_flag=true;", True),
        ("relaxed_precision_flag=true;relaxed_precision_flag=false;", False),
        ("", None),
    ],
)
def test_a_context_says_whether_floats_are_computed_in_16_bits(
    tmp_path: Path, flags: str, half: bool | None
) -> None:
    path = context_model(tmp_path)
    data = tmp_path / "model_ctx_qnn.bin"
    data.write_bytes(data.read_bytes() + flags.encode())
    assert read_context(path).half_floats is half


def test_every_changed_byte_is_reported(tmp_path: Path) -> None:
    path = recorded(tmp_path)
    require_fit(read_context(path), BUILD_ID, SM8650)
    data = tmp_path / "model_ctx_qnn.bin"
    whole = data.read_bytes()
    for place in range(len(whole)):
        data.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(CheckFailed, match=r"model_ctx_qnn\.bin"):
            require_fit(read_context(path), BUILD_ID, SM8650)
    data.write_bytes(whole)
    path.write_bytes(path.read_bytes() + b"\x7a\x00")
    with pytest.raises(CheckFailed, match=r"model_ctx\.onnx"):
        require_fit(read_context(path), BUILD_ID, SM8650)


def test_another_qnn_or_chip_is_reported(tmp_path: Path) -> None:
    path = context_model(tmp_path)
    for build, soc in ((OTHER, SM8650), (BUILD_ID, soc_named("SM8750"))):
        with pytest.raises(CheckFailed):
            require_fit(read_context(path), build, soc)
    (tmp_path / "model_ctx_qnn.bin").write_bytes(OTHER.encode())
    with pytest.raises(CheckFailed, match=r"v2\.49\.40"):
        require_fit(read_context(path), BUILD_ID, SM8650)


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "other_ctx.onnx"},
        {"files": {}},
        {"schema": 9},
        {"files": ["model_ctx.onnx", "model_ctx_qnn.bin"]},
    ],
)
def test_a_record_of_something_else_is_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    with pytest.raises(CheckFailed):
        require_fit(read_context(recorded(tmp_path, None, **changes)), BUILD_ID, SM8650)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 1, "files": {}}'])
def test_a_damaged_record_is_reported(tmp_path: Path, text: str) -> None:
    path = context_model(tmp_path)
    record_path(path).write_text(text)
    with pytest.raises(CheckFailed, match=re.escape(record_path(path).name)):
        read_context(path)
