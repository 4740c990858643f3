"""What CMake answers about its targets: which are loaded, and what went into them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ci.builds.cmake import API, files_read, linked_into, targets
from provisioning.base.errors import CheckFailed


def target(name: str, kind: str, **more: Any) -> dict[str, Any]:
    file = {"EXECUTABLE": name, "SHARED_LIBRARY": f"lib{name}.so", "OBJECT_LIBRARY": ""}.get(
        kind, f"lib{name}.a"
    )
    found = {
        "name": name,
        "type": kind,
        "id": f"{name}::@1",
        "paths": {"source": "src", "build": "out"},
        **more,
    }
    return {**found, "artifacts": [{"path": file}]} if file else found


def link(*libraries: str) -> dict[str, Any]:
    fragments = [{"fragment": text, "role": "libraries"} for text in libraries]
    return {"link": {"commandFragments": [{"fragment": "-O2 libnone.a", "role": "flags"}, *fragments]}}


def answer(build: Path, *found: dict[str, Any]) -> None:
    reply = build / API / "reply"
    reply.mkdir(parents=True)
    entries = [{"jsonFile": f"target-{entry['name']}.json"} for entry in found]
    for entry in found:
        (reply / f"target-{entry['name']}.json").write_text(json.dumps(entry), encoding="utf-8")
    model = {"paths": {"source": "/tree"}, "configurations": [{"targets": entries}]}
    (reply / "codemodel.json").write_text(json.dumps(model), encoding="utf-8")
    (reply / "index-1.json").write_text("stale", encoding="utf-8")
    index = {"reply": {"codemodel-v2": {"jsonFile": "codemodel.json"}}}
    (reply / "index-2.json").write_text(json.dumps(index), encoding="utf-8")


def test_what_went_into_a_program_is_followed_through_installed_libraries_and_object_files(
    tmp_path: Path,
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    answer(
        one,
        target("core", "STATIC_LIBRARY", dependencies=[{"id": "parts::@1"}, {"id": "generator::@1"}]),
        target("parts", "OBJECT_LIBRARY", sources=[{"path": "src/part.c"}]),
        target("generator", "EXECUTABLE"),
        target("none", "STATIC_LIBRARY"),
    )
    answer(other, target("runner", "EXECUTABLE", **link("-Wl,--whole-archive /one/lib/libcore.a", "-ldl")))
    known = [*targets(one), *targets(other)]
    runner = [found for found in known if found.name == "runner"]
    linked = linked_into(runner, known)
    assert {found.name for found in linked} == {"runner", "core", "parts"}

    printed = {
        one: "out/CMakeFiles/core.dir/a.o: #deps 1, deps mtime 1 (VALID)\n    /tree/a.h\n\n"
        "out/CMakeFiles/none.dir/b.o: #deps 1, deps mtime 1 (VALID)\n    /tree/b.h\n",
        other: "out/CMakeFiles/core.dir/c.o: #deps 1, deps mtime 1 (VALID)\n    /tree/c.h\n",
    }
    assert {str(path) for path in files_read(linked, printed)} == {"/tree/src/part.c", "/tree/a.h"}


def test_only_programs_and_shared_libraries_are_loaded(tmp_path: Path) -> None:
    kinds = ("EXECUTABLE", "SHARED_LIBRARY", "MODULE_LIBRARY", "STATIC_LIBRARY", "OBJECT_LIBRARY", "UTILITY")
    answer(tmp_path, *(target(kind.lower(), kind) for kind in kinds))
    assert [found.kind for found in targets(tmp_path) if found.loaded] == list(kinds[:3])


def test_a_project_without_an_answer_is_built_anew(tmp_path: Path) -> None:
    with pytest.raises(CheckFailed) as caught:
        targets(tmp_path)
    assert "--clean" in caught.value.fix
