"""X.509 chains in a hash segment: DER, attestation first, root last, padded with 0xff."""

from __future__ import annotations

import datetime as dt
import itertools
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509 import verification
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ci.signing.elf_headers import BadLibrary
from ci.signing.mbn import printable
from provisioning.base.errors import UsageError

PADDING = b"\xff"
ALIGN = 16
MOST_CERTIFICATES = 16
TEST_KEY = re.compile(r"\btest (key|pki)\b|for testing only|\bnot secure\b", re.IGNORECASE)
"""What names of keys for tests say. The test roots of Qualcomm's signing tools, whose keys are public, have
the unit `General Use Test Key (for testing only)`; qtestsign's are `NOT SECURE`."""

LENGTH_WITHOUT_CA = "path_length must be None when ca is False"
"""What cryptography says of a certificate with a path length that is no CA's."""

LEAST_RSA_BITS = 2048
LEAST_CURVE_BITS = 256
"""Anybody with time can find a shorter key. The verifier asks the same of those that sign certificates."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """What people want to know of a certificate. All values are printable."""

    subject: str
    issuer: str
    organisational_units: tuple[str, ...]
    not_before: str
    not_after: str
    key: str
    signature_hash: str
    sha256: str


def certificate_of(der: bytes) -> x509.Certificate:
    """Parse a certificate. Raises many kinds of exception for a damaged one."""
    certificate = x509.load_der_x509_certificate(der)
    # Parsing is lazy: read everything that is used later, so that damage is found here.
    certificate.public_key()
    _ = (_constraints(certificate), certificate.signature)
    _ = (certificate.not_valid_before_utc, certificate.not_valid_after_utc)
    _ = (certificate.subject.rfc4514_string(), certificate.issuer.rfc4514_string())
    return certificate


def _constraints(certificate: x509.Certificate) -> x509.BasicConstraints | None:
    """The basic constraints; None without any. Raises many kinds of exception for damaged extensions.

    Attestation certificates that were made with Qualcomm's instructions (`CA:FALSE,pathlen:0`) have a path
    length, which RFC 5280 leaves to CAs: cryptography cannot hold it, and it says nothing."""
    try:
        extension = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    except x509.ExtensionNotFound:
        return None
    except ValueError as error:
        if str(error) != LENGTH_WITHOUT_CA:
            raise
        return x509.BasicConstraints(ca=False, path_length=None)
    return extension.value


def split(area: bytes) -> list[bytes]:
    """The DER certificates of a certificate area. Raises BadLibrary unless all else in it is 0xff padding."""
    ders: list[bytes] = []
    at = 0
    while at < len(area) and area[at : at + 1] != PADDING:
        length = _der_length(area, at)
        if length is None or at + length > len(area):
            raise BadLibrary("certificates", f"no certificate begins at byte {at} of their area")
        ders.append(area[at : at + length])
        at += length
        if len(ders) > MOST_CERTIFICATES:
            raise BadLibrary("certificates", f"more than {MOST_CERTIFICATES}")
    if area[at:].strip(PADDING):
        raise BadLibrary("certificates", "the padding after the last one is not all 0xff")
    return ders


def join(chain: Sequence[x509.Certificate]) -> bytes:
    area = b"".join(c.public_bytes(serialization.Encoding.DER) for c in chain)
    return area.ljust(-(-len(area) // ALIGN) * ALIGN, PADDING)


def load(ders: Sequence[bytes]) -> list[x509.Certificate]:
    """Parse certificates. Raises BadLibrary, which names the first one that is damaged."""
    certificates = []
    for index, der in enumerate(ders):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                certificates.append(certificate_of(der))
        except Exception as error:
            # cryptography raises a dozen kinds of exception for damaged certificates; half are no ValueError.
            message = f"not a certificate that can be read: {error}"[:200]
            raise BadLibrary(f"certificate {index}", message) from error
    return certificates


def read_root(path: Path) -> x509.Certificate:
    """Read one certificate, PEM or DER. A file with several is refused: it does not say which one to
    trust."""
    try:
        content = path.read_bytes()
        if b"-----BEGIN" in content:
            roots = x509.load_pem_x509_certificates(content)
        else:
            roots = [x509.load_der_x509_certificate(content)]
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read: {error.strerror}", fix="name a certificate file"
        ) from error
    except ValueError as error:
        raise UsageError(
            f"{path}: expected a certificate, PEM or DER", fix="name the root certificate"
        ) from error
    if len(roots) != 1:
        raise UsageError(
            f"{path}: expected the root certificate alone, found {len(roots)} certificates",
            fix="name a file that holds the root only",
        )
    return roots[0]


def describe(certificate: x509.Certificate) -> Certificate:
    units = tuple(
        str(attribute.value)
        for attribute in certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
    )
    try:
        algorithm = certificate.signature_hash_algorithm
        signature_hash = algorithm.name if algorithm else "none"
    except UnsupportedAlgorithm:
        signature_hash = "unknown"
    return Certificate(
        subject=printable(certificate.subject.rfc4514_string()),
        issuer=printable(certificate.issuer.rfc4514_string()),
        organisational_units=tuple(map(printable, units)),
        not_before=certificate.not_valid_before_utc.isoformat(),
        not_after=certificate.not_valid_after_utc.isoformat(),
        key=key_type(certificate.public_key()),
        signature_hash=signature_hash,
        sha256=certificate.fingerprint(hashes.SHA256()).hex(),
    )


def key_type(key: object) -> str:
    if isinstance(key, rsa.RSAPublicKey):
        return f"RSA {key.key_size}"
    if isinstance(key, ec.EllipticCurvePublicKey):
        return f"EC {key.curve.name}"
    return type(key).__name__.strip("_")


def name_of(certificate: x509.Certificate) -> str:
    """The subject as one printable word, for messages."""
    return f"<{printable(certificate.subject.rfc4514_string())}>"


def chain_with(chain: Sequence[x509.Certificate], root: x509.Certificate | None) -> list[x509.Certificate]:
    """Return the chain up to its root: many leave the root out."""
    last = chain[-1]
    left_out = root is not None and last != root and last.subject != last.issuer
    return [*chain, root] if root is not None and left_out else list(chain)


def broken_link(chain: Sequence[x509.Certificate]) -> str:
    """Say why the certificates are not one path, each signed by the next; empty if they are one (RFC 5280,
    6.1).

    `problem` cannot tell: its verifier looks for a path and ignores certificates that are not on it."""
    for index, (certificate, issuer) in enumerate(itertools.pairwise(chain)):
        try:
            certificate.verify_directly_issued_by(issuer)
        except (InvalidSignature, UnsupportedAlgorithm, TypeError, ValueError):
            return (
                f"certificate {index} {name_of(certificate)} is not issued by "
                f"certificate {index + 1} {name_of(issuer)}"
            )
    for (index, one), (other_index, other) in itertools.combinations(enumerate(chain), 2):
        if one.subject == other.subject and one.public_key() == other.public_key():
            return f"certificates {index} and {other_index} have one name and key {name_of(one)}"
    return ""


def test_key(chain: Sequence[x509.Certificate]) -> str:
    """The first name in the chain that says that its key is for tests; empty without one."""
    for certificate in chain:
        for name in (certificate.subject, certificate.issuer):
            if any(TEST_KEY.search(str(attribute.value)) for attribute in name):
                return f"<{printable(name.rfc4514_string())}>"
    return ""


def problem(chain: Sequence[x509.Certificate], at: dt.datetime) -> str:
    """Say what cryptography's verifier refuses if the last certificate is trusted; empty for a chain that
    holds.

    It judges issuers, signatures, validity, CAs, path lengths, key usage, critical extensions, algorithms."""
    constraints = _constraints(chain[0])
    if constraints is not None and constraints.ca:
        return "a CA's certificate may not sign libraries"
    key = chain[0].public_key()
    if isinstance(key, rsa.RSAPublicKey) and key.key_size < LEAST_RSA_BITS:
        return f"the attestation key is RSA of {key.key_size} bits, at least {LEAST_RSA_BITS} are safe"
    if isinstance(key, ec.EllipticCurvePublicKey) and key.key_size < LEAST_CURVE_BITS:
        return f"the attestation key is {key_type(key)}, of at least {LEAST_CURVE_BITS} bits it is safe"
    agnostic = verification.Criticality.AGNOSTIC
    permissive = verification.ExtensionPolicy.permit_all()
    # Name constraints that the verifier can judge are of hosts and mail, which sign no libraries.
    code = permissive.require_not_present(x509.NameConstraints).may_be_present(
        x509.ExtendedKeyUsage, agnostic, _signs_code
    )
    authority = code.require_present(x509.BasicConstraints, agnostic, None).may_be_present(
        x509.KeyUsage, agnostic, _signs_certificates
    )
    # A certificate that does not say what it is for was not made to sign libraries.
    attestation = code.require_present(x509.BasicConstraints, agnostic, None).require_present(
        x509.KeyUsage, agnostic, _signs
    )
    policy = verification.PolicyBuilder().time(at).store(verification.Store([chain[-1]]))
    policy = policy.extension_policies(ca_policy=authority, ee_policy=attestation)
    try:
        policy.build_client_verifier().verify(chain[0], list(chain[1:-1]))
    except verification.VerificationError as error:
        return printable(str(error))
    return ""


def _signs(_: object, __: object, usage: x509.KeyUsage | None) -> None:
    if usage is None or not usage.digital_signature or usage.key_cert_sign:
        raise ValueError("it must be for digital signatures, and not sign certificates")


def _signs_code(_: object, __: object, usage: x509.ExtendedKeyUsage | None) -> None:
    usages = {ExtendedKeyUsageOID.CODE_SIGNING, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE}
    if usage is not None and not usages & set(usage):
        raise ValueError("it may not be used for code signing")


def _signs_certificates(_: object, __: object, usage: x509.KeyUsage | None) -> None:
    if usage is not None and not usage.key_cert_sign:
        raise ValueError("it may not be used to sign certificates")


def _der_length(area: bytes, at: int) -> int | None:
    """The length of the SEQUENCE that begins at `at`; None if none begins there."""
    head = area[at : at + 2]
    if len(head) < 2 or head[0] != 0x30:
        return None
    if head[1] < 0x80:
        return 2 + head[1]
    count = head[1] - 0x80
    return 2 + count + int.from_bytes(area[at + 2 : at + 2 + count], "big")
