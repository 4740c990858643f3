"""What `test_upstream` and `test_delegate` are asked for."""

from __future__ import annotations

from dataclasses import dataclass

from ci.pipeline.options import Choice, Work
from provisioning.base.settings import Selection


@dataclass(frozen=True, slots=True)
class Options:
    selection: Selection
    choice: Choice
    flows: tuple[str, ...]
    sample: str | None
    """I/N; empty for the ledger's own, and None for all tests."""
    work: Work
    fail_fast: bool
    resume: bool
    update_ledger: bool
    table: bool

    @property
    def updates(self) -> bool:
        return self.update_ledger or self.table
