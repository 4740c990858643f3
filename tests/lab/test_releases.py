"""Other executorch and onnxruntime versions beside the installed one."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.builds import releases
from provisioning.base.errors import EnvironmentLacking


def test_a_process_that_would_import_another_package_is_refused(tmp_path: Path) -> None:
    def tree(version: str) -> Path:
        metadata = tmp_path / version / f"onnxruntime_qnn-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(f"Name: onnxruntime-qnn\nVersion: {version}\n")
        return tmp_path / version

    older, newer = tree("2.6.0"), tree("2.7.0")
    environ = {"PYTHONPATH": str(newer)}
    variables = releases.first_on_path(older, "onnxruntime-qnn", "2.6.0", environ)
    assert variables["PYTHONPATH"].startswith(str(older))
    with pytest.raises(EnvironmentLacking, match=r"2\.6\.0.*2\.7\.0"):
        releases.first_on_path(tmp_path / "empty", "onnxruntime-qnn", "2.6.0", environ)
