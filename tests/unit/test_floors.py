"""The floors of the house: imports go down only (CONTRIBUTING.md). Every import is found by parsing."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator, Sequence, Set
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from symtable import symtable

from provisioning.base import toml
from provisioning.base.settings import ROOT
from tests.support.sources import OURS, names_imported, nodes, our_files, parsed, statements, walked, with_any

FLOORS = (
    {"diagnose"},
    {"artifacts", "work"},
    {"models"},
    {"suite"},
    {"one_model", "hub"},
    {"operators"},
    {"explain"},
    {"lanes", "builds", "parity", "signing", "device", "inspect"},
    {
        "lanes.registry",
        "report",
        "model_commands",
        "gate",
        "github",
        "image",
        "__main__",
    },
)
"""The rooms of ci/, lowest first; the last are the edges. A lane is a room of its own; the registry,
which knows all lanes, is an edge."""

OF_PROVISIONING = (
    {"base"},
    {
        "accepted_file",
        "addresses",
        "archive",
        "build_ids",
        "components",
        "elf",
        "elf_damage",
        "pip_settings",
        "source_tree",
    },
    {"http_answers"},
    {"download"},
    {"dist", "installer", "known_faults", "own_installation", "sources"},
    {"lock_files", "manifest"},
    {"executorch_chips", "licences", "python_environments", "qnn_libraries"},
    {"store"},
    {"executorch"},
    {"stage_variables"},
    {"environment"},
    {"validation"},
    {"verbs", "__main__"},
)
"""The rooms of provisioning/, likewise."""

_MODULE_IN_TEXT = re.compile(r"ci\.[a-z_]+(?:\.[a-z_]+)*(?::\w+)?|ci(?::\w+)")


_BEGINS = rf"(?:{'|'.join(OURS)})\."
_IN_TEXT = re.compile(_BEGINS + r"[\w.]*\w(?::\w+)?")


@cache
def _imports() -> frozenset[tuple[str, str]]:
    """(importing module, imported module) for every import of our own code, wherever in a file it stands."""
    pairs = set()
    for file in our_files():
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for name in names_imported(parsed(file)):
            if name.partition(".")[0] in (*OURS, "tests"):
                pairs.add((module, name))
    return frozenset(pairs)


def _is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def _below(module: str, prefix: str) -> bool:
    return f"{module}.".startswith(f"{prefix}.")


def _allowed(importing: str, imported: str) -> bool:
    """Whether an import goes down. A stage's own package and what lies on lower floors is allowed."""
    if _below(imported, "tests"):
        return False
    if _below(importing, "lab"):
        return True
    if _below(imported, "lab"):
        return False
    if _below(importing, "qnn_ci"):
        return True
    if _below(importing, "provisioning.base"):
        return _below(imported, "provisioning.base")
    if _below(importing, "provisioning") and not _below(imported, "provisioning"):
        return False
    if _below(imported, "provisioning") and not _below(importing, "provisioning"):
        return True
    floors = FLOORS if _below(importing, "ci") else OF_PROVISIONING
    from_, to = _room(importing), _room(imported)
    edge = _floor(from_, floors) == len(floors) - 1
    return from_ == to or edge or _floor(to, floors) < _floor(from_, floors)


def _room(module: str) -> str:
    """Of a module of ci/ or provisioning/."""
    return ".".join(module.split(".")[1 : 3 if _below(module, "ci.lanes") else 2])


def _floor(room: str, floors: Sequence[Set[str]]) -> int:
    by_room = {name: number for number, rooms in enumerate(floors) for name in rooms}
    return by_room[room] if room in by_room else by_room[room.partition(".")[0]]


@cache
def _violations() -> set[tuple[str, str]]:
    return {pair for pair in _imports() if not _allowed(*pair)} | _named_by_provisioning()


def test_no_wheel_has_the_laboratory_and_no_text_of_the_product_names_a_module_or_session_of_it() -> None:
    build = toml.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
    wheel = build["targets"]["wheel"]
    assert not {name for name in (*wheel["packages"], *wheel["force-include"]) if _below(name, "lab")}
    product = [
        ROOT / "noxfile.py",
        *our_files("provisioning", "ci", "qnn_ci"),
        *(ROOT / "manifests").rglob("*.toml"),
    ]
    naming = re.compile(r"""["'](?:lab[.:]|nox -s lab\b)|\bpython -m lab\b|"-m", "lab"|session\("lab\"""")
    named = {file.name for file in product if naming.search(file.read_text(encoding="utf-8"))}
    assert named == {"noxfile.py"}


def _named_by_provisioning() -> set[tuple[str, str]]:
    """provisioning names no module of ci, not even as text that is imported later."""
    pairs = set()
    for file in with_any((ROOT / "provisioning").rglob("*.py"), '"ci.', '"ci:', "'ci.", "'ci:"):
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        for node in nodes(file):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and _MODULE_IN_TEXT.fullmatch(text):
                pairs.add((module, text.partition(":")[0]))
    return pairs


def _naming() -> Iterator[Path]:
    """Those with a text that begins as a module of ours."""
    return with_any(our_files(), *(f"{quote}{package}." for quote in "\"'" for package in OURS))


def _named_in_text() -> Iterator[str]:
    """What is started or imported by its name: a module `a.b`, and what is defined in one, `a.b:c`."""
    for file in _naming():
        for node in nodes(file):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and _IN_TEXT.fullmatch(text):
                yield text


def test_what_a_text_names_is_there() -> None:
    """No import fails where it has moved, and perhaps only a nightly test starts it."""
    gone = [name for name in sorted(set(_named_in_text())) if not _is_there(name)]
    assert not gone, f"no module of ours, nor a name in one: {gone}"


def test_a_module_is_named_in_full() -> None:
    """Put together from parts it is not seen by the test above. A package whose parts a user names is."""
    built = {
        f"{file.relative_to(ROOT)}: {ast.unparse(node)}"
        for file in _naming()
        for node in nodes(file)
        if isinstance(node, ast.JoinedStr)
        if isinstance(first := node.values[0], ast.Constant) and re.match(_BEGINS, str(first.value))
    }
    assert built == {
        "ci/github/__init__.py: f'ci.github.{PARTS[args.part][0]}'",
        "provisioning/validation/__init__.py: f'provisioning.validation.{name}'",
    }


def _is_there(name: str) -> bool:
    module, colon, inside = name.partition(":")
    if not colon and _file_of(module):
        return True
    if not colon:
        module, _, inside = module.rpartition(".")
    file = _file_of(module)
    return file is not None and _defines(file, inside)


def _file_of(module: str) -> Path | None:
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        return None
    return Path(found.origin) if found and found.origin else None


def _defines(file: Path, name: str) -> bool:
    table = symtable(file.read_text(encoding="utf-8"), str(file), "exec")
    return name in table.get_identifiers() and (
        table.lookup(name).is_assigned() or table.lookup(name).is_imported()
    )


def test_imports_go_down_only() -> None:
    bad = sorted(f"{importing} imports {imported}" for importing, imported in _violations())
    assert not bad, "\n".join(bad)


def test_who_needs_work_done_imports_from_its_public_module_alone() -> None:
    """What `__all__` of one of its modules names, `ci.work` has."""
    inside = {
        f"{importing} imports {imported}"
        for importing, imported in _imports()
        if _below(imported, "ci.work") and not _below(importing, "ci.work")
        if imported.count(".") > 2 or (_is_module(imported) and imported != "ci.work")
    }
    assert not inside


def test_searches_know_a_model_only_as_a_graph() -> None:
    """Adapters and rewrites alone are of a framework, and a search imports none of them."""
    frameworks = ("torch", "executorch", "onnx", "onnxruntime")
    files = {file.stem: file for file in (ROOT / "ci" / "explain").glob("*.py")}
    adapters = [f"ci.explain.{name}" for name in files if name.startswith(("torch_", "onnx_"))]
    known = {
        (name, imported)
        for name, file in files.items()
        if f"ci.explain.{name}" not in adapters
        for imported in names_imported(parsed(file))
        if any(_below(imported, other) for other in (*frameworks, *adapters))
    }
    assert adapters and not known


def test_every_room_is_on_a_floor() -> None:
    """A new folder or module directly under ci/ or provisioning/ must be given a floor here."""
    for house, floors in {"ci": FLOORS, "provisioning": OF_PROVISIONING}.items():
        files = [file.relative_to(ROOT / house) for file in (ROOT / house).rglob("*.py")]
        rooms = {file.parts[0].removesuffix(".py") for file in files}
        assert rooms - {"__init__"} == {name for names in floors for name in names if "." not in name}


def test_contributing_has_the_same_floors() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    _, _, table = page.partition("| floor of `ci/` | room |")
    rows = re.findall(r"^\| (\d?) ?\| `([\w.]+)` \|", table.partition("\n\n")[0], re.MULTILINE)
    floors: list[set[str]] = []
    for number, room in rows:
        if number:
            floors.append(set())
            assert int(number) == len(floors)
        floors[-1].add(room)
    assert tuple(floors) == FLOORS


def test_no_modules_import_each_other() -> None:
    """Neither at once nor later, nor by way of a third: each can be read after those that it imports."""
    below: dict[str, set[str]] = {}
    for importing, name in _imports():
        below.setdefault(importing, set()).add(name if _is_module(name) else name.rpartition(".")[0])
    for importing, imported in below.items():
        imported.discard(importing)
    TopologicalSorter(below).prepare()


def test_a_class_name_stands_in_one_module() -> None:
    """So that a name in a message or a search means one thing. `_Names` are a module's own."""
    homes: dict[str, set[str]] = {}
    for file in [*(ROOT / "ci").rglob("*.py"), *(ROOT / "lab").rglob("*.py")]:
        for node in parsed(file).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, set()).add(file.relative_to(ROOT).as_posix())
    assert {name: sorted(files) for name, files in homes.items() if len(files) > 1} == {}


def test_no_text_and_no_list_is_multiplied_by_a_truth_value() -> None:
    """`text if condition else ""` names both values."""
    multiplied = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in our_files()
        for node in nodes(file)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
        if isinstance(node.left, ast.JoinedStr | ast.List)
        or (isinstance(node.left, ast.Constant) and isinstance(node.left.value, str))
        if isinstance(node.right, ast.Compare | ast.BoolOp | ast.UnaryOp)
        or ast.unparse(node.right).startswith("bool(")
    ]
    assert multiplied == []


STATEMENTS = """
try:
    match a:
        case 1 if b:
            with c: import d
except (E, F):
    for x in (y := z): pass
    else:
        while g: h = lambda: i
else:
    async def j(k, *, l: M = 1) -> N: return [o async for p in q]
finally:
    class R(S):
        def t(self): from u import v
"""


def test_who_reads_our_code_by_its_tree_sees_all_of_it() -> None:
    tree = ast.parse(STATEMENTS)
    nodes = list(ast.walk(tree))
    assert walked(tree) == nodes
    assert set(statements(tree)) == {node for node in nodes if isinstance(node, ast.stmt)}


def test_unit_tests_do_without_torch() -> None:
    """It takes two seconds to import. Tests that need it: tests/integration/test_on_torch.py."""
    files = with_any((ROOT / "tests" / "unit").glob("*.py"), "import torch", "from torch")
    imported = {
        (file.name, name.partition(".")[0]) for file in files for name in names_imported(parsed(file))
    }
    assert not {file for file, package in imported if package == "torch"}
