"""Verdicts are found again by content, and by nothing less."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ci.engine.memo import VerdictCache, digest_of_files, key_of
from provisioning.base.findings import Metric as Json

VERDICT: dict[str, Json] = {"outcome": "passed", "seconds": 1.5}
NAMES = st.dictionaries(st.text(max_size=4), st.text(max_size=4) | st.integers() | st.booleans(), max_size=4)


def test_what_was_put_is_found(tmp_path: Path) -> None:
    VerdictCache(tmp_path, "test").put(key_of({"a": 1}), VERDICT)
    assert VerdictCache(tmp_path, "test").get(key_of({"a": 1})) == VERDICT


def test_another_key_finds_nothing(tmp_path: Path) -> None:
    cache = VerdictCache(tmp_path, "test")
    cache.put(key_of({"a": 1}), VERDICT)
    assert cache.get(key_of({"a": 2})) is None


def test_another_kind_finds_nothing(tmp_path: Path) -> None:
    VerdictCache(tmp_path, "test").put(key_of({"a": 1}), VERDICT)
    assert VerdictCache(tmp_path, "other").get(key_of({"a": 1})) is None


def test_a_disabled_cache_neither_reads_nor_writes(tmp_path: Path) -> None:
    VerdictCache(tmp_path, "test").put(key_of({"a": 1}), VERDICT)
    off = VerdictCache(tmp_path, "test", enabled=False)
    off.put(key_of({"a": 2}), VERDICT)
    assert off.get(key_of({"a": 1})) is None
    assert VerdictCache(tmp_path, "test").get(key_of({"a": 2})) is None


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"key": "other", "verdict": {}}', '{"verdict": {}}'])
def test_a_damaged_entry_counts_as_absent_and_is_removed(tmp_path: Path, damage: str) -> None:
    cache = VerdictCache(tmp_path, "test")
    cache.put(key_of({"a": 1}), VERDICT)
    (entry,) = (path for path in tmp_path.rglob("*.json"))
    entry.write_text(damage, encoding="utf-8")
    assert cache.get(key_of({"a": 1})) is None
    assert not entry.exists()


def test_only_what_was_of_no_use_for_long_is_pruned(tmp_path: Path) -> None:
    cache = VerdictCache(tmp_path, "test")
    for key in ("used", "unused"):
        cache.put(key, VERDICT)
    for entry in tmp_path.rglob("*.json"):
        os.utime(entry, (0, 0))
    assert cache.get("used") == VERDICT
    assert cache.prune() == 1
    assert (cache.get("used"), cache.get("unused")) == (VERDICT, None)


def test_two_threads_may_keep_the_same_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, both, replace = VerdictCache(tmp_path, "test"), threading.Barrier(2, timeout=20), Path.replace

    def together(part: Path, target: Path) -> Path:
        both.wait()
        return replace(part, target)

    monkeypatch.setattr(Path, "replace", together)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda _: cache.put("key", VERDICT), range(2))) == [None, None]
    assert cache.get("key") == VERDICT


def test_through_makes_a_verdict_once(tmp_path: Path) -> None:
    cache, made = VerdictCache(tmp_path, "test"), []

    def make() -> dict[str, Json]:
        made.append(1)
        return VERDICT

    assert cache.through("k", make) == cache.through("k", make) == VERDICT
    assert len(made) == 1


@settings(deadline=None)
@given(NAMES, NAMES)
def test_keys_are_equal_exactly_when_inputs_are(one: dict[str, Json], other: dict[str, Json]) -> None:
    same = {k: (type(v), v) for k, v in one.items()} == {k: (type(v), v) for k, v in other.items()}
    assert (key_of(one) == key_of(other)) == same


def test_the_order_in_which_inputs_are_named_does_not_matter() -> None:
    one: dict[str, Json] = {"a": 1, "b": {"c": 2, "d": 3}}
    other: dict[str, Json] = {"b": {"d": 3, "c": 2}, "a": 1}
    assert key_of(one) == key_of(other)


def test_a_digest_of_files_depends_on_names_and_contents_only(tmp_path: Path) -> None:
    for root in ("one", "two"):
        (tmp_path / root).mkdir()
        for name in ("a", "b"):
            (tmp_path / root / name).write_text(name, encoding="utf-8")
    one, two = tmp_path / "one", tmp_path / "two"
    before = digest_of_files(one, one.iterdir())
    assert before == digest_of_files(two, [two / "b", two / "a"])
    (two / "b").write_text("c", encoding="utf-8")
    assert digest_of_files(two, two.iterdir()) != before


def test_a_renamed_file_changes_the_digest(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x", encoding="utf-8")
    before = digest_of_files(tmp_path, tmp_path.iterdir())
    (tmp_path / "a").rename(tmp_path / "b")
    assert digest_of_files(tmp_path, tmp_path.iterdir()) != before
