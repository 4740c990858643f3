"""The real gate.yml on the small runner: what passes, what does not, and what no attack makes green."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ci.github.results import PREFIX
from ci.work.results import CachedResults
from ci.work.results_archive import pack_results
from provisioning.base.files import hash_file
from provisioning.store.results import results_folder
from tests.support.adopter import BROKEN, GOOD, Adopter, key_of

# Each run of the workflow checks out the toolkit in four jobs.
pytestmark = pytest.mark.whole

VERDICT, JOB, SAVE = "qnn / verdict", "qnn / programs", "qnn / save"
PULL_REQUEST, MAIN = "refs/pull/5/merge", "refs/heads/main"


@pytest.fixture
def adopter(tmp_path: Path) -> Adopter:
    return Adopter.at(tmp_path)


def test_a_good_change_is_green_and_saves_nothing(adopter: Adopter) -> None:
    results = adopter.pull_request(GOOD)
    assert {row.conclusion for row in results.values()} == {"success"}, results
    assert results.keys() == {"qnn / plan", JOB, "qnn / report", VERDICT} and not adopter.hub.caches


def test_a_broken_change_is_red_by_its_name(adopter: Adopter) -> None:
    results = adopter.pull_request(BROKEN)
    assert results[VERDICT].conclusion == "failure"
    assert any("one/8a8w/SM8650" in line for line in results[VERDICT].annotations)


def test_what_main_saved_is_taken_by_the_next_pull_request(adopter: Adopter) -> None:
    assert adopter.push(GOOD)[SAVE].conclusion == "success"
    ((key, ref, _),) = adopter.hub.caches
    assert key.startswith(PREFIX) and ref == MAIN
    adopter.pull_request(GOOD)
    logs = "".join(log.read_text() for log in adopter.hub.folder.glob("jobs/stage-*/step */log"))
    assert "1 cached result of the default branch" in logs


def archive(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as out:
        for info, content in members:
            info.size = len(content)
            out.addfile(info, io.BytesIO(content))
    return path


def forged(adopter: Adopter) -> Path:
    """Results that are well-formed, and say that the broken model passes."""
    store, packed = adopter.hub.folder / "forged", adopter.hub.folder / "forged.tar"
    CachedResults(store, "lowering").keep("net", key_of(BROKEN), {"passes": True})
    pack_results(results_folder(store), packed)
    info = tarfile.TarInfo("results-cache/results.tar")
    return archive(adopter.hub.folder / "forged cache.tar", (info, packed.read_bytes()))


def overwriting(adopter: Adopter, link: bool = False) -> Path:
    """A cache that puts another toolkit, which does nothing, where the job's own will be."""
    nothing = b"import sys\nsys.exit(0)\n"
    members = []
    for number in range(1, 9):
        place = adopter.hub.folder / f"jobs/stage-{number}/workspace/toolkit/ci/__main__.py"
        if link:
            folder = tarfile.TarInfo("results-cache/link")
            folder.type, folder.linkname = tarfile.SYMTYPE, str(place.parent)
            members += [(folder, b""), (tarfile.TarInfo("results-cache/link/__main__.py"), nothing)]
        members.append((tarfile.TarInfo(str(place)), nothing))
    return archive(adopter.hub.folder / "overwriting.tar", *members)


def in_main(adopter: Adopter) -> str:
    """The name of the cache that main has saved."""
    adopter.push(GOOD)
    return adopter.hub.caches[0][0]


def overwrite_in_pull_request(adopter: Adopter) -> None:
    adopter.hub.caches.append((in_main(adopter), PULL_REQUEST, overwriting(adopter)))


def overwrite_by_links(adopter: Adopter) -> None:
    adopter.hub.caches.append((in_main(adopter), PULL_REQUEST, overwriting(adopter, link=True)))


def overwrite_in_main(adopter: Adopter) -> None:
    adopter.hub.caches.append((f"{PREFIX}{'a' * 64}", MAIN, overwriting(adopter)))


def forge_under_the_name_of_main(adopter: Adopter) -> None:
    adopter.hub.caches.append((in_main(adopter), PULL_REQUEST, forged(adopter)))


def forge_under_its_own_digest(adopter: Adopter) -> None:
    results = forged(adopter)
    with tarfile.open(results) as cache:
        content = cache.extractfile("results-cache/results.tar")
        assert content is not None
        (adopter.hub.folder / "inner.tar").write_bytes(content.read())
    key = f"{PREFIX}{hash_file(adopter.hub.folder / 'inner.tar')}"
    adopter.hub.caches.append((key, PULL_REQUEST, results))


def forge_in_main_under_another_digest(adopter: Adopter) -> None:
    adopter.hub.caches.append((f"{PREFIX}{'b' * 64}", MAIN, forged(adopter)))


def poison_the_store(adopter: Adopter) -> None:
    """By the names that earlier versions restored."""
    for ref in (PULL_REQUEST, MAIN):
        for key in ("qnn-ci-store-3-linux-x86_64-wheels-0", "qnn-ci-results-4-reports-wheels"):
            adopter.hub.caches.append((key, ref, overwriting(adopter)))


def nothing(adopter: Adopter) -> None:
    pass


@pytest.mark.parametrize(
    ("attack", "model"),
    [
        (overwrite_in_pull_request, BROKEN),
        (overwrite_by_links, BROKEN),
        (overwrite_in_main, BROKEN),
        (forge_under_the_name_of_main, BROKEN),
        (forge_under_its_own_digest, BROKEN),
        (forge_in_main_under_another_digest, BROKEN),
        (poison_the_store, BROKEN),
        (nothing, "broken, and its report is of another run\n"),
        (nothing, "broken, and does nothing\n"),
    ],
)
def test_no_attack_makes_a_red_program_green_or_reaches_what_main_saves(
    adopter: Adopter, attack: Callable[[Adopter], None], model: str
) -> None:
    attack(adopter)
    before = list(adopter.hub.caches)
    assert adopter.pull_request(model)[VERDICT].conclusion == "failure"
    assert adopter.hub.caches == before, "a pull request has saved something"
