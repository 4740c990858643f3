"""A rehearsal of signing: its keys and certificates, its mark, and its signature.

It shows that the whole way works (sign, verify, bundle, push) where there is no Hexagon SDK. No device is
known to accept the result. docs/signing.md defines the signature.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

REHEARSAL = "REHEARSAL OF SIGNING (NOT FOR DEVICES)"
"""An organisational unit in the subject of every certificate of a rehearsal: its mark."""

STATEMENT = "REHEARSAL OF SIGNING: the root was made for it, and no device is known to accept it."
"""The text that a rehearsal writes into a library's metadata."""

DIGEST = "sha384"
SIGNATURE_SIZE = 96
"""ECDSA on P-384: r and s, big-endian, 48 bytes each."""
NUMBER_SIZE = SIGNATURE_SIZE // 2

DAYS = 365
CLOCK_SKEW = dt.timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class KeyAndChain:
    """A chain and the key of its first certificate. The key is in memory only."""

    chain: tuple[x509.Certificate, ...]
    """The attestation certificate is first, the root last."""
    key: ec.EllipticCurvePrivateKey = field(repr=False)

    @property
    def root(self) -> x509.Certificate:
        return self.chain[-1]


@dataclass(frozen=True, slots=True)
class Party:
    """Somebody who holds a key of the chain."""

    name: x509.Name
    key: ec.EllipticCurvePrivateKey = field(repr=False)


def new_signer() -> KeyAndChain:
    """Make a root, a CA and an attestation certificate.

    All keys are new. Those of root and CA are forgotten when this returns."""
    attestation, authority, root = map(_new_party, ("attestation", "CA", "root"))
    start = dt.datetime.now(dt.timezone.utc).replace(microsecond=0) - CLOCK_SKEW
    chain = (
        _attestation_certificate(attestation, authority, start),
        _authority_certificate(authority, root, start, path_length=0),
        _authority_certificate(root, root, start, path_length=1),
    )
    return KeyAndChain(chain, attestation.key)


def _new_party(role: str) -> Party:
    unit = x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, REHEARSAL)
    common_name = x509.NameAttribute(NameOID.COMMON_NAME, f"qnn-ci rehearsal {role}")
    return Party(x509.Name([unit, common_name]), ec.generate_private_key(ec.SECP384R1()))


def _attestation_certificate(holder: Party, issuer: Party, start: dt.datetime) -> x509.Certificate:
    """A certificate that may sign code and no certificates."""
    builder = _builder(holder, issuer, start)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
    return builder.sign(issuer.key, hashes.SHA384())


def _authority_certificate(
    holder: Party, issuer: Party, start: dt.datetime, path_length: int
) -> x509.Certificate:
    """A certificate that may sign certificates, and nothing else."""
    builder = _builder(holder, issuer, start)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=path_length), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=True), critical=True)
    return builder.sign(issuer.key, hashes.SHA384())


def _builder(holder: Party, issuer: Party, start: dt.datetime) -> x509.CertificateBuilder:
    public = holder.key.public_key()
    issuer_identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(holder.name)
        .issuer_name(issuer.name)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + dt.timedelta(days=DAYS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(issuer_identifier, critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def has_mark(certificates: Iterable[x509.Certificate]) -> bool:
    """Whether one of the names in these certificates has the mark of a rehearsal."""
    for certificate in certificates:
        for name in (certificate.subject, certificate.issuer):
            units = name.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
            if any(unit.value == REHEARSAL for unit in units):
                return True
    return False


def sign(private: ec.EllipticCurvePrivateKey, content: bytes) -> bytes:
    r, s = decode_dss_signature(private.sign(content, ec.ECDSA(hashes.SHA384())))
    return r.to_bytes(NUMBER_SIZE, "big") + s.to_bytes(NUMBER_SIZE, "big")


def is_signature(public: object, signature: bytes, content: bytes) -> bool:
    """Whether the holder of this public key signed the content."""
    if not isinstance(public, ec.EllipticCurvePublicKey) or len(signature) != SIGNATURE_SIZE:
        return False
    r = int.from_bytes(signature[:NUMBER_SIZE], "big")
    s = int.from_bytes(signature[NUMBER_SIZE:], "big")
    try:
        public.verify(encode_dss_signature(r, s), content, ec.ECDSA(hashes.SHA384()))
    except (InvalidSignature, UnsupportedAlgorithm, ValueError):
        return False
    return True
