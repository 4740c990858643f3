"""What a newer QNN build prints that the one before did not is counted: the messages are the vendor's."""

from __future__ import annotations

from pathlib import Path

from ci.inspect.messages import Printer, messages_of
from lab.pins.message_changes import compared, markdown

CONTENT = {
    "2.47.0": b"\x7fELF\0Stub lib id mismatch: expected (%s), detected (%s)\0Failed to load node %d of 12\0",
    "2.49.40": b"\x7fELF\0Failed to load node %u of 13\0QNN_GRAPH_ERROR_INVALID_HANDLE: cannot be used\0",
}


def test_what_a_newer_build_changes_is_counted_and_no_message_of_it_is_on_the_page(tmp_path: Path) -> None:
    rows = []
    for version, content in CONTENT.items():
        root = tmp_path / version
        (root / "lib").mkdir(parents=True)
        (root / "lib" / "libQnnHtp.so").write_bytes(content)
        rows.append(messages_of(Printer("QNN", version, root, version), tmp_path / "store"))
    old, new = rows
    found = compared(new, old)
    assert (len(found["gained"]), len(found["lost"]), found["rules"]) == (1, 1, ["stub-mismatch"])
    text = markdown("2.47.0", "2.49.40", found)
    assert "1 message gained, 1 lost" in text and "`stub-mismatch`" in text
    assert not any(message in text for message in [*found["gained"], *found["lost"]])
