"""The messages that two builds of QNN print, and what differs."""

from __future__ import annotations

from pathlib import Path

from lab.messages import messages_in
from lab.pins.message_changes import compared

OLD = b"\x7fELF\0Stub lib id mismatch: expected (%s), detected (%s)\0Failed to load node %d of 12\0"
NEW = b"\x7fELF\0Failed to load node %u of 13\0QNN_GRAPH_ERROR_INVALID_HANDLE: cannot be used here\0"


def test_messages_that_differ_in_numbers_alone_are_one_and_a_rule_of_a_lost_one_is_named(
    tmp_path: Path,
) -> None:
    for name, content in {"old": OLD, "new": NEW}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "libQnnHtp.so").write_bytes(content)
        (tmp_path / name / "notes.txt").write_bytes(content[4:])
    found = compared(messages_in(tmp_path / "new"), messages_in(tmp_path / "old"))
    assert found["gained"] == ["QNN_GRAPH_ERROR_INVALID_HANDLE: cannot be used here"]
    assert found["lost"] == ["Stub lib id mismatch: expected (…), detected (…)"]
    assert "stub-mismatch" in found["rules"]
