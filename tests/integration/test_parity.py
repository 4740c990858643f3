"""Buck parity on a miniature ExecuTorch tree: what is found and what stays silent."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from ci.__main__ import VERBS
from ci.parity.mapping import MAPPING, Deliberate, Difference, Mapping, load_accepted, load_mapping
from provisioning.base.command_line import main
from provisioning.base.errors import ManifestError
from provisioning.base.findings import Report
from tests.support import miniature_tree
from tests.support.miniature_tree import ANDROID, BACKENDS, EXAMPLES, JAVA, LLAMA, PAL, QUALCOMM, WHISPER
from tests.support.parity_cases import checked, mapping

RUNTIME_BUCK = f"{QUALCOMM}/runtime/targets.bzl"
WRAPPERS_BUCK = f"{QUALCOMM}/aot/wrappers/targets.bzl"
PYTHON_BUCK = f"{QUALCOMM}/aot/python/targets.bzl"
TOP_CMAKE = f"{QUALCOMM}/CMakeLists.txt"
RUNTIME_CMAKE = f"{QUALCOMM}/runtime/CMakeLists.txt"
BACKENDS_CMAKE = f"{BACKENDS}/CMakeLists.txt"
WRAPPERS_CMAKE = f"{QUALCOMM}/aot/wrappers/CMakeLists.txt"
SCHEMA_CMAKE = f"{QUALCOMM}/cmake/Schema.cmake"

FORGOTTEN = {
    '                    "backends/lpai/*.cpp",\n': "",
    '                    "backends/lpai/*.h",\n': "",
    ') + (\n                    ["backends/lpai/host/*.cpp"] if include_aot_qnn_lib'
    ' else ["backends/lpai/target/*.cpp"]\n': "\n",
    'exclude = ["Logging.cpp"],': 'exclude = ["Logging.cpp", "backends/lpai/aarch64/LpaiGraph.cpp"],',
}
"""What was forgotten and slipped in when the LPAI backend came, according to seed 003."""


Edits = dict[str, dict[str, str]]
"""By file: what is replaced, and by what. {0} is the old text; without one the new is appended."""


def edited(edits: Edits) -> dict[str, str]:
    files = miniature_tree.files()
    for path, changes in edits.items():
        for old, new in changes.items():
            text, new = files.get(path, ""), new.replace("{0}", old)
            assert old in text, old
            files[path] = text.replace(old, new, 1) if old else text + new
    return files


def differences(files: dict[str, str], rule: str) -> list[Difference]:
    return [finding for finding in checked(files).differences if finding.rule == rule]


def stale(files: dict[str, str], *, by: Mapping | None = None) -> list[Difference]:
    return [note for note in checked(files, by=by).notes if note.rule == "parity-stale-entry"]


def test_the_miniature_tree_is_clean() -> None:
    found = checked(miniature_tree.files())
    assert (found.differences, found.notes) == ((), ())


def test_the_new_backend_of_seed_003_is_missing_file_by_file_for_its_platforms() -> None:
    missing = differences(edited({RUNTIME_BUCK: FORGOTTEN}), "parity-missing-in-buck")
    lpai = {path for path in miniature_tree.files() if f"{BACKENDS}/lpai/" in path}
    assert {finding.what for finding in missing} == lpai
    [absent] = [finding for finding in missing if finding.what.endswith("lpai/target/LpaiDevice.cpp")]
    line = miniature_tree.files()[f"{BACKENDS}/CMakeLists.txt"].split("\n")[absent.place.line - 1]
    assert "LpaiDevice.cpp" in line
    assert absent.variants == ["android", "hexagon"]


def test_a_deliberate_difference_that_is_gone_is_a_note_on_its_line() -> None:
    entry = Deliberate(rule="parity-missing-in-buck", what="a.cpp", reason="because it was once so")
    by = mapping().model_copy(update={"deliberate": (*mapping().deliberate, entry)})
    [note] = stale(miniature_tree.files(), by=by)
    assert note.place.file == "manifests/parity.toml"
    assert checked(miniature_tree.files(), by=by).differences == ()


def test_what_two_programs_compile_is_a_note_at_the_second_until_it_is_accepted() -> None:
    [note] = [drift for drift in _drifted(alone=True)[1] if drift.rule == "parity-compiled-twice"]
    assert (note.note, note.what) == (True, f"{WHISPER}/runner/runner.cpp")
    assert note.place.file == f"{WHISPER}/CMakeLists.txt"


@pytest.mark.whole
def test_a_target_that_is_renamed_is_missing_by_its_old_name_before_all_that_follows() -> None:
    first, *_ = checked(edited({RUNTIME_BUCK: {'"_android_build"': '"_android"'}})).differences
    old = "//backends/qualcomm/runtime:runtime_android_build"
    assert (first.rule, first.what) == ("parity-target-missing", old)


def test_a_target_that_is_gone_is_one_finding_without_what_follows() -> None:
    files = miniature_tree.files()
    del files[WRAPPERS_BUCK], files[f"{QUALCOMM}/aot/wrappers/BUCK"]
    found = checked(files).differences
    assert {finding.rule for finding in found} == {"parity-target-missing"}, found
    lines = MAPPING.read_text(encoding="utf-8").splitlines()
    assert {lines[finding.place.line - 1] for finding in found} == {"[[pairs]]"}
    assert all(lines[finding.place.line] == f'name = "{finding.where}"' for finding in found)


def test_a_tree_from_before_direct_mode_is_not_compared_for_it() -> None:
    direct_mode = f"{BACKENDS}/direct_mode/"
    files = {
        path: text.replace("Hexagon", "Other") if path.endswith("CMakeLists.txt") else text
        for path, text in miniature_tree.files().items()
        if not path.startswith(direct_mode)
    }
    found = checked(files)
    assert "hexagon" not in found.cmake
    assert found.differences == ()


def test_a_runner_that_a_tree_builds_by_cmake_alone_is_a_note() -> None:
    files = miniature_tree.files()
    for name in ("BUCK", "targets.bzl"):
        del files[f"{WHISPER}/{name}"]
    found = checked(files)
    assert found.differences == ()
    assert [(note.rule, note.where) for note in found.notes] == [("parity-target-missing", "whisper-runner")]


ARCHIVE_CMAKE = f"{ANDROID}/CMakeLists.txt"
WINDOWS = f"{QUALCOMM}/runtime/pal/src/windows"


NAMESPACE = '        header_namespace = "pal",\n'
HERE = "${CMAKE_CURRENT_LIST_DIR}"
UNSHARED = "$<$<NOT:$<BOOL:${EXECUTORCH_BUILD_SHARED}>>"
DEPS = "\n        deps = [\n            qnn_third_party_dep"
HEADERS = "            ),\n            exported_headers = glob(\n                [\n"
HEAVY = "//executorch/kernels/quantized:aot_lib"
OF_CMAKE = """\
target_link_libraries(wrappers PRIVATE extension_tensor)
target_link_libraries(wrappers PRIVATE zlib)
target_compile_definitions(wrappers PRIVATE NEW=1)
target_compile_definitions(wrappers PRIVATE ET_EVENT_TRACER_ENABLED)
target_compile_options(wrappers PRIVATE -fno-exceptions)
target_compile_options(wrappers PRIVATE -DOPTION=1)
target_compile_definitions(qnn_schema INTERFACE HANDED=1)
"""

GENERATED = f"{QUALCOMM}/qc_compiler_spec_generated.h"

EDITS: Edits = {
    TOP_CMAKE: {
        "target_link_libraries(qnn_executorch_logging PRIVATE qnn_schema)\n": f"{{0}}{OF_CMAKE}",
        "target_link_libraries(wrappers PRIVATE qnn_executorch_logging)\n": "",
        "set(CMAKE_CXX_STANDARD_REQUIRED ON)\n": '{0}string(APPEND CMAKE_CXX_FLAGS " -march=x -DFLAG=1")\n',
        "add_library(qnn_executorch_backend SHARED)\n": "{0}add_library(plugin MODULE new.cpp)\n",
    },
    BACKENDS_CMAKE: {
        "": "target_sources(qnn_graph PRIVATE new/New.cpp)\n"
        "target_sources(qnn_device PRIVATE QnnProfiler.cpp)\n"
        "target_sources(qnn_graph PRIVATE Gone.cpp)\n",
    },
    RUNTIME_CMAKE: {
        f"PRIVATE {HERE}/Utils.cpp": f"PRIVATE $<$<PLATFORM_ID:Android>:{HERE}/Utils.cpp>",
        f"PRIVATE {HERE}/Logging.cpp": f"PRIVATE {UNSHARED}:{HERE}/Logging.cpp>",
    },
    WRAPPERS_CMAKE: {f"PRIVATE {HERE}/OpWrapper.cpp": f"PUBLIC {HERE}/OpWrapper.cpp PRIVATE"},
    SCHEMA_CMAKE: {"--scoped-enums": "--scoped-enums --gen-object-api"},
    f"{LLAMA}/CMakeLists.txt": {f"    {HERE}/runner/kv_manager.cpp\n": ""},
    f"{WHISPER}/CMakeLists.txt": {"    ${EXECUTORCH_ROOT}/extension/llm/sampler/sampler.cpp\n": ""},
    f"{QUALCOMM}/aot/python/new.cpp": {"": "// new\n"},
    f"{QUALCOMM}/partition/targets.bzl": {'"//executorch/backends/qualcomm/builders:builders"': ""},
    f"{QUALCOMM}/targets.bzl": {
        '            SCHEMA_NAME + "_generated.h": ': '            SCHEMA_NAME + "_schema.h": '
    },
    f"{QUALCOMM}/runtime/Logging.h": {"": f"#include <executorch/{GENERATED}>\n"},
    f"{EXAMPLES}/CMakeLists.txt": {"": "add_custom_command(OUTPUT x.cpp COMMAND gen DEPENDS gone.yaml)\n"},
    RUNTIME_BUCK: {
        'exclude = ["Logging.cpp"]': 'exclude = ["Logging.cpp", "backends/lpai/x/y.cpp"]',
        NAMESPACE: f'{{0}}        exported_preprocessor_flags = ["-I{PAL}/include"],\n',
        "            link_whole = True,\n": "",
        '":logging",': '":loging",',
        HEADERS: HEADERS.replace(
            "),", ') + select({"ovr_config//os:android": ["new/Other.cpp"], "DEFAULT": []}),', 1
        ),
        '"backends/ir/host/*.cpp"': '"backends/ir/x86_64/*.cpp"',
        '"Path.h": ': '"Path.hpp": ',
    },
    WRAPPERS_BUCK: {
        'qnn_third_party_dep("api"),': '{0}\n            "//zlib:zlib",',
        "        platforms": f"{NAMESPACE}{{0}}",
        DEPS: f'\n        compiler_flags = ["-DBUCK=1", "-fno-rtti", "-std=c++23"],{DEPS}',
        "platforms = [ANDROID, CXX]": "platforms = [ANDROID]",
    },
    PYTHON_BUCK: {
        '"//executorch/runtime/core:core"': '"//executorch/runtime/core:cor"',
        '            "PyQnnManagerAdaptor.cpp",\n': "{0}{0}",
    },
    f"{QUALCOMM}/third-party/BUCK": {"-I$(location :qnn_files)": "-I$(location :qnn_file)"},
    f"{QUALCOMM}/tests/BUCK": {'deps = [":models"],': f'deps = [] if runtime.is_oss else ["{HEAVY}"],'},
    "shim_et/xplat/executorch/build/build_variables.bzl": {'"options.cpp"': '"option.cpp"'},
    f"{EXAMPLES}/direct_executor_runner/new.cpp": {"": "// new\n"},
    ARCHIVE_CMAKE: {
        "        ${EXECUTORCH_ROOT}/examples/qualcomm/oss_scripts/llama/runner/decoder_runner.cpp\n": "",
        "jni/jni_layer_llama.cpp": "{0} jni/new.cpp",
    },
    f"{ANDROID}/BUCK": {"llm/LlmModule.kt": "llm/Llm.kt"},
    f"{JAVA}/New.kt": {"": "// new\n"},
    f"{WINDOWS}/New.cpp": {"": "// new\n"},
    f"{QUALCOMM}/aot/__init__.py": {"": "from . import python\n"},
}
DRIFTS = [
    # The rule, the finding's file, and text of its line or of what it is about.
    ("parity-missing-in-buck", BACKENDS_CMAKE, "new/New.cpp"),
    ("parity-missing-in-buck", ARCHIVE_CMAKE, "jni/new.cpp"),
    ("parity-missing-in-cmake", f"{LLAMA}/targets.bzl", "runner/kv_manager.cpp"),
    ("parity-missing-in-cmake", f"{LLAMA}/targets.bzl", "runner/decoder_runner.cpp"),
    ("parity-missing-in-cmake", RUNTIME_BUCK, '"*.cpp"'),
    ("parity-missing-in-cmake", RUNTIME_BUCK, '"Logging.cpp"'),
    ("parity-missing-in-cmake", RUNTIME_BUCK, "new/Other.cpp"),
    ("parity-missing-in-cmake", f"{WHISPER}/CMakeLists.txt", "extension/llm/sampler/sampler.cpp"),
    ("parity-missing-in-cmake", PYTHON_BUCK, '"*.cpp"'),
    ("parity-header-missing", f"{QUALCOMM}/targets.bzl", GENERATED),
    ("parity-import-missing", f"{QUALCOMM}/partition/targets.bzl", f"//{QUALCOMM}/builders:builders"),
    ("parity-unknown-file", f"{EXAMPLES}/direct_executor_runner/new.cpp", "new"),
    ("parity-unknown-file", f"{QUALCOMM}/aot/__init__.py", ""),
    ("parity-unknown-file", f"{JAVA}/New.kt", "new"),
    ("parity-unknown-file", f"{WINDOWS}/New.cpp", "new"),
    ("parity-compiled-twice", BACKENDS_CMAKE, "QnnProfiler.cpp"),
    ("parity-compiled-twice", WRAPPERS_CMAKE, "OpWrapper.cpp"),
    ("parity-listed-twice", PYTHON_BUCK, '"PyQnnManagerAdaptor.cpp"'),
    ("parity-missing-file", BACKENDS_CMAKE, "Gone.cpp"),
    ("parity-missing-file", f"{EXAMPLES}/executor_runner/CMakeLists.txt", "add_executable"),
    ("parity-missing-file", f"{EXAMPLES}/CMakeLists.txt", "gone.yaml"),
    ("parity-missing-file", f"{ANDROID}/BUCK", "llm/Llm.kt"),
    ("parity-exclude-empty", RUNTIME_BUCK, "backends/lpai/x/y.cpp"),
    ("parity-glob-empty", RUNTIME_BUCK, '"backends/ir/x86_64/*.cpp"'),
    ("parity-header-renamed", RUNTIME_BUCK, '"Path.hpp"'),
    ("parity-header-renamed", WRAPPERS_BUCK, 'header_namespace = "pal"'),
    ("parity-unmapped-target", TOP_CMAKE, "add_library(plugin"),
    ("parity-dependency-missing-in-buck", TOP_CMAKE, "wrappers PRIVATE extension_tensor"),
    ("parity-dependency-missing-in-cmake", WRAPPERS_BUCK, "qualcomm/runtime:logging"),
    ("parity-dependency-unmapped", TOP_CMAKE, "zlib"),
    ("parity-dependency-unmapped", WRAPPERS_BUCK, "//zlib:zlib"),
    ("parity-dependency-unmapped", PYTHON_BUCK, '"//executorch/runtime/core:cor"'),
    ("parity-include-flag", RUNTIME_BUCK, f"-I{PAL}/include"),
    ("parity-definition-differs", WRAPPERS_BUCK, "-DBUCK=1"),
    ("parity-definition-differs", TOP_CMAKE, "NEW=1"),
    # The mapping says why others are compiled with it.
    ("parity-definition-differs", TOP_CMAKE, "ET_EVENT_TRACER_ENABLED"),
    ("parity-definition-differs", TOP_CMAKE, "-DOPTION=1"),
    ("parity-definition-differs", TOP_CMAKE, "HANDED=1"),
    ("parity-option-differs", WRAPPERS_BUCK, "-fno-rtti"),
    ("parity-option-differs", TOP_CMAKE, "-fno-exceptions"),
    ("parity-option-differs", TOP_CMAKE, "-march=x"),
    ("parity-standard-differs", WRAPPERS_BUCK, "-std=c++23"),
    ("parity-whole-archive-differs", TOP_CMAKE, "executorch_target_link_options_shared_lib"),
    ("parity-schema-differs", SCHEMA_CMAKE, "add_custom_command"),
    ("parity-platforms-differ", WRAPPERS_BUCK, 'name = "wrappers"'),
    ("parity-label-missing", RUNTIME_BUCK, '":loging"'),
    ("parity-label-missing", f"{QUALCOMM}/third-party/BUCK", "$(location :qnn_file)"),
    ("parity-heavy-dependency", f"{QUALCOMM}/tests/BUCK", "kernels/quantized:aot_lib"),
]

EDITS_ALONE: Edits = {
    # They would hide others.
    TOP_CMAKE: {
        "executorch_target_link_options_shared_lib(qnn_executorch_backend)\n": "",
        "set(CMAKE_CXX_STANDARD 17)": "set(CMAKE_CXX_STANDARD 20)",
    },
    SCHEMA_CMAKE: {"--cpp-std c++11": "--cpp-std c++17", "\\\\1_generated.h": "\\\\1_schema.h"},
    f"{QUALCOMM}/runtime/Logging.h": {"": f"#include <executorch/{GENERATED}>\n"},
    RUNTIME_BUCK: {NAMESPACE: ""},
    # A list of the llama runner's folder has a file of that name too.
    f"{WHISPER}/CMakeLists.txt": {
        "": f"set(_sources {HERE}/runner/runner.cpp)\nadd_executable(whisper_twin ${{_sources}})\n"
    },
}
DRIFTS_ALONE = [
    ("parity-whole-archive-differs", RUNTIME_BUCK, "link_whole = True"),
    ("parity-standard-differs", TOP_CMAKE, "set(CMAKE_CXX_STANDARD 20)"),
    ("parity-schema-differs", SCHEMA_CMAKE, "add_custom_command"),
    ("parity-header-renamed", RUNTIME_BUCK, 'name = "pal"'),
    ("parity-header-missing", SCHEMA_CMAKE, GENERATED),
]

RENAMED = [
    # The folder, the old and the new name, the rule, and the file that names the old one.
    ("runtime", "SharedBuffer.cpp", "Shared.cpp", "parity-missing-in-cmake", RUNTIME_CMAKE),
    ("runtime/backends", "QnnLogger.h", "QnnLog.h", "parity-missing-file", BACKENDS_CMAKE),
    ("runtime/pal/include/pal", "Path.h", "Paths.h", "parity-missing-in-buck", RUNTIME_BUCK),
    ("runtime/pal/src/windows", "Path.cpp", "Paths.cpp", "parity-unknown-file", RUNTIME_CMAKE),
    ("recipes", "types.py", "kinds.py", "parity-unknown-file", f"{QUALCOMM}/recipes/BUCK"),
    ("serialization", "qc_compiler_spec.fbs", "spec.fbs", "parity-unknown-file", SCHEMA_CMAKE),
]
NEW_MODULES = [f"{QUALCOMM}/{folder}/new.py" for folder in ("aot", "quantizer/annotators/deep", "utils/deep")]


@cache
def _drifted(*, alone: bool) -> tuple[dict[str, str], tuple[Difference, ...]]:
    files = edited(EDITS_ALONE if alone else EDITS)
    added = [
        f"{QUALCOMM}/{path}" for path in ("runtime/backends/new/New.cpp", "runtime/new/Other.cpp", "new.cpp")
    ]
    files |= dict.fromkeys([*added, f"{ANDROID}/jni/new.cpp"], "// new\n")
    found = checked(files)
    return files, (*found.differences, *found.notes)


@cache
def _renamed() -> tuple[Difference, ...]:
    files = miniature_tree.files() | dict.fromkeys(NEW_MODULES, "import os\n")
    for folder, old, new, *_ in RENAMED:
        files[f"{QUALCOMM}/{folder}/{new}"] = files.pop(f"{QUALCOMM}/{folder}/{old}")
    return checked(files).differences


@pytest.mark.parametrize(
    ("alone", "rule", "file", "text"),
    [*((False, *drift) for drift in DRIFTS), *((True, *drift) for drift in DRIFTS_ALONE)],
)
def test_a_drift_is_found_on_its_line(alone: bool, rule: str, file: str, text: str) -> None:
    files, drifts = _drifted(alone=alone)
    lines = files[file].split("\n")
    found = [drift for drift in drifts if (drift.rule, drift.place.file) == (rule, file)]
    assert any(text in lines[drift.place.line - 1] or text in drift.what for drift in found), drifts


@pytest.mark.parametrize(("folder", "old", "new", "rule", "file"), RENAMED)
def test_g_a_renamed_file_isdifferences(folder: str, old: str, new: str, rule: str, file: str) -> None:
    lines = miniature_tree.files()[file].split("\n")
    places = [finding.place for finding in _renamed() if finding.what == f"{QUALCOMM}/{folder}/{old}"]
    assert any(place.file == file and old in lines[place.line - 1] for place in places), places
    reported = {(finding.rule, finding.what) for finding in _renamed()}
    assert (rule, f"{QUALCOMM}/{folder}/{new}") in reported or rule == "parity-missing-file"


HARMLESS: Edits = {
    RUNTIME_BUCK: {
        'exclude = ["Logging.cpp"]': "exclude = EXCLUDED  # Utils.cpp ( [",
        'glob(\n                [\n                    "*.h",': 'headers(\n                ["*.h"] + [',
        '                    "backends/gpu/*.h",\n                    "backends/htp/*.h",\n': (
            '                ] + ["backends/{}/*.h".format(kind) for kind in ["htp", "gpu"]] + [\n'
        ),
        'srcs = [\n            "Logging.cpp",\n        ]': "srcs = glob(['Logging.cp*'])",
        '":logging"': '"//executorch/backends/qualcomm/runtime:logging"',
        '"//executorch/runtime/core:core"': '"//executorch/runtime/core"',
    },
    WRAPPERS_BUCK: {'"//executorch/runtime/core:core"': '"//executorch/runtime/core:core_static"'},
    RUNTIME_CMAKE: {
        "set(_backend_options QnnBackendOptions.cpp QnnBackendOptions.h)": "include(${HERE}/o.cmake)",
        f"{HERE}/Utils.cpp": "${_utils}  # Other.cpp ( [",
        f"target_sources(\n  shared_buffer PRIVATE {HERE}/SharedBuffer.h": (
            "macro(sources name)\n  TARGET_SOURCES(${name} PRIVATE ${ARGN})\nendmacro()\n"
            "sources(\n  shared_buffer ${HERE}/SharedBuffer.h"
        ),
    },
    WRAPPERS_CMAKE: {
        f"  PRIVATE {HERE}/OpWrapper.cpp\n          {HERE}/QuantizeParamsWrapper.cpp\n": (
            ")\nforeach(name IN ITEMS QuantizeParamsWrapper OpWrapper)\n"
            "  list(APPEND _all ${name}.cpp)\nendforeach()\n"
            "target_sources(wrappers PRIVATE ${_all}\n"
        )
    },
    BACKENDS_CMAKE: {
        f"{HERE}/QnnLogger.cpp": f"$<$<NOT:$<BOOL:OFF>>:{HERE}/QnnLogger.cpp>",
        f"{HERE}/QnnProfiler.cpp": f"$<IF:$<STREQUAL:a,a>,{HERE}/QnnProfiler.cpp,b.cpp>",
        "": "endif()\n",
    },
}
BEFORE = {
    # What is written above all else of a file.
    RUNTIME_BUCK: 'load(":lists.bzl", "EXCLUDED", "headers")\nload("@fbsource//tools:x.bzl", "unused")\n',
    RUNTIME_CMAKE: 'set(HERE "${CMAKE_CURRENT_LIST_DIR}")\nset(_utils "${HERE}/Utils.cpp")\n',
    BACKENDS_CMAKE: "if(FALSE AND QAIRT)\n  nothing_of_the_kind()\nelseif(TRUE OR ANDROID)\n",
}


def test_what_both_builds_understand_alike_is_silent() -> None:
    files = edited(HARMLESS)
    files |= {path: text + files[path] for path, text in BEFORE.items()}
    lists = 'EXCLUDED = ["Logging.cpp"]\ndef headers(*each, **more):\n    return glob(*each, **more)\n'
    files |= {
        f"{QUALCOMM}/runtime/lists.bzl": lists,
        f"{QUALCOMM}/runtime/o.cmake": "set(_backend_options QnnBackendOptions.h QnnBackendOptions.cpp)\n",
        f"{BACKENDS}/gpu/GpuGraphMore.cpp": "// in a pattern of both builds, though no CMake file changed\n",
        f"{QUALCOMM}/runtime/notes.md": "x\n",
        f"{QUALCOMM}/runtime/__init__.py": "# (c) nobody\n",
        f"{QUALCOMM}/builders/op_new.py": "# new\n",
        f"{QUALCOMM}/tests/test_new.py": "# new\n",
    }
    assert checked(files).differences == ()


def test_a_directory_that_could_not_be_evaluated_is_not_compared_and_said() -> None:
    files = miniature_tree.files()
    files[RUNTIME_BUCK] += "nothing_of_the_kind()\n"
    assert {finding.rule for finding in checked(files).differences} == {"parity-not-evaluated"}


def test_rules_that_no_buck_file_calls_are_found() -> None:
    files = miniature_tree.files()
    del files[f"{WRAPPERS_BUCK.removesuffix('targets.bzl')}BUCK"]
    [finding] = differences(files, "parity-package-missing")
    assert finding.place.file == WRAPPERS_BUCK


class TestVerb:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        return miniature_tree.write(tmp_path / "executorch")

    def run(self, root: Path, *more: str) -> tuple[int, Report]:
        reports = root.parent / "reports"
        argv = ["buck_parity", "--executorch", str(root), "--reports", str(reports), *more]
        code = main("python -m ci", "", VERBS, argv)
        return code, Report.read(reports / "buck_parity.json")

    def test_what_is_accepted_is_what_the_mapping_explains(self, root: Path, tmp_path: Path) -> None:
        own = tmp_path / "parity.toml"
        own.write_bytes(MAPPING.read_bytes())
        assert self.run(root, "--mapping", str(own), "--accept")[0] == 0
        accepted = load_accepted(mapping(), own)
        assert accepted is not None
        assert accepted.differences["parity-option-differs -frtti in wrappers"]

    @pytest.mark.parametrize("folder", ["nowhere", "docs"])
    def test_without_a_tree_the_environment_lacks_it(self, root: Path, folder: str) -> None:
        assert self.run(root / folder)[0] == 3


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ('like = "runtime-host"', 'like = "runtime"', "runtime"),
        ("", '\n[[dependencies]]\nname = "x"\nbuck = ["//x:x"]\n', "dependencies"),
    ],
)
def test_a_mapping_that_cannot_be_meant_is_refused(tmp_path: Path, old: str, new: str, named: str) -> None:
    text = MAPPING.read_text(encoding="utf-8")
    (tmp_path / "parity.toml").write_text(text.replace(old, new) if old else text + new, encoding="utf-8")
    with pytest.raises(ManifestError, match=named):
        load_mapping(tmp_path / "parity.toml")
