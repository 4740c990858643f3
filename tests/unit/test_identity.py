"""What components and libraries say of themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioning.components import Identity, build_ids, identity_of


@pytest.mark.parametrize(
    ("text", "identities"),
    [
        (
            "version: 2.37.0.250724\nbuild_id: v2.37.0.250724175447\n",
            ("2.37.0.250724", "v2.37.0.250724175447"),
        ),
        ("version: 'v2.40.0'  # the release\nbuild-id: \"b\"\n", ("2.40.0", "b")),
        ("versions: 3\nmy_version: 3\n", ("", "")),
        ("\0\xff version", ("", "")),
    ],
)
def test_an_sdk_is_what_its_yaml_says(tmp_path: Path, text: str, identities: tuple[str, str]) -> None:
    (tmp_path / "sdk.yaml").write_text(text, encoding="latin-1")
    assert identity_of("qnn-sdk", tmp_path) == Identity(*identities)


def test_an_ndk_is_what_its_properties_say(tmp_path: Path) -> None:
    (tmp_path / "source.properties").write_text("Pkg.Desc = NDK\nPkg.Revision = 26.2.11394342\n")
    assert identity_of("android-ndk", tmp_path) == Identity("26.2.11394342")


NEW, OLD = b"v2.49.40.260810104044", b"v2.37.0.250724175447_124859"


@pytest.mark.parametrize(
    ("content", "ids"),
    [
        (b"", ()),
        (b"\0" + NEW + b"\0", (NEW.decode(),)),
        (NEW + b"\0" + OLD + b"\0" + NEW, (OLD.decode(), NEW.decode())),
        (b"\xff" * (3 << 20) + NEW + b"\xff" * 100, (NEW.decode(),)),
        (b"v2.49.40.26081010404", ()),
    ],
)
def test_every_distinct_build_id_is_found(content: bytes, ids: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(content)
    assert build_ids(path) == ids
