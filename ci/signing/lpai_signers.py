"""The two signers. The Hexagon SDK's elfsigner runs without a terminal and within a time limit, and only its
files are believed.

A rehearsal writes a standard hash segment (MBN v6) under a chain made for the run. It shows that the whole
way works (sign, verify, bundle, push) where there is no Hexagon SDK. No device is known to accept the
result. What is signed and how is defined in docs/signing.md.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import os
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, ClassVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ci.diagnose.logs import nearest
from ci.signing import certificates, mbn, signed_library, verification
from ci.signing.elf_headers import (
    PT_LOAD,
    PT_NULL,
    BadLibrary,
    Bytes,
    ElfSegment,
    Format,
    Header,
    Layout,
)
from ci.signing.lpai_libraries import ElfsignerTable
from ci.work.child import closed
from provisioning import licences
from provisioning.base.commands import captured, quoted
from provisioning.base.errors import (
    CheckFailed,
    EnvironmentLacking,
    ToolkitError,
    UpstreamError,
    UsageError,
)
from provisioning.python_environments import uv_program

# Elfsigner


_QUESTION = re.compile(
    r"(?:\[y(?:es)?\s*/\s*n(?:o)?\]|\(y(?:es)?\s*/\s*n(?:o)?\)|\b(?:agree|accept|continue)\b[^\n]*\?)[^\n]*\Z",
    re.IGNORECASE,
)
_NETWORK = re.compile(
    r"urlopen error|URLError|Max retries|Connection (?:refused|reset|aborted|timed out)|ConnectionError"
    r"|Temporary failure in name resolution|Name or service not known|getaddrinfo|Network is unreachable"
    r"|ProxyError|SSLError|timed out",
    re.IGNORECASE,
)
_TICK = 0.1
_LONGEST_LINE = 4096
_MOST_OUTPUT = 4 << 20
_SHOWN = 400


class Unexpected(CheckFailed):
    """elfsigner says that it signed, and its file is not what we expect of it."""

    def __init__(self, message: str) -> None:
        super().__init__(
            f"elfsigner did something that we did not expect: {message}",
            fix="look at the file that is kept; what we expect is [elfsigner] in manifests/lpai.toml",
        )


@dataclass(frozen=True, slots=True)
class Consent:
    """Whether the user accepts a text that elfsigner shows. The answer holds for that text alone and is
    recorded."""

    store: Path
    version: str
    """The Hexagon SDK's version, for the record."""
    accepted: Mapping[str, str]
    """Ids of texts that the user accepted beforehand, each with the means."""

    LICENCE: ClassVar = "hexagon-elfsigner"

    @classmethod
    def name(cls, text: str) -> str:
        """The id by which a text is accepted; line breaks and blanks do not count."""
        return f"{cls.LICENCE}-{hashlib.sha256(' '.join(text.split()).encode()).hexdigest()}"

    def __call__(self, text: str) -> bool:
        from provisioning.manifest import Component, Licence

        name = self.name(text)
        if name in licences.recorded(self.store):
            return True
        sys.stderr.write(f"elfsigner of the Hexagon SDK asks:\n\n{text.strip()}\n\n")
        if means := self.accepted.get(name, ""):
            # No manifest can name it: its text is only known now.
            licence = Licence.model_construct(
                id=name, title="question of the Hexagon SDK's elfsigner, by its hash", url=""
            )
            component = Component.model_construct(version=self.version, licence=licence, parts=())
            licences.require(self.store, {"hexagon-sdk": component}, {name: means})
        return bool(means)


@dataclass(frozen=True, slots=True)
class Elfsigner:
    script: Path
    python: Path
    seconds: float
    consent: Callable[[str], bool]
    assumed: ElfsignerTable

    def sign(self, library: Path, into: Path) -> Path:
        """Sign one library into a fresh directory; returns the file that elfsigner wrote there."""
        # It runs in another directory.
        words = {"library": library.absolute(), "library_name": library.name, "folder": into.absolute()}
        environment = {
            **closed(os.environ),
            # The user's packages are for another Python.
            "PYTHONPATH": "",
            "HEXAGON_SDK_ROOT": str(self.script.parents[2]),
            # Its own directory is in the SDK, which nothing may write to.
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
        }
        arguments = [word.format(**words) for word in self.assumed.sign]
        command = [str(self.python), str(self.script), *arguments]
        status, output = converse(command, into, environment, self)
        name = self.assumed.signed_name.format(**words)
        paths = [path for path in into.rglob(name) if path.is_file() and path.stat().st_size > 0]
        if status == 0 and len(paths) == 1:
            return paths[0]
        raise self._failure(command, status, output, name)

    def _failure(self, command: Sequence[str], status: int, output: str, name: str) -> ToolkitError:
        if _NETWORK.search(output):
            return UpstreamError(
                f"elfsigner could not reach its server (status {status}): {tail(output)}",
                fix="check the network and proxy, then run it again",
            )
        if "No module named 'imp'" in output:
            return EnvironmentLacking(
                f"{self.python} has no module imp, which elfsigner imports",
                fix="uv python install 3.11, or --python PATH",
            )
        if status == 0:
            return Unexpected(f"it ended with status 0 and wrote no file {name}: {tail(output)}")
        row = nearest(output)
        return CheckFailed(
            f"elfsigner ended with status {status}: {tail(output)}" + (f". {row}" if row else ""),
            fix=row.fix if row else f"run it by hand: {quoted(*command)}",
        )


def converse(
    command: Sequence[str], directory: Path, environment: Mapping[str, str], signer: Elfsigner
) -> tuple[int, str]:
    """Run elfsigner and answer its questions as `consent` says; returns its exit status and its output.

    It leads a session of its own, which ends with it, however it ends."""
    output, position = bytearray(), 0
    deadline = time.monotonic() + signer.seconds
    with subprocess.Popen(
        command,
        cwd=directory,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        bufsize=0,
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        os.set_blocking(child.stdout.fileno(), False)
        try:
            while True:
                # Asked before the output is read: then all of it is there, whoever still holds the pipe.
                is_over = child.poll() is not None
                chunk: bytes | None = child.stdout.read(1 << 16)
                if chunk:
                    output += chunk
                elif is_over:
                    return child.returncode, _text(output)
                elif _QUESTION.search(_text(output[max(position, len(output) - _LONGEST_LINE) :]).rstrip()):
                    start = time.monotonic()
                    _answer(child.stdin, _text(output[position:]), signer)
                    position = len(output)
                    # Reading the terms does not count.
                    deadline += time.monotonic() - start
                elif chunk == b"":
                    # It has closed its output, and goes on.
                    time.sleep(_TICK)
                else:
                    select.select([child.stdout], [], [], _TICK)
                if len(output) > _MOST_OUTPUT:
                    message = f"elfsigner prints without end: {tail(_text(output))}"
                    raise CheckFailed(message, fix="run it by hand")
                if time.monotonic() > deadline:
                    raise CheckFailed(
                        f"elfsigner did not end within {signer.seconds:g} s: {tail(_text(output))}",
                        fix="run it again, or by hand",
                    )
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)


def _answer(stdin: IO[bytes], text: str, signer: Elfsigner) -> None:
    if not signer.consent(text):
        raise EnvironmentLacking(
            "what elfsigner asks was not accepted",
            fix=f"read it, then set {licences.VARIABLE}={Consent.name(text)}",
        )
    # If it does not wait for the answer, its exit status decides.
    with contextlib.suppress(BrokenPipeError):
        stdin.write(f"{signer.assumed.answer}\n".encode())


def _text(output: bytes | bytearray) -> str:
    return output.decode("utf-8", "replace")


def tail(output: str) -> str:
    """The end of an output, for a message."""
    lines = [line.strip() for line in output.strip().splitlines() if line.strip()]
    return " | ".join(lines[-4:])[-_SHOWN:] or "no output"


def interpreter(program: str | None, below: str) -> Path:
    """A Python that has the module imp: the named one, or one that uv finds."""
    if program:
        path = shutil.which(program)
        if path is None:
            raise UsageError(f"--python {program}: no such program", fix="name a Python's executable")
        return Path(path).absolute()
    if (uv := uv_program()) is None:
        raise EnvironmentLacking(
            "uv, which finds the Python to run elfsigner with, is not installed",
            fix="name a Python with --python",
        )
    request = f">=3.6,<{below}"
    process = captured([uv, "python", "find", "--no-config", "--no-project", request], timeout=60)
    if process.returncode != 0:
        raise EnvironmentLacking(
            f"elfsigner needs a Python {request}, and uv finds none: {tail(process.stderr)}",
            fix="uv python install 3.11, or install your system's python3.11; or name one with --python",
        )
    return Path(process.stdout.strip()).absolute()


# Rehearsal


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


def rehearse(data: Bytes, signer: KeyAndChain, serials: Sequence[int] = ()) -> bytes:
    """The signed library, bound to the devices with these serials (up to 8; none: any device).

    Raises BadLibrary, or UsageError for a library that is signed already.
    """
    elf, signed = signed_library.parse(data)
    if signed is not None:
        raise UsageError("it is signed already", fix="name the unsigned original")
    sections = elf.sections
    if any(s.filesz and s.offset < sections.stop and sections.start < s.end for s in elf.segments):
        raise BadLibrary(
            "section headers", "they lie inside a segment, so they cannot move without changing it"
        )
    chain = certificates.join(signer.chain)
    metadata = mbn.Metadata(
        software_id=SOFTWARE_ID, serials=tuple(serials), note=verification.STATEMENT
    ).pack()
    digest_size = hashlib.new(verification.DIGEST).digest_size
    hashes_size = (len(elf.segments) + signed_library.SIGNING_HEADERS) * digest_size
    blob_size = 4 * 12 + len(metadata) + hashes_size + verification.REHEARSAL_SIZE + len(chain)
    body = bytearray(data)
    try:
        head, shift, start = _new_head(elf, blob_size)
        _shift_sections(body, elf, shift)
    except struct.error as error:
        message = f"a number does not fit {elf.format.bits} bits once the library is moved"
        raise BadLibrary("headers", message) from error
    digests = [
        hashlib.new(verification.DIGEST, head).digest(),
        bytes(digest_size),
        *signed_library.segment_digests(data, elf, verification.DIGEST),
    ]
    part = mbn.v6_signed_part(metadata, b"".join(digests), verification.REHEARSAL_SIZE, len(chain))
    blob = part + verification.sign_rehearsal(signer.key, part) + chain
    return b"".join((head, bytes(start - len(head)), blob, bytes(shift - start - len(blob)), bytes(body)))


def _new_head(elf: Layout, blob_size: int) -> tuple[bytes, int, int]:
    """(ELF header and program headers, how far the original moves, where the hash segment begins)."""
    form = elf.format
    count = len(elf.segments) + signed_library.SIGNING_HEADERS
    head_size = form.header.size + count * form.segment.size
    start = _align_up(head_size, signed_library.HASH_ALIGN)
    shift = _align_up(start + blob_size, _alignment(elf.segments))
    ends = [s.paddr + s.memsz for s in elf.segments if s.type == PT_LOAD]
    address = _align_up(max(ends, default=0), signed_library.HASH_ALIGN)
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
        elf.header,
        phoff=form.header.size,
        phnum=count,
        shoff=elf.header.shoff + shift if elf.header.shoff else 0,
    )
    return _pack(form, header, (*signing, *(s.shift(shift) for s in elf.segments))), shift, start


def _pack(form: Format, header: Header, segments: Sequence[ElfSegment]) -> bytes:
    """ELF header and program headers, as at the start of a file."""
    head = form.header.pack(*(getattr(header, name) for name in Header.__slots__))
    return head + b"".join(
        form.segment.pack(*(getattr(segment, name) for name in form.segment_fields)) for segment in segments
    )


def _shift_sections(data: bytearray, elf: Layout, by: int) -> None:
    """Add `by` to every section header's sh_offset."""
    form = elf.format
    for at in elf.sections:
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
