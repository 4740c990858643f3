"""The two signatures that can be checked: a rehearsal's of this project, and the public one of MBN v3 and v5.

What Qualcomm's own signatures of MBN v6 and v7 cover, and how they are encoded, is not public.
"""

from __future__ import annotations

import hashlib
import hmac
import struct

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import (
    Prehashed,
    decode_dss_signature,
    encode_dss_signature,
)
from cryptography.x509.oid import NameOID

REHEARSAL = "REHEARSAL OF SIGNING (NOT FOR DEVICES)"
"""An organisational unit in the subject of every certificate of a rehearsal: its mark."""

STATEMENT = "REHEARSAL OF SIGNING: the root was made for it, and no device is known to accept it."

DIGEST = "sha384"
REHEARSAL_SIZE = 96
"""ECDSA on P-384: r and s, big-endian, 48 bytes each."""

_HALF = REHEARSAL_SIZE // 2


def is_rehearsal(certificates: list[x509.Certificate]) -> bool:
    """Whether the chain is a rehearsal's. One name with the mark is enough."""
    return any(
        attribute.value == REHEARSAL
        for certificate in certificates
        for name in (certificate.subject, certificate.issuer)
        for attribute in name.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
    )


def sign_rehearsal(private: ec.EllipticCurvePrivateKey, signed: bytes) -> bytes:
    digest = hashlib.new(DIGEST, signed).digest()
    r, s = decode_dss_signature(private.sign(digest, ec.ECDSA(Prehashed(hashes.SHA384()))))
    return r.to_bytes(_HALF, "big") + s.to_bytes(_HALF, "big")


def verify_rehearsal(public: object, signature: bytes, signed: bytes) -> bool:
    if not isinstance(public, ec.EllipticCurvePublicKey) or len(signature) != REHEARSAL_SIZE:
        return False
    r, s = (int.from_bytes(half, "big") for half in (signature[:_HALF], signature[_HALF:]))
    try:
        digest = hashlib.new(DIGEST, signed).digest()
        public.verify(encode_dss_signature(r, s), digest, ec.ECDSA(Prehashed(hashes.SHA384())))
    except (InvalidSignature, UnsupportedAlgorithm, ValueError):
        return False
    return True


def legacy_digest(signed: bytes, software_id: int, hardware_id: int) -> bytes:
    """MBN v3 and v5 bind both ids into what is signed, in the manner of an HMAC."""
    inner = struct.pack(">Q", software_id ^ 0x3636363636363636) + hashlib.sha256(signed).digest()
    outer = struct.pack(">Q", hardware_id ^ 0x5C5C5C5C5C5C5C5C) + hashlib.sha256(inner).digest()
    return hashlib.sha256(outer).digest()


def verify_legacy(public: rsa.RSAPublicKey, signature: bytes, digest: bytes) -> bool:
    """PKCS#1 v1.5 around the bare digest, without the algorithm's name."""
    try:
        return hmac.compare_digest(
            public.recover_data_from_signature(signature, padding.PKCS1v15(), None), digest
        )
    except (InvalidSignature, UnsupportedAlgorithm, ValueError):
        return False
