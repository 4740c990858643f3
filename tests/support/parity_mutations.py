"""Random changes to the miniature tree: drifts, which parity has to find, and edits that change nothing."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ci.upkeep.miniature_tree import BACKENDS, LIBRARIES, PAL, PLATFORM, QUALCOMM

Files = dict[str, str]

RUNTIME_BUCK = f"{QUALCOMM}/runtime/targets.bzl"
WRAPPERS_BUCK = f"{QUALCOMM}/aot/wrappers/targets.bzl"
PYTHON_BUCK = f"{QUALCOMM}/aot/python/targets.bzl"
QUANTIZER_BUCK = f"{QUALCOMM}/quantizer/targets.bzl"
TOP_CMAKE = f"{QUALCOMM}/CMakeLists.txt"
RUNTIME_CMAKE = f"{QUALCOMM}/runtime/CMakeLists.txt"
BACKENDS_CMAKE = f"{BACKENDS}/CMakeLists.txt"
WRAPPERS_CMAKE = f"{QUALCOMM}/aot/wrappers/CMakeLists.txt"
DOCS = "docs/source/backends-qualcomm.md"
CONFIG = f"{QUALCOMM}/scripts/qnn_config.sh"
DOWNLOAD = f"{QUALCOMM}/scripts/download_qnn_sdk.py"
INSTALL = f"{QUALCOMM}/scripts/install_qnn_sdk.sh"
VERSION_BZL = "shim_et/xplat/executorch/backends/qualcomm/qnn_version.bzl"
DOCKER = ".ci/docker/build.sh"
BUCK_FILES = (RUNTIME_BUCK, WRAPPERS_BUCK, PYTHON_BUCK, QUANTIZER_BUCK, f"{QUALCOMM}/targets.bzl")
CMAKE_FILES = (TOP_CMAKE, RUNTIME_CMAKE, BACKENDS_CMAKE, WRAPPERS_CMAKE)
KINDS = ("gpu", "htp", "lpai")


@dataclass(frozen=True)
class Expected:
    """A finding of any of these rules (none: of any rule) whose subject matter contains the text has to be
    there."""

    rules: tuple[str, ...] = ()
    what: str = ""


class Inapplicable(Exception):
    """The text that this change is made to has been changed by another already."""


@dataclass(frozen=True)
class Drift:
    """A change that parity has to find. In its texts, KIND is a backend, SOURCE the source of a library, and
    NEW a new name."""

    rules: str
    """Any of these finds it; empty: any rule."""
    what: str = ""
    """A part of what the finding is about."""
    path: str = ""
    old: str = ""
    """Replaced by `new`; without it, `new` is appended."""
    new: str = ""
    before: str = ""
    """A pattern: `new` is put before group 1 of a random match."""
    first: str = ""
    """A new first line."""
    added: tuple[str, ...] = ()
    """New files."""
    removed: str = ""

    def made(self, rng: random.Random, files: Files) -> Expected:
        words = {"KIND": rng.choice(KINDS), "SOURCE": rng.choice(sorted(LIBRARIES.values()))[0]}
        words["NEW"] = _name(rng).lower()

        def drawn(text: str) -> str:
            return re.sub(r"\b(KIND|SOURCE)\b|NEW", lambda match: words[match[0]], text)

        files.update((drawn(path), "# new\n") for path in self.added)
        files.pop(drawn(self.removed), None)
        if self.before:
            matches = list(re.finditer(self.before, files[self.path], re.MULTILINE))
            if not matches:
                raise Inapplicable(self.path)
            at = rng.choice(matches).start(1)
            files[self.path] = files[self.path][:at] + drawn(self.new) + files[self.path][at:]
        elif self.old:
            _swap(files, self.path, drawn(self.old), drawn(self.new))
        elif self.path:
            files[self.path] = drawn(self.first) + files[self.path] + drawn(self.new)
        return Expected(tuple(f"parity-{rule}" for rule in self.rules.split()), drawn(self.what))


Edit = Callable[[random.Random, Files], None]
EDITS: dict[str, Edit] = {}


def edit(function: Edit) -> Edit:
    EDITS[function.__name__] = function
    return function


def _swap(files: Files, path: str, old: str, new: str) -> None:
    if old not in files[path]:
        raise Inapplicable(old)
    files[path] = files[path].replace(old, new, 1)


def _name(rng: random.Random) -> str:
    return "New" + "".join(rng.choice("abcdefgh") for _ in range(5))


def _of_each(paths: Iterable[str], rules: str, *texts: str, what: str | None = None) -> list[Drift]:
    """Each text appended to each file."""
    return [
        Drift(rules, path.rpartition("/")[0] if what is None else what, path, new=new)
        for path in paths
        for new in texts
    ]


HERE = "${CMAKE_CURRENT_LIST_DIR}"
PATTERN = '                    "backends/KIND/*{}",\n'
HALVES = '["backends/KIND/{}/*.cpp"] if include_aot_qnn_lib else ["backends/KIND/{}/*.cpp"]'
INTERFACE = '"//executorch/runtime/backend:interface",\n'
DECOMPOSE = '"//executorch/backends/transforms:decompose_sdpa",\n'
ADAPTOR = '"PyQnnManagerAdaptor'
EXCLUDED = 'exclude = ["Logging.cpp"],\n            ),'
UNKNOWN_TO_CMAKE = (
    "find_package(Qairt)\nif(Qairt_FOUND)",
    "if(QAIRT_HAS_WRAPPERS)",
    "execute_process(COMMAND uname OUTPUT_VARIABLE out)\nif(out STREQUAL Linux)",
    'find_program(v v)\nstring(REGEX MATCH "[0-9]+" n "${v}")\nif(n EQUAL 2)',
    "include(CheckCXXCompilerFlag)\ncheck_cxx_compiler_flag(-Wq has)\nif(has)",
    "if(EXISTS /usr/include/qairt.h)",
    "if(DEFINED ENV{QAIRT})",
    "if(TRUE AND QAIRT_HAS_WRAPPERS)",
    "if(FALSE OR NOT QAIRT_HAS_WRAPPERS)",
    "if(${QAIRT_PLATFORM} MATCHES android)",
)

DRIFTS: dict[str, list[Drift]] = {
    # What seed 003 tells of
    "a new backend is missing from the globs": [
        Drift(
            *("missing-in-buck", "NEW/Backend.cpp", BACKENDS_CMAKE),
            new="target_sources(qnn_graph PRIVATE NEW/Backend.cpp NEW/Backend.h)\n",
            added=(f"{BACKENDS}/NEW/Backend.cpp", f"{BACKENDS}/NEW/Backend.h"),
        )
    ],
    "a pattern is dropped": [
        Drift("missing-in-buck", "KIND/", RUNTIME_BUCK, PATTERN.format(suffix)) for suffix in (".cpp", ".h")
    ],
    "host and target are mixed up": [
        Drift(
            "missing-in-buck",
            f"KIND/{missing}",
            RUNTIME_BUCK,
            HALVES.format("host", "target"),
            HALVES.format(*halves),
        )
        for missing, *halves in (("", "target", "host"), ("target/", "host", "host"))
    ],
    "an old directory is named": [
        Drift(
            "glob-empty", "x86_64", RUNTIME_BUCK, '"backends/KIND/host/*.cpp"', '"backends/KIND/x86_64/*.cpp"'
        )
    ],
    "a file that does not exist is excluded": [
        Drift(
            "exclude-empty",
            "NEW",
            RUNTIME_BUCK,
            '["Logging.cpp"]',
            '["Logging.cpp", "backends/KIND/aarch64/NEW.cpp"]',
        )
    ],
    "a heavy dependency comes in": [
        Drift(
            "heavy-dependency",
            label,
            QUANTIZER_BUCK,
            DECOMPOSE,
            f'{DECOMPOSE}            "//executorch/{label}",\n',
        )
        for label in ("kernels/quantized:aot_lib", "kernels/quantized:quantized_ops_lib")
    ],
    # Files
    "a source is on disk and in the globs alone": [
        Drift("missing-in-cmake", "NEW.cpp", added=(f"{QUALCOMM}/runtime/{folder}NEW.cpp",))
        for folder in ("", "backends/", "backends/KIND/", "backends/KIND/host/", "backends/KIND/target/")
    ],
    "CMake drops a file": [
        Drift("missing-in-cmake unknown-file", f"{name}.cpp", path, f"{HERE}/{name}.cpp")
        for path, name in (
            (BACKENDS_CMAKE, "SOURCE"),
            (RUNTIME_CMAKE, "Utils"),
            (WRAPPERS_CMAKE, "OpWrapper"),
        )
    ],
    "CMake always takes the target half": [
        Drift(
            "missing-in-cmake", "/host/", BACKENDS_CMAKE, 'set(_platform "host")', 'set(_platform "target")'
        )
    ],
    "CMake takes a file for one platform only": [
        Drift(
            "missing-in-cmake",
            f"{name}.cpp",
            RUNTIME_CMAKE,
            f"{HERE}/{name}.cpp",
            f"$<$<PLATFORM_ID:Android>:{HERE}/{name}.cpp>",
        )
        for name in ("Utils", "SharedBuffer")
    ],
    "a subdirectory is not added": [
        Drift(
            "missing-in-cmake",
            "wrappers/",
            TOP_CMAKE,
            "add_subdirectory(\n  ${QNN_EXECUTORCH_ROOT_DIR}/aot/wrappers\n",
            "set(_unused\n  ${QNN_EXECUTORCH_ROOT_DIR}/aot/wrappers\n",
        )
    ],
    "a file is misspelt": [
        Drift("missing-file", "SOURCEs.cpp", BACKENDS_CMAKE, "/SOURCE.cpp", "/SOURCEs.cpp"),
        *(
            Drift(
                "missing-file", f"Adapter{suffix}", PYTHON_BUCK, f'{ADAPTOR}{suffix}"', f'"Adapter{suffix}"'
            )
            for suffix in (".cpp", ".h")
        ),
    ],
    "a file is deleted": [
        Drift("missing-file", f"{BACKENDS}/SOURCE{suffix}", removed=f"{BACKENDS}/SOURCE{suffix}")
        for suffix in (".cpp", ".h")
    ],
    "a file is renamed on disk": [
        Drift("missing-in-cmake", "NEW.cpp", removed=f"{BACKENDS}/SOURCE.cpp", added=(f"{BACKENDS}/NEW.cpp",))
    ],
    "no build knows a file": [
        Drift("unknown-file", path, added=(path,))
        for path in (
            *(
                f"{QUALCOMM}/{folder}/NEW{suffix}"
                for folder in ("runtime/backends/direct_mode/host", "extra")
                for suffix in (".cpp", ".h", ".c")
            ),
            f"{QUALCOMM}/recipes/NEW.py",
            f"{PAL}/src/windows/NEW.cpp",
        )
    ],
    "no build knows a Python package": [
        Drift(
            "unknown-file",
            f"{QUALCOMM}/{folder}/NEW/**/*.py",
            added=tuple(f"{QUALCOMM}/{folder}/NEW/{name}.py" for name in ("a", "b", "deep/c")),
        )
        for folder in ("builders", "partition", "utils", "_passes")
    ],
    "a package that says something is forgotten": [
        Drift(
            "unknown-file",
            f"{QUALCOMM}/aot/*.py",
            f"{QUALCOMM}/aot/__init__.py",
            new="from . import python\n",
        )
    ],
    "a header goes by another name": [
        Drift(
            "header-renamed", f"pal/include/pal/{name}.h", RUNTIME_BUCK, f'"{name}.h": ', f'"{name}{other}": '
        )
        for name in PLATFORM
        for other in ("s.h", ".hpp")
    ],
    "the platform layer grows in Buck alone": [
        Drift("missing-in-cmake", "NEW.cpp", added=(f"{PAL}/src/linux/NEW.cpp",))
    ],
    "a mapped header is dropped": [
        Drift(
            "missing-in-buck",
            f"pal/include/pal/{name}.h",
            RUNTIME_BUCK,
            f'            "{name}.h": "pal/include/pal/{name}.h",\n',
        )
        for name in PLATFORM
    ],
    "Buck excludes a file": [
        Drift(
            "missing-in-buck",
            f"{name}{suffix}",
            RUNTIME_BUCK,
            f'["Logging{suffix}"]',
            f'["Logging{suffix}", "{name}{suffix}"]',
        )
        for name in ("Utils", "QnnManager", "backends/QnnLogger", "backends/htp/HtpGraph")
        for suffix in (".cpp", ".h")
    ],
    "a directory becomes a package": [
        Drift("missing-in-buck", "KIND/", added=(f"{BACKENDS}/KIND/{name}",)) for name in ("BUCK", "TARGETS")
    ],
    "a pattern matches nothing": [
        *(
            Drift("glob-empty", "NEW", RUNTIME_BUCK, each, each + each.replace("/*", "/NEW/*"))
            for each in (PATTERN.format(".cpp"), PATTERN.format(".h"))
        ),
        Drift(
            *("glob-empty", "NEW", WRAPPERS_CMAKE),
            new=f"file(GLOB _more {HERE}/NEW*.cpp)\ntarget_sources(wrappers PRIVATE ${{_more}})\n",
        ),
    ],
    "a select gives Android one file more": [
        Drift(
            *("missing-in-cmake", "NEW.cpp", RUNTIME_BUCK, EXCLUDED),
            EXCLUDED[:-1]
            + ' + select({"ovr_config//os:android": ["backends/direct_mode/NEW.cpp"], "DEFAULT": []}),',
            added=(f"{BACKENDS}/direct_mode/NEW.cpp",),
        )
    ],
    "any file or pattern of Buck is spoilt": [
        Drift("", path=path, before=r"""["'][\w/*]+(\.(?:cpp|h))["']""", new="NEW")
        for path in (RUNTIME_BUCK, WRAPPERS_BUCK)
    ],
    "any label of Buck is spoilt": [
        Drift(
            *("dependency-unmapped not-evaluated", "", path),
            before=r"""["'](?://executorch[\w/]+)?:\w+()["'],""",
            new="NEW",
        )
        for path in (RUNTIME_BUCK, WRAPPERS_BUCK)
    ],
    "any file of CMake is spoilt": [
        Drift("", path=path, before=r"""^[^#\n]*?\w(\.(?:cpp|h))\b""", new="NEW")
        for path in (RUNTIME_CMAKE, BACKENDS_CMAKE, WRAPPERS_CMAKE)
    ],
    # Compiled twice
    "a source is in two libraries of CMake": [
        Drift(
            *("compiled-twice", "SOURCE.cpp", BACKENDS_CMAKE),
            new="target_sources(qnn_device PRIVATE SOURCE.cpp)\n",
        )
    ],
    "an exclude is dropped": [
        Drift("compiled-twice", "Logging.cpp", RUNTIME_BUCK, 'exclude = ["Logging.cpp"],')
    ],
    "Buck names a source twice": [
        Drift("listed-twice", "Adaptor.cpp", PYTHON_BUCK, f'{ADAPTOR}.cpp",\n', f'{ADAPTOR}.cpp",\n' * 2)
    ],
    "a source reaches those who link it": [
        Drift(
            *("compiled-twice", f"{name}.cpp", WRAPPERS_CMAKE),
            f"{HERE}/{name}.cpp",
            f")\ntarget_sources(wrappers PUBLIC {HERE}/{name}.cpp)\ntarget_sources(wrappers PRIVATE",
        )
        for name in ("OpWrapper", "QuantizeParamsWrapper")
    ],
    # Dependencies
    "CMake drops a link": [
        Drift("dependency-missing-in-cmake", "", TOP_CMAKE, old, "\n")
        for old in (
            "target_link_libraries(qnn_executorch_logging PRIVATE qnn_schema)",
            "target_link_libraries(wrappers PRIVATE qnn_executorch_logging)",
            "executorch_core\n",
        )
    ],
    "Buck drops a dependency": [
        Drift("dependency-missing-in-buck stale-entry", "", path, old)
        for path, old in (
            (RUNTIME_BUCK, '                "//executorch/runtime/core:core",'),
            (RUNTIME_BUCK, '"//executorch/extension/tensor:tensor",'),
            (RUNTIME_BUCK, '"//executorch/backends/qualcomm/aot/wrappers:wrappers",'),
            (PYTHON_BUCK, '"//executorch/backends/qualcomm/runtime:runtime",'),
            (PYTHON_BUCK, 'qnn_third_party_dep("pybind11"),'),
        )
    ],
    "Buck gains a dependency": [
        Drift(rule, what, WRAPPERS_BUCK, INTERFACE, f'{INTERFACE}            "//executorch/{label}",\n')
        for rule, what, label in (
            ("dependency-missing-in-cmake", "", "extension/tensor:tensor"),
            ("dependency-missing-in-cmake", "", "backends/qualcomm:schema"),
            ("dependency-unmapped", "NEW", "extension/NEW:NEW"),
        )
    ],
    "CMake gains a link": [
        *(
            Drift(
                *("dependency-missing-in-buck", "", TOP_CMAKE),
                new=f"target_link_libraries(qnn_executorch_logging PRIVATE {library})\n",
            )
            for library in ("extension_tensor", "wrappers", "qnn_logger")
        ),
        Drift("dependency-unmapped", "NEW", TOP_CMAKE, new="target_link_libraries(wrappers PUBLIC NEW)\n"),
    ],
    # Targets
    "CMake gains a library": [
        Drift(
            *("missing-in-buck", "NEW", TOP_CMAKE),
            new="add_library(qnn_NEW STATIC extra/NEW.cpp)\n",
            added=(f"{QUALCOMM}/extra/NEW.cpp",),
        )
    ],
    "Buck gains a library": [
        Drift(
            *("unmapped-target", "NEW", WRAPPERS_BUCK),
            new='    runtime.cxx_library(name = "NEW", srcs = ["more/NEW.cpp"])\n',
            added=(f"{QUALCOMM}/aot/wrappers/more/NEW.cpp",),
        )
    ],
    "a target is renamed": [
        Drift("target-missing not-evaluated", "", path, old, new)
        for path, old, new in (
            (WRAPPERS_BUCK, 'name = "wrappers"', 'name = "wrapper"'),
            (RUNTIME_BUCK, '"_android_build"', '"_android"'),
            (
                TOP_CMAKE,
                "qnn_sys_implementation shared_buffer utils wrappers\n",
                "wrappers shared_buffer utils\n",
            ),
        )
    ],
    # Pins
    "a pin drifts": [
        Drift("pin-drift", "", path, old, new)
        for path, old, new in (
            (CONFIG, "2.37.0.250724", "2.38.0.250801"),
            (DOCS, "QNN 2.37.0", "QNN 2.28.0"),
            (DOCS, "NDK 26c", "NDK 27b"),
            (DOCKER, "ANDROID_NDK_VERSION=r26c", "ANDROID_NDK_VERSION=r27c"),
            (DOWNLOAD, "2.37.0.250724", "2.37.0.250801"),
            (INSTALL, "r26c", "r25c"),
        )
    ],
    "a pin is no longer there": [
        Drift("pin-missing", "", path, old, "nothing")
        for path, old in (
            (CONFIG, "QNN_VERSION"),
            (DOCS, "[QNN 2.37.0]"),
            (DOCS, "verified with NDK 26c"),
            (DOWNLOAD, "QNN_VERSION"),
            (INSTALL, "NDK_VERSION"),
        )
    ],
    # What cannot be evaluated
    "CMake calls an unknown command": _of_each(CMAKE_FILES, "not-evaluated", "NEW(wrappers)\n", what="NEW"),
    "CMake asks for what only a configure step knows": [
        Drift(
            *("not-evaluated", "", WRAPPERS_CMAKE),
            new=f"{question}\n  target_sources(wrappers PRIVATE NEW.cpp)\nendif()\n",
            added=(f"{QUALCOMM}/aot/wrappers/NEW.cpp",),
        )
        for question in UNKNOWN_TO_CMAKE
    ],
    "CMake takes sources from outside": [
        Drift(
            *("not-evaluated", "NEW", WRAPPERS_CMAKE),
            new="target_sources(wrappers PRIVATE ${NEW_SOURCES})\n",
        )
    ],
    "CMake has a syntax error": _of_each(
        CMAKE_FILES, "not-evaluated", "if(TRUE)\n", "endif()\n", "set(x\n", ")\n", 'set(x "y)\n', what=""
    ),
    "Buck calls an unknown function": _of_each(
        BUCK_FILES, "not-evaluated", "    NEW()\n", "    runtime.NEW(name = 'x')\n", "    native.NEW()\n"
    ),
    "Buck loads what is not there": [
        Drift(
            *("not-evaluated", path.rpartition("/")[0], path),
            first=f'load("{label}", "more")\n',
            new="\n" + use,
        )
        for path in BUCK_FILES
        for label in (":more.bzl", "@fbsource//tools:more.bzl", "//executorch/build:more.bzl")
        for use in ("more()\n", "MORE = more\n")
    ],
    "Buck has a syntax error": _of_each(
        BUCK_FILES, "not-evaluated", "    x = [\n", "    for:\n", "    if True\n"
    ),
    "a DSP is chosen by what nothing sets": [
        Drift("not-evaluated", "NEW", TOP_CMAKE, 'if(DSP_TYPE STREQUAL "3")', 'if(NEW STREQUAL "3")')
    ],
    "a select asks for an unknown platform": [
        Drift(
            *("not-evaluated", "runtime", RUNTIME_BUCK, '"ovr_config//os:android": [":logging"]'),
            '"ovr_config//cpu:NEW": [":logging"]',
        )
    ],
    "an attribute is not understood": [
        Drift(
            *("not-evaluated", attribute, WRAPPERS_BUCK, 'name = "wrappers",'),
            f'name = "wrappers",\n        {attribute} = ["x"],',
        )
        for attribute in ("platform_srcs", "fbandroid_headers", "platform_deps")
    ],
}


# Edits that change nothing


@edit
def comments(rng: random.Random, files: Files) -> None:
    path = rng.choice([*BUCK_FILES, *CMAKE_FILES])
    lines = files[path].split("\n")
    # Below the loads, where a statement of several lines may be cut by a comment in either language.
    position = rng.randrange(len(lines))
    lines.insert(position, f"# {_name(rng)}.cpp ( [ {_name(rng)}")
    files[path] = "\n".join(lines)


@edit
def blank_lines_and_trailing_spaces(rng: random.Random, files: Files) -> None:
    path = rng.choice([*BUCK_FILES, *CMAKE_FILES])
    spoilt = [line + " " * rng.randrange(3) + "\n" * rng.randrange(2) for line in files[path].split("\n")]
    files[path] = "\n".join(spoilt)


@edit
def order_of_patterns(rng: random.Random, files: Files) -> None:
    lines = files[RUNTIME_BUCK].split("\n")
    begin = next((at for at, line in enumerate(lines) if line.strip() == '"*.h",'), None)
    if begin is None:
        raise Inapplicable("headers")
    end = next(at for at in range(begin, len(lines)) if not lines[at].strip().startswith('"'))
    part = lines[begin:end]
    rng.shuffle(part)
    files[RUNTIME_BUCK] = "\n".join([*lines[:begin], *part, *lines[end:]])


@edit
def order_of_cmake_sources(rng: random.Random, files: Files) -> None:
    old = "         ${CMAKE_CURRENT_LIST_DIR}/ParamWrapper.h\n"
    _swap(files, WRAPPERS_CMAKE, old, "")
    anchor = rng.choice(["QuantizeParamsWrapper", "ScalarParamWrapper", "TensorParamWrapper"])
    line = f"         ${{CMAKE_CURRENT_LIST_DIR}}/{anchor}.h\n"
    _swap(files, WRAPPERS_CMAKE, line, line + old)


@edit
def order_of_cmake_blocks(rng: random.Random, files: Files) -> None:
    parts = re.split(r"\n\n(?=target_sources)", files[RUNTIME_CMAKE])
    if len(parts) < 2:
        raise Inapplicable("blocks")
    tail = parts[1:]
    rng.shuffle(tail)
    files[RUNTIME_CMAKE] = "\n\n".join([parts[0], *tail])


@edit
def one_line(rng: random.Random, files: Files) -> None:
    path = rng.choice([RUNTIME_CMAKE, WRAPPERS_CMAKE])
    if "#" in files[path]:
        files[path] = re.sub(r"#[^\n]*", "", files[path])
    files[path] = re.sub(r"\([^()]*\)", lambda call: re.sub(r"\n +", " ", call[0]), files[path])


@edit
def quotes(rng: random.Random, files: Files) -> None:
    path = rng.choice([RUNTIME_CMAKE, BACKENDS_CMAKE, WRAPPERS_CMAKE])
    files[path] = re.sub(
        r"(?<=\s)(\$\{CMAKE_CURRENT_LIST_DIR\}/[\w/]+\.(?:cpp|h))(?=[\s)])", r'"\1"', files[path]
    )


@edit
def capitals(rng: random.Random, files: Files) -> None:
    path = rng.choice(CMAKE_FILES)
    files[path] = re.sub(
        r"^(target_sources|add_library|set|foreach)\(", lambda m: m[0].upper(), files[path], flags=re.M
    )


@edit
def single_quotes(rng: random.Random, files: Files) -> None:
    path = rng.choice(BUCK_FILES)
    files[path] = re.sub(r'"([\w*/:.]+)"', r"'\1'", files[path])


@edit
def a_buck_list_becomes_a_variable(rng: random.Random, files: Files) -> None:
    _swap(files, RUNTIME_BUCK, 'exclude = ["Logging.cpp"]', "exclude = EXCLUDED")
    _swap(
        files,
        RUNTIME_BUCK,
        "def define_common_targets():",
        'EXCLUDED = ["Logging.cpp"]\n\ndef define_common_targets():',
    )


@edit
def a_buck_list_moves_to_another_file(rng: random.Random, files: Files) -> None:
    _swap(files, RUNTIME_BUCK, 'exclude = ["Logging.h"]', "exclude = EXCLUDED_HEADERS")
    files[f"{QUALCOMM}/runtime/lists.bzl"] = 'EXCLUDED_HEADERS = ["Logging.h"]\n'
    label = rng.choice([":lists.bzl", "//executorch/backends/qualcomm/runtime:lists.bzl"])
    files[RUNTIME_BUCK] = f'load("{label}", "EXCLUDED_HEADERS")\n{files[RUNTIME_BUCK]}'


@edit
def a_buck_list_becomes_a_comprehension(rng: random.Random, files: Files) -> None:
    for kind in ("gpu", "htp", "ir", "lpai"):
        _swap(files, RUNTIME_BUCK, f'                    "backends/{kind}/*.h",\n', "")
    kinds = ["gpu", "htp", "ir", "lpai"]
    rng.shuffle(kinds)
    old = '                ],\n                exclude = ["Logging.h"]'
    added = f'["backends/{{}}/*.h".format(kind) for kind in {kinds!r}]'
    new = old.replace("],", f"] + {added},", 1)
    _swap(files, RUNTIME_BUCK, old, new)


@edit
def a_pattern_becomes_its_files(rng: random.Random, files: Files) -> None:
    kind = rng.choice(KINDS)
    folder = f"{BACKENDS}/{kind}/"
    names = [path for path in files if path.startswith(folder) and path.endswith(".cpp")]
    names = [path.removeprefix(f"{QUALCOMM}/runtime/") for path in names if "/" not in path[len(folder) :]]
    lines = "".join(f'                    "{name}",\n' for name in names)
    _swap(files, RUNTIME_BUCK, f'                    "backends/{kind}/*.cpp",\n', lines)


@edit
def a_file_becomes_a_glob(rng: random.Random, files: Files) -> None:
    _swap(
        files, RUNTIME_BUCK, 'srcs = [\n            "Logging.cpp",\n        ]', 'srcs = glob(["Logging.cp*"])'
    )


@edit
def a_cmake_list_becomes_a_variable(rng: random.Random, files: Files) -> None:
    name = rng.choice(["SharedBuffer", "Utils"])
    old = f"${{CMAKE_CURRENT_LIST_DIR}}/{name}.cpp"
    _swap(files, RUNTIME_CMAKE, old, f"${{_{name}_sources}}")
    files[RUNTIME_CMAKE] = f"set(_{name}_sources {old})\n{files[RUNTIME_CMAKE]}"


@edit
def a_cmake_list_is_made_by_a_loop(rng: random.Random, files: Files) -> None:
    names = ["OpWrapper", "QuantizeParamsWrapper"]
    for name in names:
        _swap(files, WRAPPERS_CMAKE, f"${{CMAKE_CURRENT_LIST_DIR}}/{name}.cpp", "")
    rng.shuffle(names)
    files[WRAPPERS_CMAKE] += (
        f"foreach(name IN ITEMS {' '.join(names)})\n  list(APPEND _all ${{name}}.cpp)\nendforeach()\n"
        "target_sources(wrappers PRIVATE ${_all})\n"
    )


@edit
def cmake_sources_go_through_a_function(rng: random.Random, files: Files) -> None:
    kind = rng.choice(["function", "macro"])
    files[RUNTIME_CMAKE] = (
        f"{kind}(qnn_sources name)\n  target_sources(${{name}} PRIVATE ${{ARGN}})\nend{kind}()\n"
        + files[RUNTIME_CMAKE]
    )
    _swap(
        files,
        RUNTIME_CMAKE,
        "target_sources(qnn_backend_options PRIVATE ${_backend_options})",
        "qnn_sources(qnn_backend_options ${_backend_options})",
    )


@edit
def a_cmake_part_moves_to_an_include(rng: random.Random, files: Files) -> None:
    old = "set(_backend_options QnnBackendOptions.cpp QnnBackendOptions.h)\n"
    _swap(files, RUNTIME_CMAKE, old, "include(${CMAKE_CURRENT_LIST_DIR}/options.cmake)\n")
    files[f"{QUALCOMM}/runtime/options.cmake"] = old


@edit
def a_condition_that_always_holds(rng: random.Random, files: Files) -> None:
    path = rng.choice([RUNTIME_CMAKE, BACKENDS_CMAKE, WRAPPERS_CMAKE])
    condition = rng.choice(
        ["TRUE", "NOT FALSE", "1 LESS 2 OR ANDROID", "CMAKE_SYSTEM_NAME", '"a" STREQUAL "a"']
    )
    files[path] = f"if({condition})\n{files[path]}\nelse()\n  nothing_of_the_kind()\nendif()\n"


@edit
def a_generator_expression(rng: random.Random, files: Files) -> None:
    name = rng.choice(["QnnLogger", "QnnProfiler", "QnnBackendFactory"])
    old = f"${{CMAKE_CURRENT_LIST_DIR}}/{name}.cpp"
    form = rng.choice(["$<BUILD_INTERFACE:{}>", "$<$<NOT:$<BOOL:OFF>>:{}>", "$<IF:$<STREQUAL:a,a>,{},b.cpp>"])
    _swap(files, BACKENDS_CMAKE, old, form.format(old))


@edit
def labels_in_short(rng: random.Random, files: Files) -> None:
    _swap(files, RUNTIME_BUCK, '"//executorch/runtime/core:core"', '"//executorch/runtime/core"')


@edit
def own_labels_in_full(rng: random.Random, files: Files) -> None:
    _swap(files, RUNTIME_BUCK, '":logging"', '"//executorch/backends/qualcomm/runtime:logging"')


@edit
def files_that_are_no_code(rng: random.Random, files: Files) -> None:
    folder, suffix = rng.choice(["runtime", "builders", "docs"]), rng.choice(["md", "txt", "sh"])
    files[f"{QUALCOMM}/{folder}/{_name(rng)}.{suffix}"] = "x\n"


@edit
def a_python_module(rng: random.Random, files: Files) -> None:
    files[
        f"{QUALCOMM}/{rng.choice(['builders', 'utils', 'quantizer/annotators'])}/{_name(rng).lower()}.py"
    ] = "# new\n"


@edit
def a_source_that_both_get(rng: random.Random, files: Files) -> None:
    name = _name(rng)
    kind = rng.choice(KINDS)
    for suffix in (".cpp", ".h"):
        if f'"backends/{kind}/*{suffix}"' not in files[RUNTIME_BUCK]:
            raise Inapplicable(kind)
        files[f"{BACKENDS}/{kind}/{name}{suffix}"] = "// new\n"
    files[BACKENDS_CMAKE] += f"target_sources(qnn_graph PRIVATE {kind}/{name}.cpp {kind}/{name}.h)\n"


@edit
def a_version_is_raised_everywhere(rng: random.Random, files: Files) -> None:
    for path in (CONFIG, DOWNLOAD, DOCS):
        files[path] = files[path].replace("2.37.0", "2.39.1")
    files[VERSION_BZL] = files[VERSION_BZL].replace("2.37", "2.39")
    for path in (DOCKER, INSTALL):
        files[path] = files[path].replace("r26c", "r27b")
    files[DOCS] = files[DOCS].replace("26c", rng.choice(["27b", "r27b"]))


@edit
def a_load_that_nothing_uses(rng: random.Random, files: Files) -> None:
    path = rng.choice(BUCK_FILES)
    name = _name(rng).lower()
    files[path] = f'load("@fbsource//tools:{name}.bzl", "{name}")\n{files[path]}# {name}()\n'


@edit
def a_buck_list_comes_from_a_function(rng: random.Random, files: Files) -> None:
    _swap(files, WRAPPERS_BUCK, 'glob([\n            "*.h",\n        ])', 'headers("*.h")')
    files[f"{QUALCOMM}/aot/wrappers/lists.bzl"] = "def headers(pattern):\n    return glob([pattern])\n"
    files[WRAPPERS_BUCK] = f'load(":lists.bzl", "headers")\n{files[WRAPPERS_BUCK]}'


@edit
def an_unknown_that_decides_nothing(rng: random.Random, files: Files) -> None:
    path = rng.choice([RUNTIME_CMAKE, BACKENDS_CMAKE, WRAPPERS_CMAKE])
    name = _name(rng).upper()
    condition = rng.choice(
        [f"FALSE AND {name}", f"{name} AND 0", f"NOT DEFINED QNN_SDK_ROOT AND DEFINED ENV{{{name}}}"]
    )
    files[path] = f"if({condition})\n  nothing_of_the_kind()\nelse()\n{files[path]}\nendif()\n"


@edit
def a_package_that_says_nothing(rng: random.Random, files: Files) -> None:
    folder = rng.choice(["runtime", "aot/wrappers", f"utils/{_name(rng).lower()}"])
    files[f"{QUALCOMM}/{folder}/__init__.py"] = rng.choice(["", "# (c) nobody\n"])


@edit
def tests_that_pytest_finds(rng: random.Random, files: Files) -> None:
    files[f"{QUALCOMM}/tests/{rng.choice(['', 'rework/gpu/'])}test_{_name(rng).lower()}.py"] = "# new\n"


@edit
def something_unused(rng: random.Random, files: Files) -> None:
    name = _name(rng)
    files[rng.choice(BUCK_FILES)] += f"\n\ndef _{name}(a, b = 1):\n    return [a for _ in range(b)]\n"
    files[rng.choice(CMAKE_FILES)] += f"\nset({name} a b c)\nmessage(STATUS ${{{name}}})\n"
