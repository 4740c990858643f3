from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from ci.onnx.context import (
    Record,
    digest,
    nodes_beside_context,
    read_context,
    record_path,
    require_fit,
)
from provisioning.base.errors import CheckFailed
from tests.support.onnx_models import BUILD_ID, context_model, conv_model, write


def recorded(folder: Path, path: Path | None = None, **changes: object) -> Path:
    path = path or context_model(folder)
    context = read_context(path)
    files = {file.name: digest(file) for file in (path, *context.beside)}
    values: dict[str, object] = {
        "model": path.name,
        "files": files,
        "soc": "SM8650",
        "soc_id": 57,
        "arch": 75,
        "precision": "u16u8",
        "build_id": BUILD_ID,
        "packages": {},
        "source": "0" * 64,
    }
    Record(**{**values, **changes}).write(record_path(path))  # type: ignore[arg-type]
    return path


@pytest.mark.parametrize("embed", [False, True])
def test_a_compiled_model_says_what_it_is_for(tmp_path: Path, embed: bool) -> None:
    context = read_context(context_model(tmp_path, embed=embed))
    assert (context.build_ids, context.soc_id, context.arch) == ((BUILD_ID,), 57, 75)
    assert [file.name for file in context.beside] == ([] if embed else ["model_ctx_qnn.bin"])


def test_a_whole_one_fits(tmp_path: Path) -> None:
    require_fit(read_context(recorded(tmp_path)), BUILD_ID, soc_id=57, arch=75)


def test_one_that_was_moved_without_its_data_is_told(tmp_path: Path) -> None:
    path = context_model(tmp_path / "a")
    moved = tmp_path / "model_ctx.onnx"
    path.rename(moved)
    with pytest.raises(CheckFailed) as caught:
        read_context(moved)
    assert "model_ctx_qnn.bin is not beside it" in caught.value.message
    assert "--embed" in caught.value.remedy


@pytest.mark.parametrize("location", ["/etc/passwd", "../secret.bin"])
def test_data_elsewhere_is_refused(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret.bin").write_bytes(b"secret")
    path = context_model(tmp_path / "in", location=location)
    with pytest.raises(CheckFailed, match="expected its context in a file beside it"):
        read_context(path)


@pytest.mark.parametrize("name", [".", "a\0b", "a" * 5000], ids=["folder", "zero", "long"])
def test_a_name_that_no_file_there_can_have_is_refused(tmp_path: Path, name: str) -> None:
    path = context_model(tmp_path)
    model = onnx.load(str(path))
    for attribute in model.graph.node[0].attribute:
        if attribute.name == "ep_cache_context":
            attribute.s = name.encode()
    with pytest.raises(CheckFailed, match="expected its context in a file beside it"):
        read_context(write(model, path))


def test_every_changed_byte_is_told(tmp_path: Path) -> None:
    path = recorded(tmp_path)
    data = tmp_path / "model_ctx_qnn.bin"
    whole = data.read_bytes()
    for place in range(len(whole)):
        data.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(CheckFailed, match="was changed after it was compiled"):
            require_fit(read_context(path), BUILD_ID)


def two_contexts(folder: Path, build_id: str) -> Path:
    """A compiled model in two parts, the first of which may be of another QNN."""
    path = context_model(folder)
    model = onnx.load(str(path))
    first = model.graph.node.add()
    first.CopyFrom(model.graph.node[0])
    for attribute in first.attribute:
        if attribute.name == "ep_cache_context":
            attribute.s = b"first.bin"
        if attribute.name == "ep_sdk_version":
            attribute.s = build_id.encode()
    nodes = [first, model.graph.node[0]]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    (folder / "first.bin").write_text(build_id)
    return write(model, path)


def test_the_first_of_two_contexts_is_held_to_the_record_too(tmp_path: Path) -> None:
    path = two_contexts(tmp_path, BUILD_ID)
    recorded(tmp_path, path)
    require_fit(read_context(path), BUILD_ID)
    (tmp_path / "first.bin").write_text(f"{BUILD_ID} changed")
    with pytest.raises(CheckFailed, match=r"first\.bin was changed"):
        require_fit(read_context(path), BUILD_ID)


def test_another_qnn_of_the_first_of_two_contexts_is_told(tmp_path: Path) -> None:
    path = two_contexts(tmp_path, "v2.49.40.260810104044")
    with pytest.raises(CheckFailed, match=r"v2\.49\.40"):
        require_fit(read_context(path), BUILD_ID)


def test_a_changed_model_is_told(tmp_path: Path) -> None:
    path = recorded(tmp_path)
    path.write_bytes(path.read_bytes() + b"\x7a\x00")
    with pytest.raises(CheckFailed, match=r"model_ctx\.onnx was changed"):
        require_fit(read_context(path), BUILD_ID)


def test_another_qnn_is_told_with_both_versions(tmp_path: Path) -> None:
    other = "v2.49.40.260810104044"
    with pytest.raises(CheckFailed) as caught:
        require_fit(read_context(context_model(tmp_path)), other)
    assert BUILD_ID in caught.value.message
    assert other in caught.value.message


def test_another_qnn_inside_the_data_is_told(tmp_path: Path) -> None:
    path = context_model(tmp_path)
    (tmp_path / "model_ctx_qnn.bin").write_bytes(b"v2.49.40.260810104044")
    with pytest.raises(CheckFailed, match=r"v2\.49\.40"):
        require_fit(read_context(path), BUILD_ID)


def test_another_chip_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match=r"made for chip 57 \(v75\), not for 69 \(v79\)"):
        require_fit(read_context(context_model(tmp_path)), BUILD_ID, soc_id=69, arch=79)


def test_a_record_of_another_model_is_told(tmp_path: Path) -> None:
    path = recorded(tmp_path, model="other_ctx.onnx")
    with pytest.raises(CheckFailed, match="is the record of other_ctx"):
        require_fit(read_context(path), BUILD_ID)


def test_data_that_the_record_does_not_know_is_told(tmp_path: Path) -> None:
    path = recorded(tmp_path, files={"model_ctx.onnx": digest(context_model(tmp_path))})
    with pytest.raises(CheckFailed, match="which its record does not know"):
        require_fit(read_context(path), BUILD_ID)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 9, "files": {}}', '{"schema": 1, "files": {}}'])
def test_a_damaged_record_is_told(tmp_path: Path, text: str) -> None:
    path = context_model(tmp_path)
    record_path(path).write_text(text)
    with pytest.raises(CheckFailed, match="expected the record"):
        read_context(path)


@pytest.mark.parametrize("changes", [{"schema": 9}, {"files": ["model_ctx.onnx", "model_ctx_qnn.bin"]}])
def test_a_record_of_another_form_is_told(tmp_path: Path, changes: dict[str, object]) -> None:
    with pytest.raises(CheckFailed, match="expected the record"):
        read_context(recorded(tmp_path, None, **changes))


def test_one_that_does_not_say_which_qnn_made_it_is_left_to_the_provider(tmp_path: Path) -> None:
    require_fit(read_context(context_model(tmp_path, build_id="")), BUILD_ID)


def test_a_model_that_is_not_compiled_is_told_how_to_be(tmp_path: Path) -> None:
    with pytest.raises(CheckFailed) as caught:
        read_context(write(conv_model(), tmp_path / "model.onnx"))
    assert caught.value.remedy.startswith("nox -s onnx -- compile")


def test_nodes_outside_the_context_are_named(tmp_path: Path) -> None:
    assert nodes_beside_context(context_model(tmp_path)) == []
    assert nodes_beside_context(write(conv_model(), tmp_path / "model.onnx")) == [
        "conv (Conv)",
        "relu (Relu)",
    ]
