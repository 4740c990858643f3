"""What a library gets from those that it links."""

from __future__ import annotations

from ci.parity.pairs import reached_files
from ci.parity.tree import NamedItem, Side, Target, TreePlace

PLACE = TreePlace("CMakeLists.txt", 1)


def library(name: str, **links: str) -> Target:
    """A library with a header for its users, which links these; each has its scope."""
    header = NamedItem(f"{name}.h", PLACE, "PUBLIC")
    dependencies = [NamedItem(other, PLACE, scope) for other, scope in links.items()]
    return Target(name, "library", PLACE, "", files=[header], dependencies=dependencies)


def test_what_a_library_links_for_itself_alone_is_not_handed_on() -> None:
    mine = library("mine", near="PRIVATE")
    others = library("near", shared="PUBLIC", own="PRIVATE"), library("shared"), library("own")
    side = Side(libraries={target.name: target for target in (mine, *others)})
    assert [item.name for item in reached_files(side, mine)] == ["near.h", "shared.h"]
