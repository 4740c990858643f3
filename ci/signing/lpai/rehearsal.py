"""A rehearsal of signing: a standard hash segment (MBN v6) under a chain made for the run.

It shows that the whole way works (sign, verify, bundle, push) where there is no Hexagon SDK. No device is
known to accept the result. What is signed and how is defined in docs/signing.md.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ci.signing import certificates, mbn, signed_library, verification
from ci.signing.headers import (
    PT_LOAD,
    PT_NULL,
    BadLibrary,
    Bytes,
    ElfSegment,
    Format,
    Header,
    Layout,
)
from provisioning.base.errors import UsageError
from provisioning.elf import MOST_SEGMENTS

SOFTWARE_ID = 0x04
"""The audio DSP's, which LPAI runs on."""

DAYS = 365
SHT_NULL = 0


@dataclass(frozen=True, slots=True)
class KeyAndChain:
    """A chain and the key of its first certificate. The key is in memory only."""

    chain: tuple[x509.Certificate, ...]
    """Attestation first, root last."""
    key: ec.EllipticCurvePrivateKey = field(repr=False)

    @property
    def root(self) -> x509.Certificate:
        return self.chain[-1]


def new_signer() -> KeyAndChain:
    """Root, CA and attestation certificates. All keys are new; those of root and CA are forgotten at once."""
    keys = [ec.generate_private_key(ec.SECP384R1()) for _ in range(3)]
    names = [_subject(role) for role in ("attestation", "CA", "root")]
    start = dt.datetime.now(dt.timezone.utc).replace(microsecond=0) - dt.timedelta(minutes=5)
    chain = tuple(
        _certificate(names[level], keys[level], names[issuer], keys[issuer], level, start)
        for level, issuer in ((0, 1), (1, 2), (2, 2))
    )
    return KeyAndChain(chain, keys[0])


def sign(data: Bytes, signer: KeyAndChain, serials: Sequence[int] = ()) -> bytes:
    """The signed library, bound to the devices with these serials (up to 8; none: any device).

    Raises BadLibrary, or UsageError for a library that is signed already.
    """
    parsed, signed = signed_library.parse(data)
    if signed is not None:
        raise UsageError("it is signed already", fix="name the unsigned original")
    sections = parsed.sections
    if any(s.filesz and s.offset < sections.stop and sections.start < s.end for s in parsed.segments):
        raise BadLibrary(
            "section headers", "they lie inside a segment, so they cannot move without changing it"
        )
    if parsed.header.phnum + signed_library.SIGNING_HEADERS > MOST_SEGMENTS:
        raise BadLibrary("program headers", f"no room for two more headers after {parsed.header.phnum}")
    chain = certificates.join(signer.chain)
    metadata = mbn.Metadata(
        software_id=SOFTWARE_ID, serials=tuple(serials), note=verification.STATEMENT
    ).pack()
    digest_size = hashlib.new(verification.DIGEST).digest_size
    hashes_size = (len(parsed.segments) + signed_library.SIGNING_HEADERS) * digest_size
    blob_size = 4 * 12 + len(metadata) + hashes_size + verification.REHEARSAL_SIZE + len(chain)
    body = bytearray(data)
    try:
        head, shift, start = _new_head(parsed, blob_size)
        _shift_sections(body, parsed, shift)
    except struct.error as error:
        message = f"a number does not fit {parsed.format.bits} bits once the library is moved"
        raise BadLibrary("headers", message) from error
    digests = [
        hashlib.new(verification.DIGEST, head).digest(),
        bytes(digest_size),
        *signed_library.segment_digests(data, parsed, verification.DIGEST),
    ]
    covered = mbn.v6_signed_part(metadata, b"".join(digests), verification.REHEARSAL_SIZE, len(chain))
    blob = covered + verification.sign_rehearsal(signer.key, covered) + chain
    return b"".join((head, bytes(start - len(head)), blob, bytes(shift - start - len(blob)), bytes(body)))


def _new_head(parsed: Layout, blob_size: int) -> tuple[bytes, int, int]:
    """(ELF header and program headers, how far the original moves, where the hash segment begins)."""
    form = parsed.format
    count = len(parsed.segments) + signed_library.SIGNING_HEADERS
    head_size = form.header.size + count * form.segment.size
    start = _align_up(head_size, signed_library.HASH_ALIGN)
    shift = _align_up(start + blob_size, _alignment(parsed.segments))
    loaded = [s.paddr + s.memsz for s in parsed.segments if s.type == PT_LOAD]
    address = _align_up(max(loaded, default=0), signed_library.HASH_ALIGN)
    signing = (
        ElfSegment(PT_NULL, 0, 0, 0, head_size, 0, signed_library.HEAD_FLAGS, 0),
        ElfSegment(
            PT_NULL,
            start,
            address,
            address,
            blob_size,
            _align_up(blob_size, signed_library.HASH_ALIGN),
            signed_library.HASH_FLAGS,
            signed_library.HASH_ALIGN,
        ),
    )
    header = replace(
        parsed.header,
        phoff=form.header.size,
        phnum=count,
        shoff=parsed.header.shoff + shift if parsed.header.shoff else 0,
    )
    return _packed(form, header, (*signing, *(s.moved(shift) for s in parsed.segments))), shift, start


def _packed(form: Format, header: Header, segments: Sequence[ElfSegment]) -> bytes:
    """ELF header and program headers, as at the start of a file."""
    head = form.header.pack(*(getattr(header, name) for name in Header.__slots__))
    return head + b"".join(
        form.segment.pack(*(getattr(segment, name) for name in form.segment_fields)) for segment in segments
    )


def _shift_sections(data: bytearray, parsed: Layout, by: int) -> None:
    """Add `by` to every section header's sh_offset."""
    form = parsed.format
    for at in parsed.sections:
        fields = list(form.section.unpack_from(data, at))
        if fields[1] == SHT_NULL:
            continue
        fields[4] += by
        form.section.pack_into(data, at, *fields)


def _align_up(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


def _alignment(segments: Sequence[ElfSegment]) -> int:
    """What the original must move by a multiple of, so that every p_offset stays congruent to p_vaddr."""
    alignments = [s.align for s in segments if s.type == PT_LOAD]
    for alignment in alignments:
        if alignment > 1 << 20 or alignment & (alignment - 1):
            raise BadLibrary("program headers", f"a load segment's alignment is {alignment:#x}")
    return max(signed_library.HASH_ALIGN, *alignments)


def _subject(role: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, verification.REHEARSAL),
            x509.NameAttribute(NameOID.COMMON_NAME, f"qnn-ci rehearsal {role}"),
        ]
    )


def _certificate(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    level: int,
    start: dt.datetime,
) -> x509.Certificate:
    ca = level > 0
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + dt.timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=level - 1 if ca else None), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=not ca,
                key_cert_sign=ca,
                crl_sign=ca,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False
        )
    )
    if not ca:
        builder = builder.add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False
        )
    return builder.sign(issuer_key, hashes.SHA384())
