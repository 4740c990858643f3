"""Files that we write anew: whole or as they were."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from provisioning.base.errors import EnvironmentLacking
from provisioning.base.files import disk_errors, replace_text


def test_a_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o640)
    replace_text(path, "new")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o640)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    replace_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "new"


@pytest.mark.parametrize("step", ["write_text", "replace"])
def test_of_a_try_that_failed_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    (tmp_path / "file").write_text("old")

    def full(part: Path, *_: object, **__: object) -> None:
        part.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(Path, step, full)
        with pytest.raises(OSError) as caught:
            replace_text(tmp_path / "file", "new")
    assert caught.value.errno == errno.ENOSPC
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "old"


def test_of_a_copy_the_full_disk_is_named() -> None:
    with pytest.raises(EnvironmentLacking, match="written:"), disk_errors("name another"):
        raise OSError(errno.ENOSPC, "No space left on device", "read", None, "written")
