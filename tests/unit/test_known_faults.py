"""Faults of the build that a profile pins are named, and no others."""

from __future__ import annotations

import pytest

from provisioning.known_faults import Fault, faults_of, load_faults


@pytest.mark.parametrize(("version", "named"), [("2.47.0", False), ("2.49.40", True), ("2.51.0", False)])
def test_a_fault_is_named_for_its_versions_alone(version: str, named: bool) -> None:
    assert ("llama-decode-u16u8" in {fault.id for fault in faults_of("qnn", version)}) is named
    assert not faults_of("qnn", "1.0")


def test_versions_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(ValueError, match="versions"):
        Fault.model_validate({**load_faults()[0].model_dump(), "versions": "2.49-ish"})
