"""What a library's signature is, for people and for programs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from ci.signing import certificates, mbn, rehearsal, signed_library
from ci.signing.certificates import Certificate
from ci.signing.elf_headers import BadLibrary
from ci.signing.signed_library import Signed
from ci.signing.verification import Bindings, SignedBy, bindings, chain_of, is_for_tests
from provisioning.base.units import align


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
    flags: int | None = None
    signature_size: int | None = None
    qti_signature_size: int | None = None
    certificates: tuple[Certificate, ...] = ()
    qti_certificates: tuple[Certificate, ...] = ()
    note: str = ""
    problems: tuple[str, ...] = ()


def inspect(path: Path) -> Inspection:
    """Describe a library's signature, and any damage. Raises UsageError only if the file cannot be opened."""
    with signed_library.map_file(path) as data:
        try:
            elf, signed = signed_library.parse(data)
        except BadLibrary as error:
            return Inspection(str(path), SignedBy.DAMAGED.value, problems=(error.message,))
        plain = Inspection(
            str(path), SignedBy.UNSIGNED.value, elf.format.bits, elf.arch, segments=len(elf.segments)
        )
        return plain if signed is None else _inspect_signed(str(path), signed)


def format_inspection(file: Inspection) -> str:
    rows = [(f"  {name}", value) for name, value in _rows(file) if value]
    return "\n".join([file.file, *align(rows)]) + "\n"


def _inspect_signed(file: str, signed: Signed) -> Inspection:
    problems = list(signed.container.problems)
    bound = Bindings()
    note = ""
    try:
        bound = bindings(signed)
        note = signed.metadata.note if signed.metadata else ""
    except BadLibrary as error:
        problems.append(error.message)
    # Whether it ends in a known root, `verify` says.
    chain, _ = chain_of(signed)
    kind = SignedBy.TEST if is_for_tests(signed, chain) else SignedBy.UNKNOWN
    if note or rehearsal.has_mark(chain):
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
    for name in ("software_id", "hardware_id", "oem_id", "model_id", "flags"):
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
