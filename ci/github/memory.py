"""What jobs remember of work, by GitHub's cache: restored by all, saved by one job of the default branch.
Only what the default branch saved counts, by GitHub's own list (ci/github/caches.py). Code of a pull request
can save caches that its later runs see first. So they take what the default branch signed, or nothing.

A cache's key cannot be written twice. So shards upload what is new, and one job merges that with what was
restored and saves it under a key of its run. Entries' inputs and files are checked on use, as in any store.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from ci.engine.entries import RESTORED, prune
from ci.github import wheels
from ci.github.caches import NotBelieved, may_see_a_strangers, newest
from ci.github.digests import packed_by_the_gate
from ci.github.files import export, set_outputs
from ci.github.place import PACKED, new_memory, run_of, saves, store_of
from ci.sharing import signed
from ci.sharing.remote import keys_of
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.files import replace_text

SCHEMA = 2
"""Raise it when older entries are of no use."""

COMMIT = 12
"""Digits of a commit in keys and messages."""

REMOVED = "removed.json"
MOST_BYTES = 1 << 30
"""What one cache may save. A repository has 10 GB, and the SDK's tree needs a part of them."""

LEFT_OUT = ("clock", "pruned", "digests.json", RESTORED, signed.SIGNED)
"""Files that say something of one machine alone."""


def run(environ: Mapping[str, str]) -> int:
    """Read QNN_CI_MEMORY: place, restored, pack, merge or sign."""
    what = environ.get("QNN_CI_MEMORY", "")
    memo = store_of(environ) / "cache" / "memo"
    new = new_memory(environ)
    if what == "place":
        prefix = prefix_of(environ)
        commit = environ.get("GITHUB_SHA", "")[:COMMIT]
        export({"QNN_CI_STORE": str(store_of(environ))}, environ)
        outputs = {"memo": str(memo), "key": f"{prefix}{commit}-{run_of(environ)}", "new": str(new)}
        outputs["restore"] = believed(prefix, environ)
        outputs["saves"] = str(saves(environ)).lower()
        set_outputs({**outputs, **wheels.place(environ)}, environ)
    elif what == "restored":
        restored(memo, prefix_of(environ), environ)
    elif what == "pack":
        pack(memo, new / PACKED)
    elif what == "merge":
        merge(memo, packed_by_the_gate(new, environ, MOST_BYTES))
    elif what == "sign":
        set_outputs({"saves": str(sign(memo, environ)).lower()}, environ)
    else:
        raise UsageError(f"QNN_CI_MEMORY={what!r}: expected place, restored, pack, merge or sign")
    return 0


def prefix_of(environ: Mapping[str, str]) -> str:
    """The same for all runs of one call of the gate: another profile or suite has a memory of its own."""
    names = ("QNN_CI_PROFILE", "QNN_CI_SUITE", "QNN_CI_SOC")
    digest = hashlib.sha256(json.dumps([environ.get(name, "") for name in names]).encode()).hexdigest()
    return f"qnn-ci-memo-{SCHEMA}-{digest[:12]}-"


def believed(prefix: str, environ: Mapping[str, str]) -> str:
    """The key to restore; empty, with a message, if none is believed."""
    try:
        trusted = environ.get("QNN_CI_TRUST_CACHE") == "true" or keys_of(environ)[1]
        if may_see_a_strangers(environ) and not trusted:
            raise NotBelieved(
                "code of a pull request can save one that its next run sees; give gate.yml public-keys, or"
                " trust-cache: true (docs/github.md)"
            )
        return newest(prefix, environ)
    except NotBelieved as why:
        sys.stdout.write(f"nothing remembered is taken from GitHub's cache: {why}\n")
        return ""


def restored(memo: Path, prefix: str, environ: Mapping[str, str]) -> None:
    """Note what came from the cache, and from which commit, for reports and for `pack`.

    QNN_CI_RESTORED is the key that was restored. The list is read again: a cache that another ref saved
    since is the one that was restored."""
    key = environ.get("QNN_CI_RESTORED", "")
    if not key:
        sys.stdout.write("nothing was restored\n")
        return
    if not key.startswith(prefix) or not believed(prefix, environ):
        shutil.rmtree(memo, ignore_errors=True)
        return
    if (writers := keys_of(environ)[1]) and (removed := signed.keep_signed(memo, writers)):
        sys.stdout.write(f"{removed} files have no signature by one of public-keys: they are removed\n")
    names, commit = _names(memo), key.removeprefix(prefix)[:COMMIT]
    data = {"origin": f"GitHub's cache of {commit}", "names": names}
    replace_text(memo / RESTORED, json.dumps(data))
    others = ("sets/", "names/", "figures/")
    entries = sum(name.endswith(".json") and not name.startswith(others) for name in names)
    sys.stdout.write(f"{entries} entries of {commit}\n")


def pack(memo: Path, into: Path) -> None:
    """Archive what is new, and the names of restored entries that are gone, since their work has failed."""
    before: set[str] = set()
    if (memo / RESTORED).is_file():
        before = set(json.loads((memo / RESTORED).read_text(encoding="utf-8"))["names"])
    now = set(_names(memo))
    into.parent.mkdir(parents=True, exist_ok=True)
    replace_text(into.with_name(REMOVED), json.dumps(sorted(before - now)))
    with tarfile.open(into, "w") as archive:
        archive.add(into.with_name(REMOVED), REMOVED)
        for name in sorted(now - before):
            archive.add(memo / name, name, recursive=False)
    into.with_name(REMOVED).unlink()
    sys.stdout.write(f"{len(now - before)} new files, {len(before - now)} gone\n")


def merge(memo: Path, archives: list[Path]) -> None:
    """Add what shards packed to what was restored, and remove what none may use; the rest is saved."""
    for file in archives:
        room = MOST_BYTES
        with tarfile.open(file, "r:") as archive:
            for member in archive:
                # Of a sparse member, the file is larger than the archive.
                room -= member.size
                if room < 0:
                    raise CheckFailed(f"{file.name} has more than {MOST_BYTES >> 20} MB")
                name = PurePosixPath(member.name)
                if not member.isreg() or name.is_absolute() or ".." in name.parts:
                    raise CheckFailed(f"{file.name}: {member.name!r} is no file of a memory")
                stream = archive.extractfile(member)
                assert stream is not None
                if member.name == REMOVED:
                    for gone in map(str, json.load(stream)):
                        if ".." not in PurePosixPath(gone).parts:
                            (memo / gone.lstrip("/")).unlink(missing_ok=True)
                elif not (memo / name).exists():
                    (memo / name).parent.mkdir(parents=True, exist_ok=True)
                    (memo / name).write_bytes(stream.read())
    memo.mkdir(parents=True, exist_ok=True)
    prune(memo)
    _keep_to(memo, MOST_BYTES)
    for stale in LEFT_OUT:
        (memo / stale).unlink(missing_ok=True)
    sys.stdout.write(f"{len(archives)} shards, {len(_names(memo))} files\n")


def sign(memo: Path, environ: Mapping[str, str]) -> bool:
    """Sign what is to be saved; whether anybody uses it then."""
    signer, writers = keys_of(environ)
    if signer and signer.public_key() not in writers:
        raise UsageError(
            "no gate would use what this signing key signs: public-keys has not its public key",
            fix="openssl pkey -in KEY.pem -pubout, and append that to gate.yml's input public-keys",
        )
    if signer:
        sys.stdout.write(f"signed {signed.sign(memo, _names(memo), signer)} files\n")
    elif writers:
        sys.stdout.write("not saved: there is no signing key, and gates with public keys use nothing else\n")
    return bool(signer) or not writers


def _keep_to(memo: Path, most: int) -> None:
    """Remove the files that were not used for longest. An entry without one of its files is no entry."""
    files = sorted((memo / name for name in _names(memo)), key=lambda path: path.stat().st_mtime)
    size = sum(path.stat().st_size for path in files)
    for path in files:
        if size <= most:
            return
        size -= path.stat().st_size
        path.unlink()


def _names(memo: Path) -> list[str]:
    paths = (path.relative_to(memo).as_posix() for path in memo.rglob("*") if path.is_file())
    return sorted(name for name in paths if name not in LEFT_OUT and "work" not in name.split("/")[:2])
