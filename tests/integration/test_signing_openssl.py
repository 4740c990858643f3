"""Signature and chain of a development-signed library, checked by `openssl` and a second reading.

Nothing of ci.signing takes part in the checking.
"""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest

from ci.signing import development
from ci.signing.development import Binding
from tests.support import chains
from tests.support.mbn import Apart, take_apart
from tests.support.needs import program
from tests.support.skels import Skel

pytestmark = pytest.mark.needs("openssl")


def openssl(*words: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [program("openssl"), *map(str, words)], input=stdin, capture_output=True, timeout=60, check=False
    )


def der_integer(value: bytes) -> bytes:
    content = value.lstrip(b"\0") or b"\0"
    content = b"\0" + content if content[0] & 0x80 else content
    return b"\x02" + bytes([len(content)]) + content


def as_openssl_reads_it(apart: Apart, algorithm: str) -> bytes:
    """ECDSA stands in the file as r and s, 48 bytes each; openssl wants DER."""
    if algorithm == "rsa":
        return apart.signature
    body = der_integer(apart.signature[:48]) + der_integer(apart.signature[48:])
    return b"\x30" + bytes([len(body)]) + body


def pem(der: bytes) -> bytes:
    text = base64.encodebytes(der)
    return b"-----BEGIN CERTIFICATE-----\n" + text + b"-----END CERTIFICATE-----\n"


@pytest.fixture(params=["ec", "rsa"])
def algorithm(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def apart(algorithm: str, tmp_path: Path) -> Apart:
    data = development.sign(Skel().encode(), chains.identity(algorithm), Binding())
    found = take_apart(data)
    (tmp_path / "signed").write_bytes(found.signed)
    (tmp_path / "signature").write_bytes(as_openssl_reads_it(found, algorithm))
    for name, certificate in zip(("attestation", "ca", "root"), found.certificates, strict=True):
        (tmp_path / f"{name}.pem").write_bytes(pem(certificate))
    key = openssl("x509", "-in", tmp_path / "attestation.pem", "-noout", "-pubkey")
    (tmp_path / "key.pem").write_bytes(key.stdout)
    return found


def check_signature(directory: Path) -> bytes:
    return openssl(
        "dgst",
        "-sha384",
        "-verify",
        directory / "key.pem",
        "-signature",
        directory / "signature",
        directory / "signed",
    ).stdout


def test_openssl_accepts_the_signature(apart: Apart, tmp_path: Path) -> None:
    assert check_signature(tmp_path) == b"Verified OK\n"


def test_openssl_refuses_it_over_anything_else(apart: Apart, tmp_path: Path) -> None:
    (tmp_path / "signed").write_bytes(apart.signed[:-1] + b"\x01")
    assert b"Verification" in check_signature(tmp_path) and b"OK" not in check_signature(tmp_path)


def test_openssl_accepts_the_chain_up_to_the_root_and_for_nothing_but_signing(
    apart: Apart, tmp_path: Path
) -> None:
    done = openssl(
        "verify",
        "-x509_strict",
        "-CAfile",
        tmp_path / "root.pem",
        "-untrusted",
        tmp_path / "ca.pem",
        tmp_path / "attestation.pem",
    )
    assert (done.returncode, done.stdout.endswith(b": OK\n")) == (0, True)


def test_openssl_refuses_the_chain_under_another_root(apart: Apart, algorithm: str, tmp_path: Path) -> None:
    other = chains.identity("rsa" if algorithm == "ec" else "ec").root
    from cryptography.hazmat.primitives.serialization import Encoding

    (tmp_path / "other.pem").write_bytes(other.public_bytes(Encoding.PEM))
    done = openssl(
        "verify",
        "-CAfile",
        tmp_path / "other.pem",
        "-untrusted",
        tmp_path / "ca.pem",
        tmp_path / "attestation.pem",
    )
    assert done.returncode != 0


def test_openssl_itself_can_be_the_external_signer(tmp_path: Path) -> None:
    """The protocol of --sign-command is what `openssl pkeyutl` does, for both kinds of key."""
    from ci.signing import keys, verification

    for kind in ("ec", "rsa"):
        directory = tmp_path / kind
        keys.write_chain(directory, kind, days=30, passphrase=None)
        key = directory / "attestation.key.pem"
        command = f"{program('openssl')} pkeyutl -sign -inkey {key} -pkeyopt digest:sha384"
        identity = keys.from_command(command, directory / "chain.pem")
        data = development.sign(Skel().encode(), identity, Binding())
        result = verification.verify(data, verification.Expected(root=identity.root))
        assert result.verdict() == "verified"
