"""Windows libraries as small as they can be, and real catalogues that somebody else signed."""

from __future__ import annotations

import struct

from asn1crypto import cms
from asn1crypto import x509 as asn1_x509
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from provisioning.pe import ARM64


def dll(machine: int = ARM64, content: bytes = b"", name: str = "") -> bytes:
    """A PE32+ library without sections; with exports, if it has a name."""
    dos = b"MZ".ljust(60, b"\0") + struct.pack("<I", 64)
    file_header = struct.pack("<HHIIIHH", machine, 0, 0, 0, 0, 240, 0x2022)
    optional = struct.pack("<HBBIIIII", 0x20B, 14, 0, 0, 0, 0, 0, 0x1000)
    optional += struct.pack("<QII", 0x180000000, 0x1000, 0x200).ljust(84, b"\0")
    exports = len(dos) + 4 + len(file_header) + 240
    optional += struct.pack("<III", 16, exports if name else 0, 40 if name else 0) + bytes(120)
    table = struct.pack("<12xI24x", exports + 40) + name.encode() + b"\0" if name else b""
    return dos + b"PE\0\0" + file_header + optional.ljust(240, b"\0") + table + content


def signed_by(catalogue: bytes, leaf: x509.Certificate, key: rsa.RSAPrivateKey) -> bytes:
    """The same list of files, signed with this certificate's key and without a time stamp."""
    content = cms.ContentInfo.load(catalogue)
    signed = content["content"]
    (signer,) = signed["signer_infos"]
    certificate = asn1_x509.Certificate.load(leaf.public_bytes(serialization.Encoding.DER))
    signed["certificates"] = [cms.CertificateChoices("certificate", certificate)]
    identity = {"issuer": certificate.issuer, "serial_number": certificate.serial_number}
    signer["sid"] = cms.SignerIdentifier("issuer_and_serial_number", cms.IssuerAndSerialNumber(identity))
    attributes = signer["signed_attrs"].untag().dump()
    signer["signature"] = key.sign(attributes, padding.PKCS1v15(), hashes.SHA256())
    signer["unsigned_attrs"] = None
    return bytes(content.dump(force=True))


def time_stamped_as(catalogue: bytes, other: bytes) -> bytes:
    """With the time stamp of another catalogue, which is as long."""
    own, stamp = (
        cms.ContentInfo.load(content)["content"]["signer_infos"][0]["unsigned_attrs"].dump()
        for content in (catalogue, other)
    )
    assert len(own) == len(stamp) and catalogue.count(own) == 1
    return catalogue.replace(own, stamp)
