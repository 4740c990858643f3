from __future__ import annotations

from pathlib import Path

import pytest

from provisioning.build_id import build_ids

NEW, OLD = b"v2.49.40.260810104044", b"v2.37.0.250724175447_124859"


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", ()),
        (b"no id here, v2.49 is none", ()),
        (b"\0" + NEW + b"\0", (NEW.decode(),)),
        (OLD, (OLD.decode(),)),
        (NEW + b"\0" + OLD + b"\0" + NEW, (OLD.decode(), NEW.decode())),
        (b"\xff" * (3 << 20) + NEW + b"\xff" * 100, (NEW.decode(),)),
        (b"v2.49.40.26081010404", ()),
    ],
    ids=["empty", "none", "one", "with a suffix", "two", "deep in a file", "cut short"],
)
def test_every_distinct_build_id_is_found(content: bytes, found: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(content)
    assert build_ids(path) == found
