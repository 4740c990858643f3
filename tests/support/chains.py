"""Certificate chains for signing tests: made once, or bent in one way."""

from __future__ import annotations

import datetime as dt
from functools import cache
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ci.signing import rehearsal
from ci.signing.rehearsal import KeyAndChain

NOW = dt.datetime.now(dt.timezone.utc).replace(microsecond=0)


@cache
def signer() -> KeyAndChain:
    """The same one at every call."""
    return rehearsal.new_signer()


@cache
def other_signer() -> KeyAndChain:
    return rehearsal.new_signer()


def name(common: str, *units: str) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit) for unit in units]
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, common)])


def certificate(
    subject: x509.Name,
    key: Any,
    issuer: x509.Name,
    issuer_key: Any,
    *,
    ca: bool,
    signs: bool | None = None,
    start: dt.datetime | None = None,
    days: float = 30,
    path_length: int | None = None,
    extension: x509.ExtensionType | None = None,
    digest: Any = None,
    plain: bool = False,
    certifies: bool = False,
    constraints: x509.ExtensionType | None = None,
) -> x509.Certificate:
    """`signs`: its key usage allows what its place in a chain asks for. `plain`: it does not say what for.
    `certifies`: its key usage allows to sign certificates, too."""
    begin = start or NOW - dt.timedelta(days=1)
    allowed = True if signs is None else signs
    usage = dict.fromkeys(
        (
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "encipher_only",
            "decipher_only",
        ),
        False,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + dt.timedelta(days=days))
    )
    if not plain:
        key_usage = x509.KeyUsage(
            digital_signature=not ca and allowed,
            key_cert_sign=certifies or (ca and allowed),
            crl_sign=not allowed,
            **usage,
        )
        constraints = constraints or x509.BasicConstraints(ca=ca, path_length=path_length)
        builder = builder.add_extension(constraints, critical=True).add_extension(key_usage, critical=True)
    if extension is not None:
        builder = builder.add_extension(extension, critical=True)
    return builder.sign(issuer_key, digest or hashes.SHA384())


@cache
def _keys() -> tuple[Any, Any]:
    return ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())


def bent(*, root: dict[str, Any] | None = None, attestation: dict[str, Any] | None = None) -> KeyAndChain:
    """A chain of two of somebody unknown; the arguments differ from a good one."""
    root_key, key = _keys()
    above = {"subject": name("root"), "issuer": name("root"), "ca": True, **(root or {})}
    below = {"subject": name("att"), "issuer": name("root"), "ca": False, "key": key, **(attestation or {})}
    top = certificate(key=root_key, issuer_key=root_key, **above)
    return KeyAndChain((certificate(issuer_key=root_key, **below), top), key)


def root_pem(signer: KeyAndChain) -> bytes:
    return signer.root.public_bytes(serialization.Encoding.PEM)


def everything_written(*directories: Path) -> bytes:
    files = [path for directory in directories for path in directory.rglob("*") if path.is_file()]
    return b"\n".join(path.read_bytes() for path in files)


def secrets_of(keys: list[Any]) -> list[bytes]:
    """Every form in which a private key could show up."""
    forms = []
    for key in keys:
        der = key.private_bytes(
            serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        numbers = key.private_numbers()
        value = numbers.private_value
        raw = value.to_bytes(-(-value.bit_length() // 8), "big")
        forms += [der, raw, raw.hex().encode(), str(value).encode(), *pem.splitlines()[1:-1]]
    return forms
