"""Random changes to the miniature tree: drifts, which parity has to find, and edits that change nothing."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

from ci.upkeep.miniature_tree import BACKENDS, KINDS, LIBRARIES, PAL, PLATFORM, QUALCOMM

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


@dataclass(frozen=True)
class Expected:
    """A finding of any of these rules (none: of any rule) whose subject matter contains the text has to be
    there."""

    rules: tuple[str, ...] = ()
    what: str = ""


Drift = Callable[[random.Random, Files], Expected]
Edit = Callable[[random.Random, Files], None]

DRIFTS: dict[str, Drift] = {}
EDITS: dict[str, Edit] = {}


class Inapplicable(Exception):
    """The text that this change is made to has been changed by another already."""


def drift(function: Drift) -> Drift:
    DRIFTS[function.__name__] = function
    return function


def edit(function: Edit) -> Edit:
    EDITS[function.__name__] = function
    return function


def _swap(files: Files, path: str, old: str, new: str) -> None:
    if old not in files[path]:
        raise Inapplicable(old)
    files[path] = files[path].replace(old, new, 1)


def _name(rng: random.Random) -> str:
    return "New" + "".join(rng.choice("abcdefgh") for _ in range(5))


def _kind(rng: random.Random, *, with_sources: bool = False) -> str:
    return rng.choice(["gpu", "htp", "lpai"] if with_sources else list(KINDS))


# What seed 003 tells of


@drift
def a_new_backend_is_missing_from_the_globs(rng: random.Random, files: Files) -> Expected:
    kind = _name(rng).lower()
    for name in (f"{kind}/Backend", f"{kind}/Graph"):
        files[f"{BACKENDS}/{name}.cpp"] = files[f"{BACKENDS}/{name}.h"] = "// new\n"
        files[BACKENDS_CMAKE] += f"target_sources(qnn_graph PRIVATE {name}.cpp {name}.h)\n"
    return Expected(("parity-missing-in-buck",), f"{kind}/Backend.cpp")


@drift
def a_pattern_of_sources_is_dropped(rng: random.Random, files: Files) -> Expected:
    kind = _kind(rng, with_sources=True)
    _swap(files, RUNTIME_BUCK, f'                    "backends/{kind}/*.cpp",\n', "")
    return Expected(("parity-missing-in-buck",), f"{kind}/")


@drift
def the_headers_are_forgotten(rng: random.Random, files: Files) -> Expected:
    kind = _kind(rng)
    _swap(files, RUNTIME_BUCK, f'                    "backends/{kind}/*.h",\n', "")
    return Expected(("parity-missing-in-buck",), f"{kind}/")


@drift
def host_and_target_are_swapped(rng: random.Random, files: Files) -> Expected:
    kind = _kind(rng)
    old = f'["backends/{kind}/host/*.cpp"] if include_aot_qnn_lib else ["backends/{kind}/target/*.cpp"]'
    new = f'["backends/{kind}/target/*.cpp"] if include_aot_qnn_lib else ["backends/{kind}/host/*.cpp"]'
    _swap(files, RUNTIME_BUCK, old, new)
    return Expected(("parity-missing-in-buck",), f"{kind}/")


@drift
def one_half_is_taken_for_both(rng: random.Random, files: Files) -> Expected:
    kind = _kind(rng)
    _swap(files, RUNTIME_BUCK, f'"backends/{kind}/target/*.cpp"', f'"backends/{kind}/host/*.cpp"')
    return Expected(("parity-missing-in-buck",), f"{kind}/target/")


@drift
def an_old_directory_is_named(rng: random.Random, files: Files) -> Expected:
    kind = _kind(rng)
    _swap(files, RUNTIME_BUCK, f'"backends/{kind}/host/*.cpp"', f'"backends/{kind}/x86_64/*.cpp"')
    return Expected(("parity-glob-empty",), "x86_64")


@drift
def a_file_that_does_not_exist_is_excluded(rng: random.Random, files: Files) -> Expected:
    kind, name = _kind(rng), _name(rng)
    _swap(files, RUNTIME_BUCK, '["Logging.cpp"]', f'["Logging.cpp", "backends/{kind}/aarch64/{name}.cpp"]')
    return Expected(("parity-exclude-empty",), name)


@drift
def a_heavy_dependency_comes_in(rng: random.Random, files: Files) -> Expected:
    label = rng.choice(["kernels/quantized:aot_lib", "kernels/quantized:quantized_ops_lib"])
    anchor = '"//executorch/backends/transforms:decompose_sdpa",\n'
    _swap(files, QUANTIZER_BUCK, anchor, f'{anchor}            "//executorch/{label}",\n')
    return Expected(("parity-heavy-dependency",), label)


# Files


@drift
def a_source_is_only_on_disk_and_in_the_globs(rng: random.Random, files: Files) -> Expected:
    folder = rng.choice(["", "backends/", *(f"backends/{kind}/" for kind in ("gpu", "htp", "lpai"))])
    path = f"{QUALCOMM}/runtime/{folder}{_name(rng)}.cpp"
    files[path] = "// new\n"
    return Expected(("parity-missing-in-cmake",), path)


@drift
def a_half_gets_a_file_that_cmake_lacks(rng: random.Random, files: Files) -> Expected:
    path = f"{BACKENDS}/{_kind(rng)}/{rng.choice(['host', 'target'])}/{_name(rng)}.cpp"
    files[path] = "// new\n"
    return Expected(("parity-missing-in-cmake",), path)


@drift
def cmake_drops_a_file(rng: random.Random, files: Files) -> Expected:
    path = rng.choice([BACKENDS_CMAKE, RUNTIME_CMAKE, WRAPPERS_CMAKE])
    names = re.findall(r"\$\{CMAKE_CURRENT_LIST_DIR\}/([\w/]+\.cpp)", files[path])
    if not names:
        raise Inapplicable(path)
    name = rng.choice(sorted(names))
    _swap(files, path, f"${{CMAKE_CURRENT_LIST_DIR}}/{name}", "")
    if name in files[path]:
        raise Inapplicable(name)
    return Expected(("parity-missing-in-cmake", "parity-unknown-file"), name)


@drift
def cmake_always_takes_the_target_half(rng: random.Random, files: Files) -> Expected:
    _swap(files, BACKENDS_CMAKE, 'set(_platform "host")', 'set(_platform "target")')
    return Expected(("parity-missing-in-cmake",), "/host/")


@drift
def cmake_takes_a_file_for_one_platform_only(rng: random.Random, files: Files) -> Expected:
    name = rng.choice(["Utils", "SharedBuffer"])
    old = f"${{CMAKE_CURRENT_LIST_DIR}}/{name}.cpp"
    _swap(files, RUNTIME_CMAKE, old, f"$<$<PLATFORM_ID:Android>:{old}>")
    return Expected(("parity-missing-in-cmake",), f"{name}.cpp")


@drift
def a_subdirectory_is_not_added(rng: random.Random, files: Files) -> Expected:
    old = "add_subdirectory(\n  ${QNN_EXECUTORCH_ROOT_DIR}/aot/wrappers\n"
    _swap(files, TOP_CMAKE, old, "set(_unused\n  ${QNN_EXECUTORCH_ROOT_DIR}/aot/wrappers\n")
    return Expected(("parity-missing-in-cmake",), "wrappers/")


@drift
def cmake_misspells_a_file(rng: random.Random, files: Files) -> Expected:
    name = rng.choice(sorted(LIBRARIES.values()))[0]
    _swap(files, BACKENDS_CMAKE, f"/{name}.cpp", f"/{name}s.cpp")
    return Expected(("parity-missing-file",), f"{name}s.cpp")


@drift
def buck_misspells_a_file(rng: random.Random, files: Files) -> Expected:
    suffix = rng.choice([".cpp", ".h"])
    _swap(files, PYTHON_BUCK, f'"PyQnnManagerAdaptor{suffix}"', f'"PyQnnManagerAdapter{suffix}"')
    return Expected(("parity-missing-file",), f"PyQnnManagerAdapter{suffix}")


@drift
def a_file_is_deleted(rng: random.Random, files: Files) -> Expected:
    path = f"{BACKENDS}/{rng.choice(sorted(LIBRARIES.values()))[0]}{rng.choice(['.cpp', '.h'])}"
    del files[path]
    return Expected(("parity-missing-file",), path)


@drift
def a_file_is_renamed_on_disk(rng: random.Random, files: Files) -> Expected:
    old = f"{BACKENDS}/{rng.choice(sorted(LIBRARIES.values()))[0]}.cpp"
    files[old.replace(".cpp", "Impl.cpp")] = files.pop(old)
    return Expected(("parity-missing-in-cmake",), "Impl.cpp")


@drift
def no_build_knows_a_file(rng: random.Random, files: Files) -> Expected:
    folder = rng.choice(["runtime/backends/direct_mode", "runtime/backends/direct_mode/host", "extra"])
    path = f"{QUALCOMM}/{folder}/{_name(rng)}{rng.choice(['.cpp', '.h', '.c'])}"
    files[path] = "// new\n"
    return Expected(("parity-unknown-file",), path)


@drift
def no_build_knows_a_python_package(rng: random.Random, files: Files) -> Expected:
    folder = f"{QUALCOMM}/{rng.choice(['builders', 'partition', 'utils', '_passes'])}/{_name(rng).lower()}"
    for name in ("a", "b", "deep/c"):
        files[f"{folder}/{name}.py"] = "# new\n"
    return Expected(("parity-unknown-file",), f"{folder}/**/*.py")


@drift
def a_header_goes_by_another_name(rng: random.Random, files: Files) -> Expected:
    name = rng.choice(PLATFORM)
    _swap(files, RUNTIME_BUCK, f'"{name}.h": ', f'"{name}{rng.choice(["s.h", ".hpp"])}": ')
    return Expected(("parity-header-renamed",), f"pal/include/pal/{name}.h")


@drift
def a_module_is_forgotten_in_a_list(rng: random.Random, files: Files) -> Expected:
    path = f"{QUALCOMM}/recipes/{_name(rng).lower()}.py"
    files[path] = "# new\n"
    return Expected(("parity-unknown-file",), path)


@drift
def a_package_that_says_something_is_forgotten(rng: random.Random, files: Files) -> Expected:
    path = f"{QUALCOMM}/aot/__init__.py"
    files[path] += "from . import python\n"
    return Expected(("parity-unknown-file",), f"{QUALCOMM}/aot/*.py")


@drift
def another_platforms_file_is_forgotten(rng: random.Random, files: Files) -> Expected:
    path = f"{PAL}/src/windows/{_name(rng)}.cpp"
    files[path] = "// new\n"
    return Expected(("parity-unknown-file",), path)


@drift
def the_platform_layer_grows_in_buck_alone(rng: random.Random, files: Files) -> Expected:
    path = f"{PAL}/src/linux/{_name(rng)}.cpp"
    files[path] = "// new\n"
    return Expected(("parity-missing-in-cmake",), path)


@drift
def a_mapped_header_is_dropped(rng: random.Random, files: Files) -> Expected:
    name = rng.choice(PLATFORM)
    _swap(files, RUNTIME_BUCK, f'            "{name}.h": "pal/include/pal/{name}.h",\n', "")
    return Expected(("parity-missing-in-buck",), f"pal/include/pal/{name}.h")


@drift
def buck_excludes_a_file(rng: random.Random, files: Files) -> Expected:
    name = rng.choice(["Utils", "QnnManager", "backends/QnnLogger", "backends/htp/HtpGraph"])
    suffix = rng.choice([".cpp", ".h"])
    _swap(files, RUNTIME_BUCK, f'["Logging{suffix}"]', f'["Logging{suffix}", "{name}{suffix}"]')
    return Expected(("parity-missing-in-buck",), f"{name}{suffix}")


@drift
def a_directory_becomes_a_package(rng: random.Random, files: Files) -> Expected:
    kind = _kind(rng, with_sources=True)
    files[f"{BACKENDS}/{kind}/{rng.choice(['BUCK', 'TARGETS'])}"] = 'oncall("executorch")\n'
    return Expected(("parity-missing-in-buck",), f"{kind}/")


@drift
def a_pattern_matches_nothing(rng: random.Random, files: Files) -> Expected:
    name = _name(rng).lower()
    suffix = rng.choice(["cpp", "h"])
    anchor = f'                    "backends/*.{suffix}",\n'
    _swap(files, RUNTIME_BUCK, anchor, f'{anchor}                    "backends/{name}/*.{suffix}",\n')
    return Expected(("parity-glob-empty",), name)


@drift
def a_cmake_glob_matches_nothing(rng: random.Random, files: Files) -> Expected:
    name = _name(rng)
    files[WRAPPERS_CMAKE] += f"file(GLOB _more ${{CMAKE_CURRENT_LIST_DIR}}/{name}*.cpp)\n"
    files[WRAPPERS_CMAKE] += "target_sources(wrappers PRIVATE ${_more})\n"
    return Expected(("parity-glob-empty",), name)


@drift
def a_select_gives_android_one_file_more(rng: random.Random, files: Files) -> Expected:
    path = f"{BACKENDS}/direct_mode/{_name(rng)}.cpp"
    files[path] = "// new\n"
    extra = path.removeprefix(f"{QUALCOMM}/runtime/")
    old = 'exclude = ["Logging.cpp"],\n            ),'
    new = f'{old[:-1]} + select({{"ovr_config//os:android": ["{extra}"], "DEFAULT": []}}),'
    _swap(files, RUNTIME_BUCK, old, new)
    return Expected(("parity-missing-in-cmake",), path)


@drift
def any_file_or_pattern_of_buck_is_spoilt(rng: random.Random, files: Files) -> Expected:
    path = rng.choice([RUNTIME_BUCK, WRAPPERS_BUCK])
    found = list(re.finditer(r"""["'][\w/*]+(\.(?:cpp|h))["']""", files[path]))
    if not found:
        raise Inapplicable(path)
    one = rng.choice(found)
    files[path] = f"{files[path][: one.start(1)]}{_name(rng)}{files[path][one.start(1) :]}"
    return Expected()


@drift
def any_label_of_buck_is_spoilt(rng: random.Random, files: Files) -> Expected:
    path = rng.choice([RUNTIME_BUCK, WRAPPERS_BUCK])
    one = rng.choice(list(re.finditer(r"""["'](?://executorch[\w/]+)?:\w+()["'],""", files[path])))
    files[path] = f"{files[path][: one.start(1)]}{_name(rng)}{files[path][one.start(1) :]}"
    return Expected(("parity-dependency-unmapped", "parity-not-evaluated"))


@drift
def any_file_of_cmake_is_spoilt(rng: random.Random, files: Files) -> Expected:
    path = rng.choice([RUNTIME_CMAKE, BACKENDS_CMAKE, WRAPPERS_CMAKE])
    found = list(re.finditer(r"""^[^#\n]*?\w(\.(?:cpp|h))\b""", files[path], re.MULTILINE))
    if not found:
        raise Inapplicable(path)
    one = rng.choice(found)
    files[path] = f"{files[path][: one.start(1)]}{_name(rng)}{files[path][one.start(1) :]}"
    return Expected()


# Compiled twice


@drift
def a_source_is_in_two_cmake_libraries(rng: random.Random, files: Files) -> Expected:
    name = rng.choice(sorted(LIBRARIES.values()))[0]
    files[BACKENDS_CMAKE] += f"target_sources(qnn_device PRIVATE {name}.cpp)\n"
    return Expected(("parity-compiled-twice",), f"{name}.cpp")


@drift
def an_exclude_is_dropped(rng: random.Random, files: Files) -> Expected:
    _swap(files, RUNTIME_BUCK, 'exclude = ["Logging.cpp"],', "")
    return Expected(("parity-compiled-twice",), "Logging.cpp")


@drift
def buck_names_a_source_twice(rng: random.Random, files: Files) -> Expected:
    _swap(files, PYTHON_BUCK, '"PyQnnManagerAdaptor.cpp",\n', '"PyQnnManagerAdaptor.cpp",\n' * 2)
    return Expected(("parity-listed-twice",), "PyQnnManagerAdaptor.cpp")


@drift
def a_source_reaches_those_who_link_it(rng: random.Random, files: Files) -> Expected:
    name = rng.choice(["OpWrapper", "QuantizeParamsWrapper"])
    _swap(files, WRAPPERS_CMAKE, f"${{CMAKE_CURRENT_LIST_DIR}}/{name}.cpp", "")
    files[WRAPPERS_CMAKE] += f"target_sources(wrappers PUBLIC ${{CMAKE_CURRENT_LIST_DIR}}/{name}.cpp)\n"
    return Expected(("parity-compiled-twice",), f"{name}.cpp")


# Dependencies


@drift
def cmake_drops_a_link(rng: random.Random, files: Files) -> Expected:
    old, new = rng.choice(
        [
            ("target_link_libraries(qnn_executorch_logging PRIVATE qnn_schema)", ""),
            ("target_link_libraries(wrappers PRIVATE qnn_executorch_logging)", ""),
            ("executorch_core\n", "\n"),
        ]
    )
    _swap(files, TOP_CMAKE, old, new)
    return Expected(("parity-dependency-missing-in-cmake",))


@drift
def buck_drops_a_dependency(rng: random.Random, files: Files) -> Expected:
    path, text = rng.choice(
        [
            (RUNTIME_BUCK, '                "//executorch/runtime/core:core",'),
            (RUNTIME_BUCK, '"//executorch/extension/tensor:tensor",'),
            (RUNTIME_BUCK, '"//executorch/backends/qualcomm/aot/wrappers:wrappers",'),
            (PYTHON_BUCK, '"//executorch/backends/qualcomm/runtime:runtime",'),
            (PYTHON_BUCK, 'qnn_third_party_dep("pybind11"),'),
        ]
    )
    _swap(files, path, text, "")
    return Expected(("parity-dependency-missing-in-buck",))


@drift
def buck_gains_a_dependency(rng: random.Random, files: Files) -> Expected:
    label = rng.choice(["//executorch/extension/tensor:tensor", "//executorch/backends/qualcomm:schema"])
    anchor = '"//executorch/runtime/backend:interface",\n'
    _swap(files, WRAPPERS_BUCK, anchor, f'{anchor}            "{label}",\n')
    return Expected(("parity-dependency-missing-in-cmake",))


@drift
def buck_gains_an_unknown_dependency(rng: random.Random, files: Files) -> Expected:
    name = _name(rng).lower()
    anchor = '"//executorch/runtime/backend:interface",\n'
    _swap(files, WRAPPERS_BUCK, anchor, f'{anchor}            "//executorch/extension/{name}:{name}",\n')
    return Expected(("parity-dependency-unmapped",), name)


@drift
def cmake_gains_a_link(rng: random.Random, files: Files) -> Expected:
    library = rng.choice(["extension_tensor", "wrappers", "qnn_logger"])
    files[TOP_CMAKE] += f"target_link_libraries(qnn_executorch_logging PRIVATE {library})\n"
    return Expected(("parity-dependency-missing-in-buck",))


@drift
def cmake_gains_an_unknown_link(rng: random.Random, files: Files) -> Expected:
    name = _name(rng).lower()
    files[TOP_CMAKE] += f"target_link_libraries(wrappers PUBLIC {name})\n"
    return Expected(("parity-dependency-unmapped",), name)


# Targets


@drift
def cmake_gains_a_library(rng: random.Random, files: Files) -> Expected:
    name = _name(rng)
    files[f"{QUALCOMM}/extra/{name}.cpp"] = "// new\n"
    files[TOP_CMAKE] += f"add_library(qnn_{name} STATIC extra/{name}.cpp)\n"
    return Expected(("parity-missing-in-buck",), name)


@drift
def buck_gains_a_library(rng: random.Random, files: Files) -> Expected:
    name = _name(rng)
    files[f"{QUALCOMM}/aot/wrappers/more/{name}.cpp"] = "// new\n"
    files[WRAPPERS_BUCK] += f'    runtime.cxx_library(name = "{name}", srcs = ["more/{name}.cpp"])\n'
    return Expected(("parity-unmapped-target",), name)


@drift
def a_target_is_renamed(rng: random.Random, files: Files) -> Expected:
    path, old, new = rng.choice(
        [
            (WRAPPERS_BUCK, 'name = "wrappers"', 'name = "wrapper"'),
            (RUNTIME_BUCK, '"_android_build"', '"_android"'),
            (
                TOP_CMAKE,
                "qnn_sys_implementation shared_buffer utils wrappers\n",
                "wrappers shared_buffer utils\n",
            ),
        ]
    )
    _swap(files, path, old, new)
    return Expected(("parity-target-missing", "parity-not-evaluated"))


# Pins


@drift
def a_pin_drifts(rng: random.Random, files: Files) -> Expected:
    path, old, new = rng.choice(
        [
            (CONFIG, "2.37.0.250724", "2.38.0.250801"),
            (DOCS, "QNN 2.37.0", "QNN 2.28.0"),
            (DOCS, "NDK 26c", "NDK 27b"),
            (DOCKER, "ANDROID_NDK_VERSION=r26c", "ANDROID_NDK_VERSION=r27c"),
            (DOWNLOAD, "2.37.0.250724", "2.37.0.250801"),
            (INSTALL, "r26c", "r25c"),
        ]
    )
    _swap(files, path, old, new)
    return Expected(("parity-pin-drift",))


@drift
def a_pin_is_no_longer_said(rng: random.Random, files: Files) -> Expected:
    path, old = rng.choice(
        [
            (CONFIG, "QNN_VERSION"),
            (DOCS, "[QNN 2.37.0]"),
            (DOCS, "verified with NDK 26c"),
            (DOWNLOAD, "QNN_VERSION"),
            (INSTALL, "NDK_VERSION"),
        ]
    )
    _swap(files, path, old, "nothing")
    return Expected(("parity-pin-missing",))


# What cannot be evaluated


@drift
def cmake_calls_an_unknown_command(rng: random.Random, files: Files) -> Expected:
    name = _name(rng).lower()
    files[rng.choice(CMAKE_FILES)] += f"{name}(wrappers)\n"
    return Expected(("parity-not-evaluated",), name)


@drift
def cmake_asks_for_what_only_a_configure_step_knows(rng: random.Random, files: Files) -> Expected:
    name = _name(rng)
    files[f"{QUALCOMM}/aot/wrappers/{name}.cpp"] = "// new\n"
    question = rng.choice(
        [
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
        ]
    )
    files[WRAPPERS_CMAKE] += f"{question}\n  target_sources(wrappers PRIVATE {name}.cpp)\nendif()\n"
    return Expected(("parity-not-evaluated",), "if(")


@drift
def cmake_takes_sources_from_outside(rng: random.Random, files: Files) -> Expected:
    name = _name(rng).upper()
    files[WRAPPERS_CMAKE] += f"target_sources(wrappers PRIVATE ${{{name}_SOURCES}})\n"
    return Expected(("parity-not-evaluated",), name)


@drift
def cmake_has_a_syntax_error(rng: random.Random, files: Files) -> Expected:
    path = rng.choice(CMAKE_FILES)
    files[path] += rng.choice(["if(TRUE)\n", "endif()\n", "set(x\n", ")\n", 'set(x "y)\n'])
    return Expected(("parity-not-evaluated",), path)


@drift
def buck_calls_an_unknown_function(rng: random.Random, files: Files) -> Expected:
    path = rng.choice(BUCK_FILES)
    name = _name(rng).lower()
    files[path] += rng.choice(
        [f"    {name}()\n", f"    runtime.{name}(name = 'x')\n", f"    native.{name}()\n"]
    )
    return Expected(("parity-not-evaluated",), path.rpartition("/")[0])


@drift
def buck_loads_what_is_not_there(rng: random.Random, files: Files) -> Expected:
    path = rng.choice(BUCK_FILES)
    label = rng.choice([":more.bzl", "@fbsource//tools:more.bzl", "//executorch/build:more.bzl"])
    files[path] = f'load("{label}", "more")\n{files[path]}\n{rng.choice(["more()", "MORE = more"])}\n'
    return Expected(("parity-not-evaluated",), path.rpartition("/")[0])


@drift
def buck_has_a_syntax_error(rng: random.Random, files: Files) -> Expected:
    path = rng.choice(BUCK_FILES)
    files[path] += rng.choice(["    x = [\n", "    for:\n", "    if True\n"])
    return Expected(("parity-not-evaluated",), path.rpartition("/")[0])


@drift
def a_dsp_is_chosen_by_what_nothing_sets(rng: random.Random, files: Files) -> Expected:
    name = _name(rng).upper()
    _swap(files, TOP_CMAKE, 'if(DSP_TYPE STREQUAL "3")', f'if({name} STREQUAL "3")')
    return Expected(("parity-not-evaluated",), name)


@drift
def a_select_asks_for_an_unknown_platform(rng: random.Random, files: Files) -> Expected:
    old = '"ovr_config//os:android": [":logging"]'
    _swap(files, RUNTIME_BUCK, old, f'"ovr_config//cpu:{_name(rng).lower()}": [":logging"]')
    return Expected(("parity-not-evaluated",), "runtime")


@drift
def an_attribute_is_not_understood(rng: random.Random, files: Files) -> Expected:
    attribute = rng.choice(["platform_srcs", "fbandroid_headers", "platform_deps"])
    _swap(files, WRAPPERS_BUCK, 'name = "wrappers",', f'name = "wrappers",\n        {attribute} = ["x"],')
    return Expected(("parity-not-evaluated",), attribute)


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
    kind = _kind(rng, with_sources=True)
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
    kind = _kind(rng, with_sources=True)
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
