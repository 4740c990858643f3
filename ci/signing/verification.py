"""Whether a signature holds: each check has a name, and passed, failed or could not be made.

Only a rehearsal's signature can be checked: what Qualcomm's own cover, and in which encoding, is not
public.
"""

from __future__ import annotations

import datetime as dt
import enum
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from ci.signing import certificates, mbn, rehearsal, signed_library
from ci.signing.elf_headers import BadLibrary, Bytes
from ci.signing.signed_library import NAMELESS, Range, Signed
from provisioning.base.commands import Fix
from provisioning.base.findings import Finding, Severity

UNSIGNED = "unsigned"
STRUCTURE = "structure"
HASH_TABLE = "hash table"
HEADERS = "headers"
SEGMENTS = "segments"
SIGNATURE = "signature"
CHAIN = "chain"
ROOT = "root"
PURPOSE = "production"
SERIAL = "serial"
FLAGS = "flags"
INTEGRITY = (STRUCTURE, HASH_TABLE, HEADERS, SEGMENTS, SIGNATURE)
"""If one of these fails, the bytes are not those that were signed."""
ESSENTIAL = (*INTEGRITY, CHAIN, ROOT, PURPOSE)
"""A file counts as verified only if each of these passed, as far as its kind of signature has them."""


SIGNER_KNOWN, SIGNER_UNKNOWN = "signing-signer-known", "signing-signer-unknown"
_SIGN_AGAIN = "sign the unsigned original again"
_UNSIGNED = Fix("sign it: {}", ("sign_lpai",))
_FIXES = {
    ROOT: "--root CERT",
    SIGNATURE: "--allow-unchecked signature",
    SERIAL: "--serial 0x…, the device's",
}
_FOR_PRODUCTION = "sign it with your OEM's service; for development devices: --for development"
_FAILED_FIXES: Mapping[str, str | Fix] = {UNSIGNED: _UNSIGNED, ROOT: _FIXES[ROOT], PURPOSE: _FOR_PRODUCTION}


class Purpose(str, enum.Enum):
    """The devices that a library is for."""

    PRODUCTION = "production"
    DEVELOPMENT = "development"


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
    requested: bool = False
    """Whether the caller requested it, so that it must be checked."""
    fix: str = ""
    """What to type if it was not checked, where that depends on what was found."""

    @property
    def essential(self) -> bool:
        return self.requested or self.part in ESSENTIAL


@dataclass(frozen=True, slots=True)
class ExpectedSignature:
    """What the library must be bound to; None: anything."""

    root: x509.Certificate | None = None
    software_id: int | None = None
    hardware_id: int | None = None
    serial: int | None = None
    purpose: Purpose = Purpose.PRODUCTION
    allowed_flags: int = 0
    """The bits of metadata flags that the caller knows to be right."""
    at: dt.datetime | None = None
    """The moment to judge validity at; None is now."""


@dataclass(frozen=True, slots=True)
class Verification:
    checks: tuple[SignatureCheck, ...]
    unverified: tuple[Range, ...] = ()
    """What the file contains beyond what was verified."""
    rehearsal: bool = False
    test: bool = False
    """Whether it is bound to single devices by their serials, or signed with a test key."""

    @property
    def failed(self) -> list[SignatureCheck]:
        return [c for c in self.checks if c.status is Status.FAILED]

    def unproven(self, waivers: Iterable[str] = ()) -> list[SignatureCheck]:
        """The essential checks that could not be made, except those that the caller allows to be skipped."""
        skip = set(waivers)
        return [c for c in self.checks if c.status is Status.UNCHECKED and c.essential and c.part not in skip]

    @property
    def signer(self) -> SignedBy:
        parts = {check.part for check in self.failed}
        if UNSIGNED in parts:
            return SignedBy.UNSIGNED
        if parts & set(INTEGRITY):
            return SignedBy.DAMAGED
        if self.rehearsal:
            return SignedBy.REHEARSAL
        if self.test:
            return SignedBy.TEST
        return SignedBy.KNOWN if self.under_root else SignedBy.UNKNOWN

    @property
    def under_root(self) -> bool:
        """Whether the chain holds and ends in the root that was named."""
        parts = {check.part for check in self.checks if check.status is Status.PASSED}
        return {CHAIN, ROOT} <= parts

    def verdict(self, waivers: Iterable[str] = ()) -> str:
        if self.failed:
            return "failed"
        return "not proven" if self.unproven(waivers) else "verified"


def verify(data: Bytes, binding: ExpectedSignature | None = None) -> Verification:
    """Check everything about a signature. Never raises for the content of a file: damage is a failed
    check."""
    binding = binding or ExpectedSignature()
    try:
        _, signed = signed_library.parse(data)
    except BadLibrary as damage:
        return Verification((SignatureCheck(STRUCTURE, Status.FAILED, damage.message),))
    if signed is None:
        return Verification((SignatureCheck(UNSIGNED, Status.FAILED, "there is no hash segment"),))
    try:
        unhashed = signed_library.unhashed_ranges(data, signed)
        nameless = [f"{r.what}: {r.start:#x}..{r.end:#x}" for r in unhashed if r.what == NAMELESS]
    except BadLibrary as damage:
        unhashed, nameless = (), [damage.message]
    chain, error = chain_of(signed)
    statement = ""
    with suppress(BadLibrary):  # `_bindings` reports it
        # Only a rehearsal writes a text into the metadata.
        statement = signed.metadata.note if signed.metadata else ""
    is_rehearsal = rehearsal.has_mark(chain) or bool(statement)
    checks = [
        *_structure(signed, nameless),
        *_hashes(data, signed),
        *_authority(signed, chain, error, is_rehearsal, binding),
        *_bindings(signed, binding),
        *_flags(signed, binding),
    ]
    if binding.purpose is Purpose.PRODUCTION:
        checks.append(_purpose(signed, chain, is_rehearsal, binding.root))
    unverified = (*unhashed, *_unverified_parts(signed, checks))
    return Verification(tuple(checks), unverified, is_rehearsal, is_for_tests(signed, chain))


def verify_file(path: Path, binding: ExpectedSignature | None = None) -> Verification:
    with signed_library.map_file(path) as data:
        return verify(data, binding)


def _structure(signed: Signed, nameless: Sequence[str]) -> Iterator[SignatureCheck]:
    problems = [*signed.container.problems, *nameless]
    head = signed.elf.segments[signed.head_index] if signed.head_index is not None else None
    if head is None:
        problems.append("there is no placeholder for the ELF header among the program headers")
    elif (signed.head_index, signed.hash_index) != (0, 1):
        problems.append("the two signing program headers are not the first two")
    if head is not None and (head.offset, head.filesz) != (0, signed.elf.head_size):
        problems.append(
            f"the header placeholder covers bytes {head.offset}..{head.end}, "
            f"the headers are bytes 0..{signed.elf.head_size}"
        )
    if signed.elf.header.phoff != signed.elf.format.header.size:
        problems.append("the program headers do not follow the ELF header")
    table = signed.hash_segment
    for index, segment in enumerate(signed.elf.segments):
        overlaps = segment.offset < table.end and table.offset < segment.end
        if index != signed.hash_index and segment.filesz and overlaps:
            problems.append(f"segment {index} overlaps the hash segment")
    yield from _verdict(STRUCTURE, problems, "two signing program headers, one hash segment, sizes agree")


def _hashes(data: Bytes, signed: Signed) -> Iterator[SignatureCheck]:
    algorithm = signed.container.digest
    if algorithm is None:
        number = signed.container.common.get("hash_algorithm")
        for part in (HASH_TABLE, HEADERS, SEGMENTS):
            yield SignatureCheck(part, Status.UNCHECKED, f"hash algorithm {number} is not publicly defined")
        return
    size = hashlib.new(algorithm).digest_size
    table = signed.part(mbn.HASHES)
    count = len(signed.elf.segments)
    if len(table) != count * size:
        yield SignatureCheck(
            HASH_TABLE,
            Status.FAILED,
            f"expected {count} entries of {size} bytes, one a program header, found {len(table)} bytes",
        )
        return
    entries = [table[at : at + size] for at in range(0, len(table), size)]
    digests = signed_library.segment_digests(data, signed.elf, algorithm)
    problems = {HASH_TABLE: list[str](), HEADERS: list[str](), SEGMENTS: list[str]()}
    for index, (entry, digest) in enumerate(zip(entries, digests, strict=True)):
        if entry == digest:
            continue
        segment = signed.elf.segments[index]
        if index == signed.head_index:
            problems[HEADERS].append(
                "the ELF header or program headers differ from their entry in the hash table"
            )
        elif not any(digest):
            problems[HASH_TABLE].append(f"entry {index} must be zeros")
        else:
            fault = "has no hash" if not any(entry) else "differs from its hash"
            problems[SEGMENTS].append(
                f"segment {index} (bytes {segment.offset:#x}..{segment.end:#x}) {fault}"
            )
    if signed.head_index is None:
        problems[HEADERS].append("nothing covers the ELF header and program headers")
    yield from _verdict(HASH_TABLE, problems[HASH_TABLE], f"{count} entries, {algorithm.upper()}")
    yield from _verdict(HEADERS, problems[HEADERS], "ELF header and program headers")
    yield from _verdict(SEGMENTS, problems[SEGMENTS], f"{sum(map(any, digests))} hashed ranges agree")


def chain_of(signed: Signed) -> tuple[list[x509.Certificate], str]:
    """The certificates, or none and why they cannot be read."""
    try:
        chain = certificates.load(certificates.split(signed.part(mbn.CERTIFICATES)))
    except BadLibrary as error:
        return [], error.message
    return chain, "" if chain else "certificates: there are none"


def _authority(
    signed: Signed, chain: list[x509.Certificate], error: str, is_rehearsal: bool, binding: ExpectedSignature
) -> Iterator[SignatureCheck]:
    """Signature, chain, root."""
    at = binding.at or dt.datetime.now(dt.timezone.utc)
    if not chain:
        yield SignatureCheck(CHAIN, Status.FAILED, error)
        yield SignatureCheck(SIGNATURE, Status.FAILED, "there is no attestation certificate to check it with")
        return
    yield _signature(signed, chain[0], is_rehearsal)
    if signed.container.part(mbn.QTI_SIGNATURE).size:
        yield SignatureCheck(
            "QTI signature", Status.UNCHECKED, "what Qualcomm's own signature covers is not public"
        )
    full = certificates.chain_with(chain, binding.root)
    problem = certificates.broken_link(full) or certificates.problem(full, at)
    moment = at.isoformat(timespec="seconds")
    if problem:
        yield SignatureCheck(CHAIN, Status.FAILED, f"it does not hold at {moment}: {problem}")
    else:
        message = f"{len(chain)} certificates, which sign one another and hold at {moment}"
        yield SignatureCheck(CHAIN, Status.PASSED, message)
    end = certificates.name_of(full[-1])
    if binding.root is None:
        message = f"no root certificate was given, and anybody can make a chain that ends in {end}"
        yield SignatureCheck(ROOT, Status.UNCHECKED, message)
    elif full[-1] == binding.root:
        yield SignatureCheck(ROOT, Status.PASSED, f"ends in the given root {end}")
    else:
        message = f"the chain ends in {end}, not in the given root {certificates.name_of(binding.root)}"
        yield SignatureCheck(ROOT, Status.FAILED, message)


def _signature(signed: Signed, attestation: x509.Certificate, is_rehearsal: bool) -> SignatureCheck:
    signature = signed.part(mbn.SIGNATURE)
    if not any(signature):
        # No scheme has a signature of zeros: r and s of ECDSA are at least 1, and RSA's is padded.
        return SignatureCheck(SIGNATURE, Status.FAILED, "it is all zeros" if signature else "there is none")
    if is_rehearsal:
        message = "by the attestation key over MBN header, metadata and hash table"
        if rehearsal.is_signature(attestation.public_key(), signature, signed.signed_part):
            return SignatureCheck(SIGNATURE, Status.PASSED, message)
        return SignatureCheck(SIGNATURE, Status.FAILED, f"is not one {message}")
    return SignatureCheck(
        SIGNATURE,
        Status.UNCHECKED,
        f"the range and encoding of MBN v{signed.container.version} signatures are not public, so another "
        "library with the same chain would not be noticed",
    )


def is_for_tests(signed: Signed, chain: Sequence[x509.Certificate]) -> bool:
    """Whether it is bound to single devices, or signed with a key that is known to be for tests."""
    known = (metadata for _, metadata in _metadata_parts(signed))
    return bool(certificates.test_key(chain)) or any(metadata and metadata.restriction for metadata in known)


def _metadata_parts(signed: Signed) -> Iterator[tuple[mbn.MbnPart, mbn.Metadata | mbn.V7Metadata | None]]:
    """The OEM's metadata, and Qualcomm's if there is any; None for a layout that is not public."""
    for name in (mbn.METADATA, mbn.QTI_METADATA):
        part = signed.container.part(name)
        if part.size or name == mbn.METADATA:
            yield part, mbn.known_metadata(signed.container.version, signed.part(name))


def _purpose(
    signed: Signed, chain: list[x509.Certificate], is_rehearsal: bool, root: x509.Certificate | None
) -> SignatureCheck:
    """Whether the library is for the devices that people buy, as far as its signature says."""
    if is_rehearsal:
        message = "a rehearsal's signature, which no device is known to accept"
        return SignatureCheck(PURPOSE, Status.FAILED, message)
    if name := certificates.test_key([*chain, root] if root else chain):
        message = f"a test signature: {name} says that its key is for tests"
        return SignatureCheck(PURPOSE, Status.FAILED, message)
    parts = list(_metadata_parts(signed))
    for part, metadata in parts:
        if metadata and metadata.restriction:
            message = f"a test signature by its {part.name}: {metadata.restriction}"
            return SignatureCheck(PURPOSE, Status.FAILED, message)
    for part, metadata in parts:
        if metadata is None:
            message = f"the form of its {part.name} is not public, so it may be bound to single devices"
            return SignatureCheck(PURPOSE, Status.UNCHECKED, message)
    message = "no rehearsal, no known test key, bound to no single device"
    return SignatureCheck(PURPOSE, Status.PASSED, message)


def _flags(signed: Signed, binding: ExpectedSignature) -> Iterator[SignatureCheck]:
    """Flags that are on: nobody outside Qualcomm has proved what devices do with them."""
    version = signed.container.version
    place = mbn.FLAGS[version]
    for part, metadata in _metadata_parts(signed):
        flags = metadata.flags & ~place.off if metadata else 0
        if not flags:
            continue
        at = signed.hash_segment.offset + part.start + place.offset
        message = f"{mbn.flag_names(version, flags)} in the {part.name}, at byte {at:#x}"
        if flags & ~binding.allowed_flags:
            reason = "nobody has proved what devices do with them"
            requested = binding.purpose is Purpose.PRODUCTION
        else:
            reason, requested = f"taken by --allow-flags {binding.allowed_flags:#x}", False
        fix = f"--allow-flags {flags:#x}, if your devices are known to take them"
        yield SignatureCheck(FLAGS, Status.UNCHECKED, f"{message}: {reason}", requested, fix)


def _unverified_parts(signed: Signed, checks: Iterable[SignatureCheck]) -> Iterator[Range]:
    """The parts of the hash segment that no check verified."""
    passed = {check.part for check in checks if check.status is Status.PASSED}
    names = [mbn.QTI_SIGNATURE, mbn.QTI_CERTIFICATES]
    if SIGNATURE not in passed:
        names += [mbn.HEADER, mbn.COMMON, mbn.QTI_METADATA, mbn.METADATA, mbn.HASHES, mbn.SIGNATURE]
    if CHAIN not in passed:
        names.append(mbn.CERTIFICATES)
    start = signed.hash_segment.offset
    for part in signed.container.parts:
        if part.name in names and part.size:
            yield Range(start + part.start, start + part.end, f"{part.name} of the hash segment")


def _bindings(signed: Signed, binding: ExpectedSignature) -> Iterator[SignatureCheck]:
    try:
        facts = bindings(signed)
    except BadLibrary as error:
        yield SignatureCheck("metadata", Status.FAILED, error.message)
        return
    for part, number, actual in (
        ("software id", binding.software_id, _single(facts.software_id)),
        ("hardware id", binding.hardware_id, _single(facts.hardware_id)),
        (SERIAL, binding.serial, facts.serials),
    ):
        values = ", ".join(map(hex, actual or ())) or "none"
        if number is None:
            if part == SERIAL and actual:
                message = f"bound to {values}; no device was named"
                yield SignatureCheck(part, Status.UNCHECKED, message, requested=True)
        elif actual is None:
            message = f"where MBN v{signed.container.version} keeps it is not public"
            yield SignatureCheck(part, Status.UNCHECKED, message, requested=True)
        elif number in actual:
            yield SignatureCheck(part, Status.PASSED, values)
        else:
            yield SignatureCheck(part, Status.FAILED, f"expected {number:#x}, found {values}")


def _single(value: int | None) -> tuple[int, ...] | None:
    return None if value is None else (value,)


@dataclass(frozen=True, slots=True)
class Bindings:
    """A field is None if this container version does not publicly state it."""

    software_id: int | None = None
    hardware_id: int | None = None
    oem_id: int | None = None
    model_id: int | None = None
    serials: tuple[int, ...] | None = None
    anti_rollback: int | None = None
    flags: int | None = None
    """Bits whose meaning nobody has proved."""


def bindings(signed: Signed) -> Bindings:
    """Read what a library is bound to, from the metadata of version 6 or the common metadata of version 7."""
    if signed.container.version == 7:
        software_id = signed.container.common["software_id"]
        known = mbn.parse_v7_metadata(signed.part(mbn.METADATA))
        if known is None:
            return Bindings(software_id)
        return Bindings(
            software_id,
            oem_id=known.oem_id,
            model_id=known.model_id,
            serials=known.serials,
            anti_rollback=known.anti_rollback,
            flags=known.flags,
        )
    metadata = signed.metadata
    if metadata is None:
        return Bindings()
    return Bindings(*(getattr(metadata, name) for name in Bindings.__slots__))


def _verdict(part: str, problems: list[str], good: str) -> Iterator[SignatureCheck]:
    if problems:
        for problem in problems:
            yield SignatureCheck(part, Status.FAILED, problem)
    else:
        yield SignatureCheck(part, Status.PASSED, good)


def findings_of(path: Path, result: Verification, *, waivers: Iterable[str] = ()) -> Iterator[Finding]:
    """Report errors for what failed or is not proven, a warning for a rehearsal, notes for the rest."""
    subject = str(path)
    waivers = set(waivers)
    for check in result.checks:
        if check.status is Status.PASSED:
            if check.part == ROOT and result.under_root:
                yield Finding(SIGNER_KNOWN, Severity.NOTE, subject, check.message, "")
            continue
        if check.status is Status.FAILED:
            fix = _FAILED_FIXES.get(check.part, _SIGN_AGAIN)
            rule = f"signing-{check.part.replace(' ', '-')}"
            yield Finding(rule, Severity.ERROR, subject, f"{check.part}: {check.message}", fix)
        elif check.essential and check.part not in waivers:
            fix = check.fix or _FIXES.get(
                check.part, "ask whoever signed it; the public format does not tell"
            )
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
            rehearsal.STATEMENT,
            "sign with elfsigner, or with your OEM's service, for devices that people buy",
        )
