"""Programs kept by content: what changes them makes them anew, what does not leaves them alone."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from ci.executorch.compile import Basis, ProgramCache, basis_of, key
from ci.suites.imports import closure
from provisioning.base.errors import EnvironmentLacking
from tests.support.lowering import BASIS, SUITE, make_program


def _key(folder: Path, basis: Basis = BASIS, **changes: str) -> str:
    return key(make_program(folder, **changes), basis)


class TestKey:
    def test_the_same_in_another_folder_is_the_same(self, tmp_path: Path) -> None:
        assert _key(tmp_path / "one") == _key(tmp_path / "other")

    @pytest.mark.parametrize("file", ["net.py", "layers.py", "weights.bin"])
    def test_sources_imports_and_weights_change_it(self, tmp_path: Path, file: str) -> None:
        before = _key(tmp_path)
        with (tmp_path / file).open("a") as stream:
            stream.write("\n# more\n")
        assert _key(tmp_path) != before

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("width = 8", "width = 9"),
            ("net:make", "net:other"),
            ('"8a8w"', '"16a8w"'),
            ('"SM8650"', '"SM8750"'),
            ("tags", "calibration = 8\ntags"),
            ("tags", "qat = true\ntags"),
            ("tags", "per_channel = false\ntags"),
            ("tags", 'unquantized_nodes = ["add"]\ntags'),
            ("tags", 'cpu_operators = ["aten.add.Tensor"]\ntags'),
            ("tags", 'modules = [{{ name = "a", scheme = "16a8w" }}]\ntags'),
            ("factory", "inferences = 3\nfactory"),
        ],
    )
    def test_inputs_scheme_chip_and_options_change_it(self, tmp_path: Path, old: str, new: str) -> None:
        assert _key(tmp_path) != _key(tmp_path, text=SUITE.replace(old, new, 1))

    @pytest.mark.parametrize(
        "basis",
        [
            replace(BASIS, versions={**BASIS.versions, "torch": "2.14.0"}),
            replace(BASIS, versions={**BASIS.versions, "executorch": "1.5.2"}),
            replace(BASIS, sdk={**BASIS.sdk, "build_id": "v2.51.0.261001104044"}),
            replace(BASIS, sdk={**BASIS.sdk, "libraries": "ab"}),
            replace(BASIS, toolkit="bc"),
        ],
        ids=["torch", "executorch", "build-id", "libraries", "toolkit"],
    )
    def test_versions_sdk_and_our_own_code_change_it(self, tmp_path: Path, basis: Basis) -> None:
        assert _key(tmp_path) != _key(tmp_path, basis)

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("sqnr_db = 20", "sqnr_db = 30"),
            ('tags = ["pr"]', 'tags = ["nightly"]'),
            ("tags", 'label = "mine"\ntags'),
            ("tags", "cpu_budget = 3\ntags"),
        ],
    )
    def test_what_is_judged_later_does_not(self, tmp_path: Path, old: str, new: str) -> None:
        assert _key(tmp_path) == _key(tmp_path, text=SUITE.replace(old, new, 1))


class TestProgramCache:
    def _put(self, tmp_path: Path, opened: list[str] | None = None) -> ProgramCache:
        made = tmp_path / "made"
        made.mkdir()
        (made / "program.pte").write_bytes(b"program")
        cache = ProgramCache(tmp_path / "store")
        cache.put("ab12", made, {"opened": opened or [], "delegates": 1})
        return cache

    def _folder(self, cache: ProgramCache) -> Path:
        (folder,) = cache.folders.glob("ab/ab12.*")
        return folder

    def test_what_was_put_is_got(self, tmp_path: Path) -> None:
        got = self._put(tmp_path).get("ab12")
        assert got is not None and got.cached and got.path.read_bytes() == b"program"

    def test_a_damaged_program_counts_as_absent(self, tmp_path: Path) -> None:
        cache = self._put(tmp_path)
        self._folder(cache).joinpath("program.pte").write_bytes(b"PROGRAM")
        assert cache.get("ab12") is None

    def test_a_missing_program_counts_as_absent(self, tmp_path: Path) -> None:
        cache = self._put(tmp_path)
        self._folder(cache).joinpath("program.pte").unlink()
        assert cache.get("ab12") is None

    def test_a_file_that_the_factory_read_and_nobody_declared_counts_too(self, tmp_path: Path) -> None:
        weights = tmp_path / "weights.pt"
        weights.write_bytes(b"one")
        cache = self._put(tmp_path, [str(weights)])
        assert cache.get("ab12") is not None
        weights.write_bytes(b"two")
        assert cache.get("ab12") is None

    def _age(self, cache: ProgramCache) -> None:
        for path in (self._folder(cache), *cache.folders.parent.rglob("*.json")):
            os.utime(path, (0, 0))

    def test_what_nobody_asked_for_in_long_is_pruned_and_so_is_what_a_killed_run_left(
        self, tmp_path: Path
    ) -> None:
        cache = self._put(tmp_path)
        self._age(cache)
        unused = self._folder(cache)
        old, new = (cache.folders / f".cd34.{number}" for number in (998, 999))
        old.mkdir()
        os.utime(old, (0, 0))
        new.mkdir()
        cache.prune()
        assert [path for path in (unused, old, new) if path.exists()] == [new]

    def test_a_program_in_use_stays_though_another_process_made_it_too(self, tmp_path: Path) -> None:
        cache = self._put(tmp_path)
        first = cache.get("ab12")
        again = tmp_path / "made"
        again.mkdir()
        (again / "program.pte").write_bytes(b"with other ids")
        second = cache.put("ab12", again, {"opened": [], "delegates": 1})
        assert first is not None and first.path.read_bytes() == b"program"
        assert second.path.read_bytes() == b"with other ids"
        for folder in cache.folders.glob("ab/*"):
            os.utime(folder, (0, 0))
        cache.prune()
        assert [self._folder(cache)] == [second.folder]

    def test_what_was_asked_for_stays(self, tmp_path: Path) -> None:
        cache = self._put(tmp_path)
        self._age(cache)
        assert cache.get("ab12") is not None
        cache.prune()
        assert cache.get("ab12") is not None

    def test_switched_off_it_gives_nothing(self, tmp_path: Path) -> None:
        self._put(tmp_path)
        assert ProgramCache(tmp_path / "store", enabled=False).get("ab12") is None


class TestImports:
    def test_packages_relative_imports_and_imports_in_functions_are_followed(self, tmp_path: Path) -> None:
        files = {
            "app/__init__.py": "",
            "app/net.py": "from . import parts\nfrom .deep.heads import H\ndef f():\n    import app.late\n",
            "app/parts.py": "",
            "app/late.py": "import json, torch",
            "app/deep/__init__.py": "from ..shared import x",
            "app/deep/heads.py": "",
            "app/shared.py": "",
            "app/unrelated.py": "",
        }
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        found = {path.relative_to(tmp_path).as_posix() for path in closure("app.net", [tmp_path])}
        assert found == set(files) - {"app/unrelated.py"}

    def test_a_circle_of_imports_ends(self, tmp_path: Path) -> None:
        (tmp_path / "one.py").write_text("import two")
        (tmp_path / "two.py").write_text("import one")
        assert len(closure("one", [tmp_path])) == 2

    def test_a_file_that_is_no_python_is_still_a_part(self, tmp_path: Path) -> None:
        (tmp_path / "bad.py").write_text("def (:")
        assert closure("bad", [tmp_path]) == {tmp_path / "bad.py"}


def test_an_environment_without_executorch_is_told_what_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ci.executorch.compile.PACKAGES", ("no-such-package-here",))
    with pytest.raises(EnvironmentLacking) as raised:
        basis_of(tmp_path)
    assert "nox -s test_lowering" in raised.value.remedy
