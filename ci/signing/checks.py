"""What a verification says: each check has a name, and passed, failed or could not be made."""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ci.signing import signatures
from ci.signing.signed_library import Range
from provisioning.base.commands import Fix
from provisioning.base.findings import Finding, Severity

if TYPE_CHECKING:
    from cryptography import x509

UNSIGNED = "unsigned"
STRUCTURE = "structure"
HASH_TABLE = "hash table"
HEADERS = "headers"
SEGMENTS = "segments"
SIGNATURE = "signature"
CHAIN = "chain"
ROOT = "root"
INTEGRITY = (STRUCTURE, HASH_TABLE, HEADERS, SEGMENTS, SIGNATURE, CHAIN)
"""If one of these fails, the bytes are not those that were signed."""
ESSENTIAL = (*INTEGRITY, ROOT)
"""A file counts as verified only if each of these passed, as far as its kind of signature has them."""


SIGNER_KNOWN, SIGNER_UNKNOWN = "signing-signer-known", "signing-signer-unknown"
_SIGN_AGAIN = "sign the unsigned original again"
_UNSIGNED = Fix("sign it: {}", ("sign_lpai",))
_FIXES = {
    ROOT: "--root CERT",
    SIGNATURE: "--allow-unchecked signature",
}


class SignedBy(str, enum.Enum):
    """Who signed a library."""

    KNOWN = "known root"
    UNKNOWN = "unknown signer"
    REHEARSAL = "development rehearsal"
    TEST = "test signature"
    UNSIGNED = "unsigned"
    DAMAGED = "damaged"


class Status(str, enum.Enum):
    PASSED = "passed"
    FAILED = "failed"
    UNCHECKED = "not checked"


@dataclass(frozen=True, slots=True)
class SignatureCheck:
    part: str
    status: Status
    message: str
    asked: bool = False
    """Whether the caller requested it, so that it must be checked."""

    @property
    def essential(self) -> bool:
        return self.asked or self.part in ESSENTIAL


@dataclass(frozen=True, slots=True)
class ExpectedSignature:
    """What the library must be bound to; None: anything."""

    root: x509.Certificate | None = None
    software_id: int | None = None
    hardware_id: int | None = None
    serial: int | None = None
    at: dt.datetime | None = None
    """The moment to judge validity at; None is now."""


@dataclass(frozen=True, slots=True)
class Verification:
    checks: tuple[SignatureCheck, ...]
    unhashed: tuple[Range, ...] = ()
    rehearsal: bool = False
    test: bool = False
    """Bound to single devices by their serials."""

    @property
    def failed(self) -> list[SignatureCheck]:
        return [c for c in self.checks if c.status is Status.FAILED]

    def unproven(self, allowed: Iterable[str] = ()) -> list[SignatureCheck]:
        """The essential checks that could not be made, except those that the caller allows to be skipped."""
        skip = set(allowed)
        return [c for c in self.checks if c.status is Status.UNCHECKED and c.essential and c.part not in skip]

    @property
    def signer(self) -> SignedBy:
        failed = {check.part for check in self.failed}
        if UNSIGNED in failed:
            return SignedBy.UNSIGNED
        if failed & set(INTEGRITY):
            return SignedBy.DAMAGED
        if self.rehearsal:
            return SignedBy.REHEARSAL
        if self.test:
            return SignedBy.TEST
        return SignedBy.KNOWN if self.under_root else SignedBy.UNKNOWN

    @property
    def under_root(self) -> bool:
        """Whether the chain holds and ends in the root that was named."""
        passed = {check.part for check in self.checks if check.status is Status.PASSED}
        return {CHAIN, ROOT} <= passed

    def verdict(self, allowed: Iterable[str] = ()) -> str:
        if self.failed:
            return "failed"
        return "not proven" if self.unproven(allowed) else "verified"


def findings_of(path: Path, result: Verification, *, allowed: Iterable[str] = ()) -> Iterator[Finding]:
    """Errors for what failed or is not proven, a warning for a rehearsal, notes for the rest."""
    subject = str(path)
    allowed = set(allowed)
    for check in result.checks:
        if check.status is Status.PASSED:
            if check.part == ROOT and result.under_root:
                yield Finding(SIGNER_KNOWN, Severity.NOTE, subject, check.message, "")
            continue
        if check.status is Status.FAILED:
            fix = {UNSIGNED: _UNSIGNED, ROOT: _FIXES[ROOT]}.get(check.part, _SIGN_AGAIN)
            rule = f"signing-{check.part.replace(' ', '-')}"
            yield Finding(rule, Severity.ERROR, subject, f"{check.part}: {check.message}", fix)
        elif check.essential and check.part not in allowed:
            fix = _FIXES.get(check.part, "ask whoever signed it; the public format does not tell")
            message = f"{check.part} not checked: {check.message}"
            yield Finding("signing-not-proven", Severity.ERROR, subject, message, fix)
        elif check.part == ROOT:
            message = f"{SignedBy.UNKNOWN.value}: {check.message}"
            yield Finding(SIGNER_UNKNOWN, Severity.WARNING, subject, message, _FIXES[ROOT])
        else:
            message = f"{check.part} not checked: {check.message}"
            yield Finding("signing-not-checked", Severity.NOTE, subject, message, "")
    if result.rehearsal:
        yield Finding(
            "signing-development-only",
            Severity.WARNING,
            subject,
            signatures.STATEMENT,
            "sign with elfsigner, or with your OEM's service, for devices that people buy",
        )
