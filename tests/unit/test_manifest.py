"""Strict loading: every fault is a ManifestError that names file and key."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import get_args

import pytest

from provisioning.base import toml
from provisioning.base.commands import Fix
from provisioning.base.documents import load
from provisioning.base.errors import ManifestError, UnknownName, UsageError
from provisioning.base.selection import chip_named, simple
from provisioning.base.settings import DEFAULT_PROFILE, MANIFESTS, OFFICIAL_PROFILE, TARGETS, profile_names
from provisioning.manifest import (
    Profile,
    Target,
    load_profile,
    load_socs,
    soc_named,
)

VALID = """\
schema = 1
name = "small"
summary = "One component."
[packages]
torch = "2.13.0"
[host]
glibc = "2.34"
[components.qnn-sdk]
version = "2.37.0"
[[components.qnn-sdk.parts]]
name = "sdk"
place = [{ match = 'lib/(?P<file>.+)', to = "{file}", targets = ["x86_64-linux"] }]
[components.qnn-sdk.parts.source]
type = "archive"
url = "https://example.com/sdk.zip"
sha256 = "e3fce35419310bf80aa2947442a4b39366d80237c4bd72946b77832f71b75223"
size = 12
"""


def loading(tmp_path: Path, text: str) -> ManifestError:
    path = tmp_path / "small.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ManifestError) as caught:
        load(path, Profile)
    assert str(path) in caught.value.message
    return caught.value


@pytest.mark.parametrize(
    ("old", "new", "key", "words"),
    [
        ('name = "small"', 'name = "small"\ncolour = "red"', "colour", "no such key"),
        ("71b75223", "71b7522", "components.qnn-sdk.parts.0.source.archive.sha256", "[0-9a-f]{64}"),
        ("size = 12", 'size = "12"', "components.qnn-sdk.parts.0.source.archive.size", "valid integer"),
        ('version = "2.37.0"\n', "", "components.qnn-sdk.version", "found nothing"),
        ('to = "{file}"', 'to = "{fiel}"', "components.qnn-sdk.parts.0.place.0", "groups of `match`"),
        ('["x86_64-linux"]', '["x86-linux"]', "components.qnn-sdk.parts.0.place.0.targets.0", "x86_64-linux"),
        ('to = "{file}"', 'to = "../{file}"', "components.qnn-sdk.parts.0.place.0", "relative to the tree"),
        ("2.37.0", "v2", "components.qnn-sdk.version", "[0-9A-Za-z.+-]"),
    ],
)
def test_an_error_names_its_key_and_what_was_expected(
    tmp_path: Path, old: str, new: str, key: str, words: str
) -> None:
    error = loading(tmp_path, VALID.replace(old, new))
    assert error.key.startswith(key)
    assert words in error.message


class TestCommittedManifests:
    def test_the_targets_of_the_code_are_those_of_the_manifests(self) -> None:
        assert get_args(Target) == TARGETS

    def test_no_two_chips_share_a_number_or_a_name(self) -> None:
        socs = load_socs()
        ids = [soc.id for soc in socs.values()]
        kernel_ids = [number for soc in socs.values() for number in soc.kernel_ids]
        names = [*socs, *(name for soc in socs.values() for name in soc.sold_as)]
        called = [simple(name) for soc in socs.values() for name in soc.called]
        assert [Counter(words).most_common(1)[0][1] for words in (ids, kernel_ids, names, called)] == [1] * 4

    def test_every_device_has_a_chip_of_the_table(self) -> None:
        devices = toml.loads((MANIFESTS / "socs.toml").read_text(encoding="utf-8"))["devices"]
        assert [name for name, chips in devices.items() if not load_socs().keys() & {*chips}] == []

    def test_no_two_suites_of_executorch_share_a_name(self) -> None:
        table = toml.loads((MANIFESTS / "upstream" / "suites.toml").read_text(encoding="utf-8"))
        names = [suite["name"] for suite in table["suite"]]
        assert len(names) == len({*names})

    def test_the_profiles_that_the_code_names_are_there(self) -> None:
        assert {DEFAULT_PROFILE, OFFICIAL_PROFILE} <= {*profile_names()}

    @pytest.mark.parametrize("name", profile_names())
    def test_a_profile_leaves_out_what_it_has(self, name: str) -> None:
        profile = load_profile(name)
        assert set(profile.optional) <= profile.components.keys()
        for component in profile.components.values():
            assert len({part.name for part in component.parts}) == len(component.parts)


@pytest.mark.parametrize("name", ["639", "69"])
def test_a_number_of_a_chip_is_answered_with_the_one_to_type(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        soc_named(name)
    assert caught.value.fix == "--soc SM8750"


@pytest.mark.parametrize(
    ("said", "chip"),
    [
        ("SM8650", "SM8650"),
        ("8gen3", "SM8650"),
        ("Snapdragon 8 Gen 3", "SM8650"),
        ("8-Elite", "SM8750"),
        ("8 Elite Gen 5", "SM8850"),
        ("x elite", "SC8380XP"),
        ("qcs6490", "QCM6490"),
        ("Galaxy S25", "SM8750"),
        ("galaxy s24 ultra", "SM8650"),
        ("fold6", "SM8650"),
    ],
)
def test_a_chip_is_found_by_what_people_call_it_or_its_phone(said: str, chip: str) -> None:
    assert chip_named(said) == chip


@pytest.mark.parametrize(
    ("said", "choices"),
    [
        ("Galaxy S24", ["SM8650", "Exynos 2400"]),
        # Not the Ultra, whose name it begins.
        ("Galaxy S26", ["SM8850", "Exynos 2600"]),
        ("elite", ["SC8380XP", "SM8750", "SM8850"]),
        ("gen 3", ["8cx Gen 3", "8 Gen 3"]),
    ],
)
def test_a_name_that_may_mean_several_chips_is_refused_with_its_choices(
    said: str, choices: list[str]
) -> None:
    with pytest.raises(UsageError) as told:
        chip_named(said)
    assert all(choice in told.value.message for choice in choices)
    assert told.value.fix.startswith("--soc S")


@pytest.mark.parametrize(
    ("said", "hexagon", "typed"),
    [
        ("SM8735", "V73", ("--soc", "SM8550")),
        ("SM8635P", "V73", ("--soc", "SM8550")),
        ("8s Gen 4", "V73", ("--soc", "SM8550")),
        ("SA8620P", "V75", ("--soc", "SM8650")),
        # No chip of the table has its Hexagon, and an old one has no NPU that QNN compiles for.
        ("SM8975", "V85", ()),
        ("SM8250", "V66", ()),
    ],
)
def test_a_chip_that_qnn_alone_knows_is_sent_to_its_own_hexagon(
    said: str, hexagon: str, typed: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError) as told:
        chip_named(said)
    assert hexagon in told.value.message and isinstance(told.value.fix, Fix)
    assert told.value.fix.flags == typed
    if typed:
        assert f"V{load_socs()[typed[1]].arch}" == hexagon


@pytest.mark.parametrize(
    ("said", "maker"),
    [
        ("Pixel 9", "Google"),
        ("pixel 10 pro", "Google"),
        ("Tensor G4", "Google"),
        ("Exynos 2400", "Samsung"),
        ("Samsung Exynos 2200", "Samsung"),
        ("Dimensity 9300", "MediaTek"),
        ("MediaTek Dimensity 9400", "MediaTek"),
        ("iPhone 16", "Apple"),
        ("A17 Pro", "Apple"),
        ("Apple M4", "Apple"),
    ],
)
def test_a_chip_without_qnn_is_told_by_its_maker(said: str, maker: str) -> None:
    with pytest.raises(UsageError, match=maker):
        chip_named(said)


@pytest.mark.parametrize("said", ["Pixel 5", "Galaxy A16", "Galaxy M35"])
def test_a_phone_that_may_have_a_snapdragon_is_not_told_so(said: str) -> None:
    with pytest.raises(UnknownName):
        chip_named(said)


def test_no_chip_is_both_taken_and_refused() -> None:
    table = toml.loads((MANIFESTS / "socs.toml").read_text(encoding="utf-8"))
    assert not table["others"].keys() & table["socs"].keys()


def test_a_manifest_names_chips_as_qnn_does() -> None:
    with pytest.raises(UsageError) as told:
        soc_named("8gen3")
    assert told.value.fix == "--soc SM8650"
