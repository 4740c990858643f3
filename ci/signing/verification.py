"""Whether a signature holds: each check has a name, and passed, failed or could not be made. And what a
library's signature is, for people and for programs.

Only a rehearsal's signature can be checked: what Qualcomm's own cover, and in which encoding, is not
public.
"""

from __future__ import annotations

import datetime as dt
import enum
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.x509.oid import NameOID

from ci.signing import certificates, mbn, signed_library
from ci.signing.certificates import Certificate
from ci.signing.elf_headers import BadLibrary, Bytes
from ci.signing.signed_library import NAMELESS, Range, Signed
from provisioning.base.commands import Fix
from provisioning.base.findings import Finding, Severity
from provisioning.base.units import aligned

REHEARSAL = "REHEARSAL OF SIGNING (NOT FOR DEVICES)"
"""An organisational unit in the subject of every certificate of a rehearsal: its mark."""

STATEMENT = "REHEARSAL OF SIGNING: the root was made for it, and no device is known to accept it."

DIGEST = "sha384"
REHEARSAL_SIZE = 96
"""ECDSA on P-384: r and s, big-endian, 48 bytes each."""

_HALF = REHEARSAL_SIZE // 2


UNSIGNED = "unsigned"
STRUCTURE = "structure"
HASH_TABLE = "hash table"
HEADERS = "headers"
SEGMENTS = "segments"
SIGNATURE = "signature"
CHAIN = "chain"
ROOT = "root"
INTEGRITY = (STRUCTURE, HASH_TABLE, HEADERS, SEGMENTS, SIGNATURE)
"""If one of these fails, the bytes are not those that were signed."""
ESSENTIAL = (*INTEGRITY, CHAIN, ROOT)
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
    """Never raises for the content of a file: damage is a failed check."""
    binding = binding or ExpectedSignature()
    try:
        _, signed = signed_library.parse(data)
    except BadLibrary as damage:
        return Verification((SignatureCheck(STRUCTURE, Status.FAILED, damage.message),))
    if signed is None:
        return Verification((SignatureCheck(UNSIGNED, Status.FAILED, "there is no hash segment"),))
    try:
        unhashed = signed_library.unhashed(data, signed)
        nameless = [f"{r.what}: {r.start:#x}..{r.end:#x}" for r in unhashed if r.what == NAMELESS]
    except BadLibrary as damage:
        unhashed, nameless = (), [damage.message]
    chain, error = chain_of(signed)
    statement, bound = "", False
    with suppress(BadLibrary):  # `_bindings` reports it
        # Only a rehearsal writes a text into the metadata.
        statement = signed.metadata.note if signed.metadata else ""
        bound = bool(bindings(signed).serials)
    rehearsal = is_rehearsal(chain) or bool(statement)
    checks = (
        *_structure(signed, nameless),
        *_hashes(data, signed),
        *_authority(signed, chain, error, rehearsal, binding),
        *_bindings(signed, binding),
    )
    return Verification(checks, unhashed, rehearsal, bound)


def verify_file(path: Path, binding: ExpectedSignature | None = None) -> Verification:
    with signed_library.mapped(path) as data:
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
    signed: Signed, chain: list[x509.Certificate], error: str, rehearsal: bool, binding: ExpectedSignature
) -> Iterator[SignatureCheck]:
    """Signature, chain, root."""
    at = binding.at or dt.datetime.now(dt.timezone.utc)
    if not chain:
        yield SignatureCheck(CHAIN, Status.FAILED, error)
        yield SignatureCheck(SIGNATURE, Status.FAILED, "there is no attestation certificate to check it with")
        return
    yield _signature(signed, chain[0], rehearsal)
    if signed.container.part(mbn.QTI_SIGNATURE).size:
        yield SignatureCheck(
            "QTI signature", Status.UNCHECKED, "what Qualcomm's own signature covers is not public"
        )
    full = certificates.chain_with(chain, binding.root)
    problem = certificates.problem(full, at)
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


def _signature(signed: Signed, attestation: x509.Certificate, rehearsal: bool) -> SignatureCheck:
    signature = signed.part(mbn.SIGNATURE)
    if not any(signature):
        # No scheme has a signature of zeros: r and s of ECDSA are at least 1, and RSA's is padded.
        return SignatureCheck(SIGNATURE, Status.FAILED, "it is all zeros" if signature else "there is none")
    if rehearsal:
        message = "by the attestation key over MBN header, metadata and hash table"
        if verify_rehearsal(attestation.public_key(), signature, signed.signed_part):
            return SignatureCheck(SIGNATURE, Status.PASSED, message)
        return SignatureCheck(SIGNATURE, Status.FAILED, f"is not one {message}")
    return SignatureCheck(
        SIGNATURE,
        Status.UNCHECKED,
        f"the range and encoding of MBN v{signed.container.version} signatures are not public, so another "
        "library with the same chain would not be noticed",
    )


def _bindings(signed: Signed, binding: ExpectedSignature) -> Iterator[SignatureCheck]:
    try:
        facts = bindings(signed)
    except BadLibrary as error:
        yield SignatureCheck("metadata", Status.FAILED, error.message)
        return
    for part, number, actual in (
        ("software id", binding.software_id, _single(facts.software_id)),
        ("hardware id", binding.hardware_id, _single(facts.hardware_id)),
        ("serial", binding.serial, facts.serials),
    ):
        values = ", ".join(map(hex, actual or ())) or "none"
        if number is None:
            if part == "serial" and actual:
                message = f"bound to {values}; no device was named"
                yield SignatureCheck(part, Status.UNCHECKED, message)
        elif actual is None:
            message = f"where MBN v{signed.container.version} keeps it is not public"
            yield SignatureCheck(part, Status.UNCHECKED, message, asked=True)
        elif number in actual:
            yield SignatureCheck(part, Status.PASSED, values)
        else:
            yield SignatureCheck(part, Status.FAILED, f"expected {number:#x}, found {values}")


def _single(value: int | None) -> tuple[int, ...] | None:
    return None if value is None else (value,)


@dataclass(frozen=True, slots=True)
class Bindings:
    """None: this container version does not publicly say."""

    software_id: int | None = None
    hardware_id: int | None = None
    oem_id: int | None = None
    model_id: int | None = None
    serials: tuple[int, ...] | None = None
    anti_rollback: int | None = None


def bindings(signed: Signed) -> Bindings:
    """Read from the metadata of version 6, or the common metadata of version 7."""
    if signed.container.version == 7:
        return Bindings(software_id=signed.container.common["software_id"])
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


def is_rehearsal(certificates: list[x509.Certificate]) -> bool:
    """Whether the chain is a rehearsal's. One name with the mark is enough."""
    return any(
        attribute.value == REHEARSAL
        for certificate in certificates
        for name in (certificate.subject, certificate.issuer)
        for attribute in name.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
    )


def sign_rehearsal(private: ec.EllipticCurvePrivateKey, signed: bytes) -> bytes:
    r, s = decode_dss_signature(private.sign(signed, ec.ECDSA(hashes.SHA384())))
    return r.to_bytes(_HALF, "big") + s.to_bytes(_HALF, "big")


def verify_rehearsal(public: object, signature: bytes, signed: bytes) -> bool:
    if not isinstance(public, ec.EllipticCurvePublicKey) or len(signature) != REHEARSAL_SIZE:
        return False
    r, s = (int.from_bytes(half, "big") for half in (signature[:_HALF], signature[_HALF:]))
    try:
        public.verify(encode_dss_signature(r, s), signed, ec.ECDSA(hashes.SHA384()))
    except (InvalidSignature, UnsupportedAlgorithm, ValueError):
        return False
    return True


def findings_of(path: Path, result: Verification, *, waivers: Iterable[str] = ()) -> Iterator[Finding]:
    """Errors for what failed or is not proven, a warning for a rehearsal, notes for the rest."""
    subject = str(path)
    waivers = set(waivers)
    for check in result.checks:
        if check.status is Status.PASSED:
            if check.part == ROOT and result.under_root:
                yield Finding(SIGNER_KNOWN, Severity.NOTE, subject, check.message, "")
            continue
        if check.status is Status.FAILED:
            fix = {UNSIGNED: _UNSIGNED, ROOT: _FIXES[ROOT]}.get(check.part, _SIGN_AGAIN)
            rule = f"signing-{check.part.replace(' ', '-')}"
            yield Finding(rule, Severity.ERROR, subject, f"{check.part}: {check.message}", fix)
        elif check.essential and check.part not in waivers:
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
            STATEMENT,
            "sign with elfsigner, or with your OEM's service, for devices that people buy",
        )


# What a signature is, for people and for programs


@dataclass(frozen=True, slots=True)
class Inspection:
    file: str
    kind: str
    bits: int | None = None
    arch: int | None = None
    segments: int | None = None
    mbn_version: int | None = None
    hash_algorithm: str | None = None
    hashes: int | None = None
    software_id: int | None = None
    hardware_id: int | None = None
    oem_id: int | None = None
    model_id: int | None = None
    serials: tuple[int, ...] | None = None
    anti_rollback: int | None = None
    signature_size: int | None = None
    qti_signature_size: int | None = None
    certificates: tuple[Certificate, ...] = ()
    qti_certificates: tuple[Certificate, ...] = ()
    note: str = ""
    problems: tuple[str, ...] = ()


def inspect(path: Path) -> Inspection:
    """Raises UsageError if the file cannot be opened. Damage is described, not raised."""
    with signed_library.mapped(path) as data:
        try:
            elf, signed = signed_library.parse(data)
        except BadLibrary as error:
            return Inspection(str(path), SignedBy.DAMAGED.value, problems=(error.message,))
        plain = Inspection(
            str(path), SignedBy.UNSIGNED.value, elf.format.bits, elf.arch, segments=len(elf.segments)
        )
        return plain if signed is None else _signed(str(path), signed)


def as_text(file: Inspection) -> str:
    rows = [(f"  {name}", value) for name, value in _rows(file) if value]
    return "\n".join([file.file, *aligned(rows)]) + "\n"


def _signed(file: str, signed: signed_library.Signed) -> Inspection:
    problems = list(signed.container.problems)
    bound = Bindings()
    note = ""
    try:
        bound = bindings(signed)
        note = signed.metadata.note if signed.metadata else ""
    except BadLibrary as error:
        problems.append(error.message)
    # Whether it ends in a known root, `verify` says.
    kind = SignedBy.TEST if bound.serials else SignedBy.UNKNOWN
    if note or is_rehearsal(chain_of(signed)[0]):
        kind = SignedBy.REHEARSAL
    digest = signed.container.digest
    return Inspection(
        file=file,
        kind=kind.value,
        bits=signed.elf.format.bits,
        arch=signed.elf.arch,
        segments=len(signed.elf.segments)
        - (1 if signed.head_index is None else signed_library.SIGNING_HEADERS),
        mbn_version=signed.container.version,
        hash_algorithm=digest,
        hashes=signed.container.part(mbn.HASHES).size // hashlib.new(digest).digest_size if digest else None,
        **asdict(bound),
        signature_size=signed.container.part(mbn.SIGNATURE).size,
        qti_signature_size=signed.container.part(mbn.QTI_SIGNATURE).size,
        certificates=_certificates(signed.part(mbn.CERTIFICATES), problems),
        qti_certificates=_certificates(signed.part(mbn.QTI_CERTIFICATES), problems),
        note=note,
        problems=tuple(problems),
    )


def _certificates(area: bytes, problems: list[str]) -> tuple[Certificate, ...]:
    try:
        return tuple(map(certificates.describe, certificates.load(certificates.split(area))))
    except BadLibrary as error:
        problems.append(error.message)
        return ()


def _rows(inspection: Inspection) -> Iterator[tuple[str, str]]:
    yield "signature", inspection.kind
    if inspection.bits:
        hexagon = f"Hexagon v{inspection.arch}" if inspection.arch else "not Hexagon"
        yield "library", f"ELF{inspection.bits}, {hexagon}"
        yield "segments", str(inspection.segments)
    if inspection.mbn_version:
        yield "hash segment", f"MBN v{inspection.mbn_version}, {inspection.hashes or '?'} hashes"
        yield "hash algorithm", (inspection.hash_algorithm or "not publicly defined").upper()
        yield "signature size", f"{inspection.signature_size} bytes"
        if inspection.qti_signature_size:
            yield "QTI signature size", f"{inspection.qti_signature_size} bytes"
    for name in ("software_id", "hardware_id", "oem_id", "model_id"):
        value = getattr(inspection, name)
        yield name.replace("_", " "), "" if value is None else f"{value:#x}"
    if inspection.serials is not None:
        yield "serials", ", ".join(f"0x{serial:08x}" for serial in inspection.serials) or "bound to none"
    yield "anti-rollback", "" if inspection.anti_rollback is None else str(inspection.anti_rollback)
    for role, chain in (("", inspection.certificates), ("QTI ", inspection.qti_certificates)):
        for index, certificate in enumerate(chain):
            yield f"{role}certificate {index}", certificate.subject
            yield "  valid", f"{certificate.not_before} to {certificate.not_after}"
            yield "  key", f"{certificate.key}, signed with {certificate.signature_hash.upper()}"
            for unit in certificate.organisational_units:
                yield "  OU", unit
    yield "note", inspection.note
    for problem in inspection.problems:
        yield "problem", problem
