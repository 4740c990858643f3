"""Signature schemes: what is signed, how it is encoded, and whether a signature is one.

`development` is this project's own definition for MBN v6 (docs/signing.md). `legacy` is the publicly
documented one of MBN v3 and v5. Qualcomm's own for v6 and v7 is not public, so none is here.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import (
    Prehashed,
    decode_dss_signature,
    encode_dss_signature,
)

STATEMENT = (
    "DEVELOPMENT SIGNATURE: accepted only by a device provisioned with this root certificate; "
    "retail devices never accept it."
)
"""In the metadata of every library that the development signer writes."""

DIGEST = "sha384"
_SHA384 = hashes.SHA384()
_FIELD = 48
"""Bytes of each of r and s on P-384."""


@dataclass(frozen=True, slots=True)
class Scheme:
    name: str
    size: int
    """Bytes that a signature takes in the hash segment."""
    deterministic: bool
    """Whether the same library and key give the same bytes, when we hold the key ourselves."""


class UnsupportedKey(ValueError):
    """A key that the development signer does not use; says which it does."""


def scheme_of(public: object) -> Scheme:
    if isinstance(public, ec.EllipticCurvePublicKey) and isinstance(public.curve, ec.SECP384R1):
        return Scheme("ECDSA P-384 SHA-384", 2 * _FIELD, True)
    if isinstance(public, rsa.RSAPublicKey) and public.key_size >= 2048:
        return Scheme(f"RSA-{public.key_size} PKCS#1 v1.5 SHA-384", public.key_size // 8, True)
    raise UnsupportedKey("expected an EC P-384 or an RSA key of at least 2048 bits")


def sign_digest(private: object, digest: bytes) -> bytes:
    """The signature as it stands in the hash segment."""
    if isinstance(private, ec.EllipticCurvePrivateKey):
        return encode(private.sign(digest, ec.ECDSA(Prehashed(_SHA384), deterministic_signing=True)), True)
    if isinstance(private, rsa.RSAPrivateKey):
        return private.sign(digest, padding.PKCS1v15(), Prehashed(_SHA384))
    raise UnsupportedKey("expected an EC P-384 or an RSA key")


def encode(signature: bytes, elliptic: bool) -> bytes:
    """From what libraries and `openssl` give (DER for ECDSA) to what the hash segment holds (r and s,
    48 bytes each, big-endian). ValueError for what is no signature."""
    if not elliptic:
        return signature
    r, s = decode_dss_signature(signature)
    if r.bit_length() > 8 * _FIELD or s.bit_length() > 8 * _FIELD:
        raise ValueError("r or s is too large for P-384")
    return r.to_bytes(_FIELD, "big") + s.to_bytes(_FIELD, "big")


def verify_development(public: object, signature: bytes, signed: bytes) -> bool:
    return verify_digest(public, signature, hashlib.sha384(signed).digest())


def verify_digest(public: object, signature: bytes, digest: bytes) -> bool:
    try:
        if isinstance(public, ec.EllipticCurvePublicKey):
            if len(signature) != 2 * _FIELD:
                return False
            r, s = (int.from_bytes(half, "big") for half in (signature[:_FIELD], signature[_FIELD:]))
            public.verify(encode_dss_signature(r, s), digest, ec.ECDSA(Prehashed(_SHA384)))
        elif isinstance(public, rsa.RSAPublicKey):
            public.verify(signature, digest, padding.PKCS1v15(), Prehashed(_SHA384))
        else:
            return False
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
