"""Recipes of builds: manifests/recipes/<target>.toml over the base that it names."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

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
    targets: tuple[str, ...] = ()
    """Targets to build; empty: what the project builds by default."""
    options: Options = Field(default_factory=dict)
    only_with: Inside | None = None
    """A file of the tree: if it is missing, the project is left out."""


class Output(Model):
    """A file to take from the build directory, where one of `files` fits."""

    kind: Kind
    files: Annotated[tuple[Inside, ...], Field(min_length=1)]
    to: Inside
    defined_in: Inside | None = None
    defined: str | None = None
    """A pattern: one output for each name that it matches in CMake files below `defined_in`, as `{name}`."""
    only_with: Inside | None = None
    """A file of the tree: only if it exists, the build must make this output."""

    @field_validator("defined")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        try:
            if value is not None and re.compile(value).groups != 1:
                raise ValueError("a regular expression with one group")
        except re.error as error:
            raise ValueError(f"a regular expression ({error})") from None
        return value

    @model_validator(mode="after")
    def _both(self) -> Output:
        if (self.defined is None) != (self.defined_in is None):
            raise ValueError("`defined` and `defined_in` together or neither")
        return self


class Copy(Model):
    """A file of the tree that its Python package also needs in another place."""

    file: Inside
    to: Inside


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
    outputs: tuple[Output, ...] = ()
    copies: tuple[Copy, ...] = ()
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
                "outputs": (*base.outputs, *recipe.outputs),
                "copies": (*base.copies, *recipe.copies),
                "written": (*base.written, *recipe.written),
            }
        )
    for key in ("toolchain", "projects", "outputs"):
        if not getattr(recipe, key):
            raise ManifestError(path, key, expected="a value here or in its base", found="none")
    return recipe


def for_tree(recipe: Recipe, tree: Path) -> Recipe:
    """The projects and outputs of a recipe that apply to this tree."""

    def there(part: RecipeProject | Output) -> bool:
        return part.only_with is None or (tree / part.only_with).is_file()

    return recipe.model_copy(
        update={
            "projects": tuple(filter(there, recipe.projects)),
            "outputs": tuple(filter(there, recipe.outputs)),
        }
    )


def filled(text: str, values: dict[str, str]) -> str:
    """Replace placeholders; other braces and `$ORIGIN` stay."""
    return re.sub(r"\{(\w+)\}", lambda name: values.get(name.group(1), name.group()), text)
