"""Where a development signature's key comes from. No key, passphrase or token leaves this module in text.

A `Identity` signs digests. Keys that we read stay in memory; keys in an HSM or KMS stay where they are and an
external command signs. Nothing here writes a private key except `write_chain`, which the user asks for.
"""

from __future__ import annotations

import datetime as dt
import getpass
import os
import shlex
import stat
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ci.signing import process, scheme
from provisioning.base.errors import CheckFailed, EnvironmentLacking, UsageError

PASSPHRASE_VARIABLE = "QNN_CI_SIGNING_PASSPHRASE"
MOST_KEY_BYTES = 1 << 20
COMMAND_SECONDS = 120.0
ALGORITHMS = ("ec", "rsa")

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclass(frozen=True, slots=True)
class Passphrase:
    """Where a passphrase may be read from; at most one is set. Never a command-line argument."""

    variable: str = PASSPHRASE_VARIABLE
    file: Path | None = None
    descriptor: int | None = None

    def get(self, what: str) -> bytes:
        if self.file is not None:
            return _first_line(read_secret(self.file))
        if self.descriptor is not None:
            try:
                with os.fdopen(self.descriptor, "rb", closefd=True) as stream:
                    return _first_line(stream.read(MOST_KEY_BYTES))
            except OSError as error:
                raise UsageError(
                    f"file descriptor {self.descriptor} cannot be read: {error.strerror}",
                    remedy="--passphrase-fd 3 3<passphrase-file",
                ) from error
        if value := os.environ.get(self.variable):
            return value.encode()
        if sys.stdin is not None and sys.stdin.isatty():
            return getpass.getpass(f"passphrase of {what}: ").encode()
        raise EnvironmentLacking(
            f"{what}: encryption needs a passphrase, and no passphrase was given",
            remedy=f"set {self.variable}, or use --passphrase-file or --passphrase-fd",
        )


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate chain and something that signs for its attestation certificate."""

    chain: tuple[x509.Certificate, ...]
    """Attestation first, root last."""
    origin: str
    """Where the key is, for people: never the key."""
    deterministic: bool
    scheme: scheme.Scheme
    sign: Callable[[bytes], bytes] = field(repr=False)
    """From a SHA-384 digest to the signature as it stands in the hash segment."""

    @property
    def description(self) -> str:
        """For logs: where the key is, and whether signing again gives the same bytes."""
        again = "gives the same bytes" if self.deterministic else "may give others"
        return f"{self.origin}; {self.scheme.name}; the same key {again} again"

    @property
    def root(self) -> x509.Certificate:
        return self.chain[-1]


def ephemeral(algorithm: str = "ec") -> Identity:
    """A new chain whose keys live in this process alone and die with it."""
    keys, chain = new_chain(algorithm)
    return _with_key(keys[0], chain, "made for this run, in memory only")


def from_pem(key: Path, chain: Path, passphrase: Passphrase) -> Identity:
    return _with_key(_private_key(key, passphrase), read_chain(chain), str(key))


def from_pkcs12(path: Path, passphrase: Passphrase) -> Identity:
    content = read_secret(path)
    try:
        bundle = pkcs12.load_pkcs12(content, None)
    except ValueError:
        try:
            bundle = pkcs12.load_pkcs12(content, passphrase.get(str(path)))
        except ValueError:
            raise UsageError(
                f"{path}: not a PKCS#12 file that this passphrase opens", remedy="check both"
            ) from None
    if bundle.key is None or bundle.cert is None:
        raise UsageError(f"{path}: holds no key with its certificate", remedy="export both into it")
    others = [entry.certificate for entry in bundle.additional_certs]
    return _with_key(bundle.key, _ordered(bundle.cert.certificate, others, path), str(path))


def from_command(command: str, chain: Path, *, seconds: float = COMMAND_SECONDS) -> Identity:
    """The command gets 48 bytes of SHA-384 digest on stdin and writes the signature to stdout: ECDSA as DER,
    RSA as PKCS#1 v1.5, both as `openssl pkeyutl -sign -pkeyopt digest:sha384` does."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--sign-command: {error}", remedy="quote it as a shell would need it") from error
    if not words:
        raise UsageError("--sign-command is empty", remedy="name the program that signs a digest")
    certificates = read_chain(chain)
    public = certificates[0].public_key()
    used = _scheme(public, chain)

    def sign(digest: bytes) -> bytes:
        answer = process.sign_with(words, digest, seconds)
        try:
            signature = scheme.encode(answer, isinstance(public, ec.EllipticCurvePublicKey))
        except ValueError as error:
            raise CheckFailed(
                f"{words[0]} answered {len(answer)} bytes that are no DER signature",
                remedy="see the protocol in docs/signing.md",
            ) from error
        if not scheme.verify_digest(public, signature, digest):
            raise CheckFailed(
                f"the signature from {words[0]} does not fit the attestation certificate in {chain}",
                remedy="sign with that certificate's key; see the protocol in docs/signing.md",
            )
        return signature

    return Identity(certificates, f"external command {words[0]}", False, used, sign)


def read_chain(path: Path) -> tuple[x509.Certificate, ...]:
    """PEM certificates, the attestation certificate first; returned up to the root."""
    try:
        certificates = x509.load_pem_x509_certificates(_read(path))
    except ValueError as error:
        raise UsageError(f"{path}: expected PEM certificates", remedy="give the chain as PEM") from error
    return _ordered(certificates[0], certificates[1:], path)


def read_root(path: Path) -> x509.Certificate:
    """One certificate, PEM or DER. A file with several is refused: which one to trust is not ours to say."""
    content = _read(path)
    try:
        if b"-----BEGIN" in content:
            found = x509.load_pem_x509_certificates(content)
        else:
            found = [x509.load_der_x509_certificate(content)]
    except ValueError as error:
        raise UsageError(
            f"{path}: expected a certificate, PEM or DER", remedy="give the root certificate"
        ) from error
    if len(found) != 1:
        raise UsageError(
            f"{path}: expected the root certificate alone, found {len(found)} certificates",
            remedy="give a file with the root only; `signing keygen` makes root.pem beside chain.pem",
        )
    return found[0]


def new_chain(
    algorithm: str = "ec", *, days: int = 365, now: dt.datetime | None = None
) -> tuple[tuple[PrivateKey, PrivateKey, PrivateKey], tuple[x509.Certificate, ...]]:
    """Root, CA and attestation, each with a key of its own; both tuples attestation first."""
    keys = tuple(_new_key(algorithm) for _ in range(3))
    start = (now or dt.datetime.now(dt.timezone.utc)).replace(microsecond=0) - dt.timedelta(minutes=5)
    names = [_subject(role) for role in ("attestation", "CA", "root")]
    certificates = tuple(
        _certificate(names[level], keys[level], names[above], keys[above], level, start, days)
        for level, above in ((0, 1), (1, 2), (2, 2))
    )
    return (keys[0], keys[1], keys[2]), certificates


def write_chain(directory: Path, algorithm: str, *, days: int, passphrase: bytes | None) -> list[Path]:
    """root.pem, chain.pem and the three keys, which only their owner may read; never over existing files."""
    keys, chain = new_chain(algorithm, days=days)
    encryption: serialization.KeySerializationEncryption = (
        serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
    )
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{directory}: {error.strerror}", remedy="name another directory") from error
    contents = {"root.pem": _pem(chain[2]), "chain.pem": b"".join(_pem(c) for c in chain)}
    for name, key in zip(("attestation", "ca", "root"), keys, strict=True):
        contents[f"{name}.key.pem"] = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
        )
    taken = [name for name in contents if (directory / name).exists()]
    if taken:
        raise UsageError(f"{directory} already has {', '.join(taken)}", remedy="name another directory")
    written: list[Path] = []
    try:
        for name, content in contents.items():
            path = directory / name
            mode = 0o600 if name.endswith(".key.pem") else 0o644
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            written.append(path)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(content)
    except BaseException:
        # Half a chain is of no use, and half of it is secret.
        for path in written:
            path.unlink(missing_ok=True)
        raise
    return written


def root_pem(identity: Identity) -> bytes:
    return _pem(identity.root)


def read_secret(path: Path) -> bytes:
    """The content of a key or passphrase file; refused when others may read it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}", remedy="name the key file") from error
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(stream.fileno())
        if stat.S_ISREG(status.st_mode):
            if status.st_mode & 0o077:
                raise UsageError(
                    f"{path}: others may read it (mode {stat.S_IMODE(status.st_mode):o})",
                    remedy=f"chmod 600 {shlex.quote(str(path))}, and take a new key if they did",
                )
        elif not stat.S_ISFIFO(status.st_mode):
            raise UsageError(f"{path}: not a file", remedy="name the key file")
        else:
            os.set_blocking(stream.fileno(), True)
        content = stream.read(MOST_KEY_BYTES + 1)
    if len(content) > MOST_KEY_BYTES:
        raise UsageError(f"{path}: larger than any key", remedy="name the key file")
    return content


def _with_key(private: object, chain: tuple[x509.Certificate, ...], origin: str) -> Identity:
    if not isinstance(private, (ec.EllipticCurvePrivateKey, rsa.RSAPrivateKey)):
        raise UsageError(
            f"{origin}: expected an EC P-384 or RSA key", remedy="make one with `signing keygen`"
        )
    used = _scheme(private.public_key(), origin)
    if private.public_key() != chain[0].public_key():
        raise UsageError(
            f"{origin}: not the key of the attestation certificate {chain[0].subject.rfc4514_string()}",
            remedy="give the key and the chain that belong together",
        )

    def sign(digest: bytes) -> bytes:
        return scheme.sign_digest(private, digest)

    return Identity(chain, origin, used.deterministic, used, sign)


def _scheme(public: object, where: object) -> scheme.Scheme:
    try:
        return scheme.scheme_of(public)
    except scheme.UnsupportedKey as error:
        raise UsageError(f"{where}: {error}", remedy="make one with `signing keygen`") from error


def _private_key(path: Path, passphrase: Passphrase) -> object:
    content = read_secret(path)
    load = serialization.load_pem_private_key
    try:
        try:
            return load(content, None)
        except TypeError:
            return load(content, passphrase.get(str(path)))
    except (ValueError, TypeError):
        # Not chained: the parser's own message may quote what it read.
        raise UsageError(
            f"{path}: not a PEM private key that can be opened", remedy="check the file and its passphrase"
        ) from None


def _ordered(
    leaf: x509.Certificate, others: Sequence[x509.Certificate], where: Path
) -> tuple[x509.Certificate, ...]:
    chain = [leaf]
    rest = list(others)
    while chain[-1].issuer != chain[-1].subject:
        issuer = next((c for c in rest if c.subject == chain[-1].issuer), None)
        if issuer is None:
            break
        rest.remove(issuer)
        chain.append(issuer)
    if chain[-1].issuer != chain[-1].subject:
        raise UsageError(
            f"{where}: the chain does not reach a root: nothing issues {chain[-1].subject.rfc4514_string()}",
            remedy="add the missing certificates up to the root",
        )
    if rest:
        raise UsageError(
            f"{where}: {rest[0].subject.rfc4514_string()} is no part of the chain",
            remedy="leave it out",
        )
    return tuple(chain)


def _new_key(algorithm: str) -> PrivateKey:
    if algorithm == "rsa":
        return rsa.generate_private_key(public_exponent=65537, key_size=3072)
    return ec.generate_private_key(ec.SECP384R1())


def _subject(role: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "DEVELOPMENT ONLY, NOT FOR RETAIL DEVICES"),
            x509.NameAttribute(NameOID.COMMON_NAME, f"qnn-ci development {role}"),
        ]
    )


def _certificate(
    subject: x509.Name,
    key: PrivateKey,
    issuer: x509.Name,
    issuer_key: PrivateKey,
    level: int,
    start: dt.datetime,
    days: int,
) -> x509.Certificate:
    ca = level > 0
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + dt.timedelta(days=days))
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


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(MOST_KEY_BYTES)
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read: {error.strerror}", remedy="name a certificate file"
        ) from error


def _first_line(content: bytes) -> bytes:
    return content.split(b"\n", 1)[0].rstrip(b"\r")
