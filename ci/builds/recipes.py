"""Recipes of builds: manifests/recipes/<target>.toml over the base that it names."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from provisioning.base.documents import Model, Name, load
from provisioning.base.errors import ManifestError
from provisioning.base.settings import MANIFESTS

RECIPES = MANIFESTS / "recipes"
PLACEHOLDERS = ("tree", "build", "sdk", "ndk", "python", "cc", "cxx")

Kind = Literal["library", "runner", "adaptor"]
Toolchain = Literal["host", "ndk", "cross"]
_PART = r"[\w{}*+-]+(?:\.[\w{}*+-]+)*"
Inside = Annotated[str, StringConstraints(pattern=rf"^(?:\.|{_PART}(?:/{_PART})*)$")]
"""A path that stays below the folder it is relative to."""

Options = dict[Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_]*$")], str]


class RecipeProject(Model):
    """One CMake project of the tree."""

    name: Name
    source: Inside
    build: Inside
    install: bool = False
    """Whether its install rules run: later projects find it in CMAKE_INSTALL_PREFIX."""
    options: Options = Field(default_factory=dict)
    only_with: Inside | None = None
    """A file of the tree: if it is missing, the project is left out."""


class Copy(Model):
    """A file that the tree's Python package also needs in another place."""

    file: Inside
    to: Inside
    """As a folder, or with `built` as a file."""
    built: bool = False
    """Whether it is in the build folder, and not in the tree; what a build has not made is left out."""


class Recipe(Model):
    schema_: Literal[1] = Field(alias="schema")
    summary: str
    base: Name | None = None
    toolchain: Toolchain | None = None
    compiler: str = ""
    """The prefix of the cross compilers' names."""
    options: Options = Field(default_factory=dict)
    """Options of every project."""
    link_flags: tuple[str, ...] = ()
    projects: tuple[RecipeProject, ...] = ()
    ships: tuple[Inside, ...] = ()
    """Patterns of files in dist/ that every build has; what else CMake built is shipped as well."""
    python: dict[str, Inside] = Field(default_factory=dict)
    """Libraries that Python loads: a pattern of CMake's names → their folder in the Python package."""
    copies: tuple[Copy, ...] = ()
    submodules: tuple[Inside, ...] = ()
    """Submodules that these projects read, some of them inside others."""
    written: tuple[Inside, ...] = ()
    """Folders of the tree that its own build writes into; each build folder gets copies."""

    @model_validator(mode="after")
    def _placeholders(self) -> Recipe:
        values = [*self.options.values(), *(v for p in self.projects for v in p.options.values())]
        for value in values:
            for name in re.findall(r"\{(\w*)\}", value):
                if name not in PLACEHOLDERS:
                    raise ValueError(f"placeholders among {', '.join(PLACEHOLDERS)}, not {name!r}")
        return self


@cache
def load_recipe(target: str) -> Recipe:
    """The recipe of a target, with what it takes from its base."""
    path = RECIPES / f"{target}.toml"
    recipe = load(path, Recipe)
    if recipe.base is not None:
        base = load(RECIPES / f"{recipe.base}.toml", Recipe)
        recipe = recipe.model_copy(
            update={
                "options": {**base.options, **recipe.options},
                "link_flags": (*base.link_flags, *recipe.link_flags),
                "projects": (*base.projects, *recipe.projects),
                "ships": (*base.ships, *recipe.ships),
                "python": {**base.python, **recipe.python},
                "submodules": (*base.submodules, *recipe.submodules),
                "copies": (*base.copies, *recipe.copies),
                "written": (*base.written, *recipe.written),
            }
        )
    for key in ("toolchain", "projects", "ships"):
        if not getattr(recipe, key):
            raise ManifestError(path, key, expected="a value here or in its base", found="none")
    return recipe


def for_tree(recipe: Recipe, tree: Path) -> Recipe:
    """The recipe with the projects that this tree has."""

    def there(project: RecipeProject) -> bool:
        return project.only_with is None or (tree / project.only_with).is_file()

    return recipe.model_copy(update={"projects": tuple(filter(there, recipe.projects))})


def filled(text: str, values: dict[str, str]) -> str:
    """Replace placeholders; other braces and `$ORIGIN` stay."""
    return re.sub(r"\{(\w+)\}", lambda name: values.get(name.group(1), name.group()), text)
