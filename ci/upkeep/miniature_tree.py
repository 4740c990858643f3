"""A miniature ExecuTorch tree: the build files, directories and pitfalls of its Qualcomm backend, with
stand-ins for the code. `manifests/parity.toml` fits it as it stands, and CMake configures it."""

from __future__ import annotations

from pathlib import Path

QUALCOMM = "backends/qualcomm"
BACKENDS = f"{QUALCOMM}/runtime/backends"

RUNTIME = ("QnnBackendOptions", "QnnExecuTorchBackend", "QnnManager", "SharedBuffer", "Utils")
COMMON = (
    *("QnnBackendCache", "QnnBackendCommon", "QnnBackendFactory", "QnnBackendUnifiedRegistry"),
    *("QnnContextCommon", "QnnCustomProtocol", "QnnDeviceCommon", "QnnGraphCommon", "QnnImplementation"),
    *("QnnLogger", "QnnMemManager", "QnnOpPackageManager", "QnnProfiler", "QnnSysImplementation"),
)
COMMON_HEADERS = ("QnnDlcManager", "QnnFunctionInterface", "QnnSysFunctionInterface")
LIBRARIES = {
    "qnn_backend_cache": ("QnnBackendCache", "htp/HtpBackendCache"),
    "qnn_backend_unified_registry": ("QnnBackendUnifiedRegistry",),
    "qnn_custom_protocol": ("QnnCustomProtocol",),
    "qnn_factory": ("QnnBackendFactory",),
    "qnn_implementation": ("QnnImplementation",),
    "qnn_logger": ("QnnLogger",),
    "qnn_mem_manager": ("QnnMemManager",),
    "qnn_op_package_manager": ("QnnOpPackageManager",),
    "qnn_profiler": ("QnnProfiler",),
    "qnn_sys_implementation": ("QnnSysImplementation",),
}
"""Libraries of runtime/backends that are only a header and a source each."""

KINDS = {
    "gpu": (
        ("GpuBackend", "GpuBackendCustomConfig", "GpuContext", "GpuGraph", "GpuGraphCustomConfig"),
        ("GpuDevice", "GpuContextCustomConfig"),
        ("GpuContextCustomConfig",),
    ),
    "htp": (
        ("HtpBackendCache", "HtpContext", "HtpDevice", "HtpGraph"),
        (
            "HtpBackend",
            "HtpContextCustomConfig",
            "HtpDeviceCustomConfig",
            "HtpDevicePlatformInfoConfig",
            "HtpGraphCustomConfig",
        ),
        (
            "HtpContextCustomConfig",
            "HtpDeviceCustomConfig",
            "HtpDevicePlatformInfoConfig",
            "HtpGraphCustomConfig",
        ),
    ),
    "ir": ((), ("IrBackend", "IrContext"), ("IrContext", "QnnDlcManager")),
    "lpai": (
        ("LpaiBackend", "LpaiBackendCustomConfig", "LpaiContext", "LpaiGraph"),
        ("LpaiDevice", "LpaiContextCustomConfig"),
        ("LpaiContextCustomConfig", "LpaiDevice"),
    ),
}
"""Of each backend: sources with headers, headers alone, and sources that differ between host and target."""

PYTHON = {
    "_passes": 62,
    "_passes/backends/gpu": 1,
    "_passes/backends/htp": 2,
    "_passes/backends/lpai": 2,
    "builders": 98,
    "debugger": 6,
    "genai_pipeline": 3,
    "genai_pipeline/stages": 4,
    "partition": 4,
    "quantizer": 6,
    "quantizer/annotators": 9,
    "serialization": 4,
    "utils": 8,
}
"""How many modules each Python package has."""

PAL = f"{QUALCOMM}/runtime/pal"
PLATFORM = ("DynamicLoading", "Path")
"""Of the layer over the platform: a header each, and a source for each system."""

WRAPPERS = ("OpWrapper", "QuantizeParamsWrapper", "TensorWrapper")
WRAPPER_HEADERS = ("ParamWrapper", "ScalarParamWrapper", "TensorParamWrapper")

_LOAD_RUNTIME = 'load("@fbsource//xplat/executorch/build:runtime_wrapper.bzl", "runtime")\n'
_LOAD_PLATFORMS = (
    'load(\n    "@fbsource//tools/build_defs:default_platform_defs.bzl",\n    "ANDROID",\n    "CXX",\n)\n'
)
_LOAD_THIRD_PARTY = (
    'load("@fbsource//xplat/executorch/backends/qualcomm/third-party:third_party_libs.bzl",'
    ' "qnn_third_party_dep")\n'
)


def write(root: Path) -> Path:
    """Write the tree and return it."""
    for path, text in files().items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return root


def files() -> dict[str, str]:
    return {
        **_native(),
        **_python(),
        **_buck(),
        **_cmake(),
        **_examples(),
        **_pins(),
        f"{QUALCOMM}/serialization/qc_compiler_spec.fbs": "table Options {}\n",
    }


def _native() -> dict[str, str]:
    runtime = f"{QUALCOMM}/runtime"
    both = [f"{runtime}/{name}" for name in ("Logging", *RUNTIME)]
    both += [f"{BACKENDS}/{name}" for name in COMMON]
    both += [f"{QUALCOMM}/aot/wrappers/{name}" for name in WRAPPERS]
    both += [f"{QUALCOMM}/aot/python/PyQnnManagerAdaptor", f"{BACKENDS}/direct_mode/QnnExecuTorchIdlWrapper"]
    headers = [f"{runtime}/QnnExecuTorch", *(f"{BACKENDS}/{name}" for name in COMMON_HEADERS)]
    headers += [f"{QUALCOMM}/aot/wrappers/{name}" for name in WRAPPER_HEADERS]
    sources = [f"{BACKENDS}/direct_mode/qnn_executorch_imp"]
    for kind, (pairs, alone, halves) in KINDS.items():
        both += [f"{BACKENDS}/{kind}/{name}" for name in pairs]
        headers += [f"{BACKENDS}/{kind}/{name}" for name in alone]
        sources += [f"{BACKENDS}/{kind}/{half}/{name}" for half in ("host", "target") for name in halves]
    return {
        **{f"{path}.h": "#pragma once\n" for path in (*both, *headers)},
        **{f"{path}.cpp": f"// {Path(path).name}\n" for path in (*both, *sources)},
        f"{BACKENDS}/direct_mode/qnn_executorch.idl": "interface qnn_executorch {};\n",
        **{f"{PAL}/include/pal/{name}.h": "#pragma once\n" for name in PLATFORM},
        **{
            f"{PAL}/src/{system}/{name}.cpp": "// pal\n"
            for name in PLATFORM
            for system in ("linux", "windows")
        },
    }


def _python() -> dict[str, str]:
    found = {f"{QUALCOMM}/{name}.py": "# module\n" for name in ("qnn_preprocess", "export_utils")}
    found |= {f"{QUALCOMM}/recipes/{name}.py": "# module\n" for name in ("__init__", "provider", "types")}
    found[f"{QUALCOMM}/__init__.py"] = "from .scripts.download_qnn_sdk import VERSION\n"
    # Of the tests Buck has a few.
    found |= {f"{QUALCOMM}/tests/{name}.py": "# tests\n" for name in ("models", "utils", "conftest")}
    found[f"{QUALCOMM}/tests/test_qnn_delegate.py"] = "# tests\n"
    found |= {f"{QUALCOMM}/tests/rework/htp/op/v{arch}/test.py": "# tests\n" for arch in (68, 73, 79)}
    found |= {f"{QUALCOMM}/{folder}/__init__.py": "# (c)\n" for folder in ("aot", "aot/python", "tests")}
    for package, count in PYTHON.items():
        name = package.rpartition("/")[2].strip("_")
        found |= {f"{QUALCOMM}/{package}/{name}_{number}.py": "# module\n" for number in range(count)}
    return found


def _buck() -> dict[str, str]:
    folders = {
        "": _BUCK_TOP,
        "aot/python": _BUCK_PYTHON,
        "aot/wrappers": _BUCK_WRAPPERS,
        "runtime": _BUCK_RUNTIME,
        "_passes": _python_library("passes", '["*.py", "backends/*/*.py"]'),
        "builders": _python_library("builders", '[\n            "*.py",\n        ]'),
        "debugger": _python_library("debugger", '["**/*.py"]'),
        "genai_pipeline": _python_library("genai_pipeline", '["**/*.py"]'),
        "partition": _BUCK_PARTITION,
        "quantizer": _python_library(
            "quantizer",
            '[\n            "*.py",\n            "*/*.py",\n        ]',
            '            "//executorch/backends/transforms:decompose_sdpa",\n',
        ),
        "serialization": _BUCK_SERIALIZATION,
        "utils": _python_library("utils", '["*.py"]'),
    }
    found = {}
    for folder, text in folders.items():
        where = f"{QUALCOMM}/{folder}".rstrip("/")
        found[f"{where}/targets.bzl"] = text
        found[f"{where}/BUCK"] = _BUCK_FILE
    found[f"{QUALCOMM}/BUCK"] += _BUCK_FILE_TOP
    found[f"{QUALCOMM}/tests/BUCK"] = _BUCK_TESTS
    found[f"{QUALCOMM}/recipes/BUCK"] = _BUCK_RECIPES
    found[f"{QUALCOMM}/third-party/BUCK"] = _BUCK_THIRD_PARTY
    found[".buckconfig"] = _BUCKCONFIG
    found["runtime/core/targets.bzl"] = _BUCK_CORE
    found["runtime/core/BUCK"] = _BUCK_FILE
    shim = "shim_et/xplat/executorch/backends/qualcomm"
    found[f"{shim}/third-party/third_party_libs.bzl"] = _SHIM_LIBRARIES
    found[f"{shim}/qnn_version.bzl"] = 'def get_qnn_library_version():\n    return "2.37"\n'
    return found


_BUCKCONFIG = """\
[buildfile]
  name = TARGETS

[repositories]
  root = .
  prelude = third-party/prelude
  shim_et = shim_et

[repository_aliases]
  ovr_config = prelude
  toolchains = shim_et
  fbcode = shim_et
  fbcode_macros = shim_et
  fbsource = shim_et

[cxx]
  cxxflags = -g -std=c++17
"""

_SHIM_LIBRARIES = """\
load("@fbsource//xplat/executorch/backends/qualcomm/qnn_version.bzl", "get_qnn_library_version")
load("@fbsource//xplat/executorch/build:runtime_wrapper.bzl", "runtime")

_INSIDE = "fbsource//third-party/qualcomm/qnn/qnn-{}:".format(get_qnn_library_version())
_HERE = "//backends/qualcomm/third-party:"

# By name: the target inside Meta, and the open one.
_LIBRARIES = {
    "api": (_INSIDE + "api", _HERE + "qnn_api"),
    "app_sources": (_INSIDE + "app_sources", _HERE + "qnn_app_sources"),
    "qnn_offline_compile_libs": (_INSIDE + "qnn_offline_compile_libs", _HERE + "qnn_offline_compile_libs"),
    "log": ("fbsource//third-party/toolchains:log", _HERE + "log"),
    "pybind11": ("fbsource//third-party/pybind11:pybind11", "//third-party:pybind11"),
}

def qnn_third_party_dep(name):
    if name not in _LIBRARIES:
        fail("no such library: " + name)
    return _LIBRARIES[name][1 if runtime.is_oss else 0]
"""

_BUCK_THIRD_PARTY = """\
load("@fbsource//xplat/executorch/build:runtime_wrapper.bzl", "runtime")

oncall("executorch")

_SDK = native.read_config("qualcomm", "qnn_sdk_root", "")
_SOURCES = [":qnn_files[QnnModel.cpp]"] + select({
    "DEFAULT": [":qnn_files[linux/QnnModelPal.cpp]"],
    "ovr_config//os:windows": [":qnn_files[windows/QnnModelPal.cpp]"],
})

runtime.genrule(
    name = "qnn_files",
    outs = {name: [name] for name in ("QnnModel.cpp", "linux/QnnModelPal.cpp", "windows/QnnModelPal.cpp")},
    cmd = "cp -r {}/share/QNN/converter/jni/. $OUT".format(_SDK) if _SDK else "mkdir -p $OUT",
)

runtime.cxx_library(
    name = "qnn_api",
    exported_preprocessor_flags = ["-I$(location :qnn_files)"],
    exported_headers = {},
    linker_flags = select({"DEFAULT": [], "ovr_config//build_mode:opt": ["-s"]}),
)

runtime.cxx_library(
    name = "qnn_app_sources",
    srcs = _SOURCES if _SDK else [],
    header_namespace = "",
    deps = [":qnn_api"],
)

filegroup(name = "qnn_offline_compile_libs", srcs = [])

runtime.cxx_library(name = "log", exported_headers = {})
"""

_BUCK_CORE = """\
load("@fbsource//xplat/executorch/build:runtime_wrapper.bzl", "get_aten_mode_options", "runtime")

def define_common_targets():
    for aten_mode in get_aten_mode_options():
        suffix = "_aten" if aten_mode else ""
        runtime.cxx_library(name = "core" + suffix)
        runtime.cxx_library(name = "event_tracer" + suffix)
"""


_BUCK_FILE = """\
load("@fbcode_macros//build_defs:build_file_migration.bzl", "fbcode_target", "non_fbcode_target")
load(":targets.bzl", "define_common_targets")

oncall("executorch")

non_fbcode_target(_kind = define_common_targets)

load(":targets.bzl", "define_common_targets")

fbcode_target(_kind = define_common_targets)
"""


_BUCK_FILE_TOP = """
load("@fbsource//xplat/executorch/build:runtime_wrapper.bzl", "runtime")

fbcode_target(
    _kind = runtime.python_library,
    name = "export_utils",
    srcs = ["export_utils.py"],
    deps = ["//caffe2:torch"],
)
"""

_BUCK_RECIPES = """\
load("@fbcode_macros//build_defs:python_library.bzl", "python_library")

python_library(
    name = "recipes",
    srcs = [
        "__init__.py",
        "provider.py",
        "types.py",
    ],
)
"""

_BUCK_TESTS = """\
load("@fbcode_macros//build_defs:build_file_migration.bzl", "fbcode_target", "non_fbcode_target")
load("@fbsource//xplat/executorch/build:runtime_wrapper.bzl", "runtime")
load("@fbcode_macros//build_defs:python_unittest.bzl", "python_unittest")
load("@fbsource//xplat/executorch/backends/qualcomm/qnn_version.bzl", "get_qnn_library_version")
load("@fbsource//tools/build_defs:elsewhere.bzl", "not_used_here")

oncall("executorch")

fbcode_target(_kind = runtime.python_library,
    name = "models",
    srcs = ["models.py"],
    deps = ["//caffe2:torch"],
)

fbcode_target(_kind = runtime.python_library,
    name = "test_qnn_delegate",
    srcs = ["test_qnn_delegate.py"],
    deps = [
        ":models",
        "//executorch/backends/qualcomm/quantizer:quantizer",
    ] + ([] if runtime.is_oss else ["//executorch/extension/pybindings:portable_lib"]),
)

fbcode_target(_kind = runtime.python_test,
    name = "utils",
    srcs = ["utils.py"],
    # env = {"QNN": get_qnn_library_version()},
    deps = [":models"],
)
"""


def _python_library(name: str, patterns: str, dependencies: str = "") -> str:
    deps = f"        deps = [\n{dependencies}        ],\n" if dependencies else ""
    return f"""\
{_LOAD_RUNTIME}
def define_common_targets():
    runtime.python_library(
        name = "{name}",
        srcs = glob({patterns}),
        visibility = ["PUBLIC"],
{deps}    )
"""


_BUCK_PARTITION = """\
load("@fbsource//xplat/executorch/build:runtime_wrapper.bzl", "runtime")
load("@fbsource//tools/build_defs:fbsource_utils.bzl", "is_fbcode")

def define_common_targets():
    if not is_fbcode():
        return

    runtime.python_library(
        name = "partition",
        srcs = glob(["*.py"]),
    )
"""

_BUCK_SERIALIZATION = """\
load("@fbsource//xplat/executorch/build:runtime_wrapper.bzl", "runtime")
load("@fbcode_macros//build_defs:export_files.bzl", "export_file")

def define_common_targets():
    export_file(name = "qc_compiler_spec_schema", src = "qc_compiler_spec.fbs")
    runtime.python_library(
        name = "serialization",
        srcs = glob(["*.py"]),
        resources = {":qc_compiler_spec_schema": "qc_compiler_spec.fbs"},
    )
"""

_BUCK_TOP = (
    _LOAD_PLATFORMS
    + _LOAD_RUNTIME
    + """
SCHEMA_NAME = "qc_compiler_spec"

def generate_schema_header(rule_name, srcs, headers, default_header):
    runtime.genrule(
        name = rule_name,
        srcs = srcs,
        outs = {header: [header] for header in headers},
        default_outs = [default_header],
        cmd = " ".join([
            "$(exe {})".format(runtime.external_dep_location("flatc")),
            "--cpp",
            "--cpp-std c++11",
            "--scoped-enums",
            "-o ${OUT}",
            "${SRCS}",
        ] + ["&& echo >> ${OUT}/" + header for header in headers]),
    )

def define_common_targets():
    generate_schema_header(
        "schema_generated",
        ["serialization/" + SCHEMA_NAME + ".fbs"],
        [SCHEMA_NAME + "_generated.h"],
        SCHEMA_NAME + "_generated.h",
    )
    runtime.cxx_library(
        name = "schema",
        srcs = [],
        exported_headers = {
            SCHEMA_NAME + "_generated.h": ":schema_generated[{}_generated.h]".format(SCHEMA_NAME),
        },
        exported_external_deps = ["flatbuffers-api"],
        platforms = [ANDROID, CXX],
    )
    runtime.python_library(
        name = "preprocess",
        srcs = ["qnn_preprocess.py"],
        deps = ["//executorch/backends/qualcomm/_passes:passes"],
    )
"""
)

_BUCK_PYTHON = (
    _LOAD_PLATFORMS
    + _LOAD_RUNTIME
    + _LOAD_THIRD_PARTY
    + """
PYTHON_MODULE_NAME = "PyQnnManagerAdaptor"

def define_common_targets():
    runtime.cxx_python_extension(
        name = PYTHON_MODULE_NAME,
        srcs = [
            "PyQnnManagerAdaptor.cpp",
        ],
        headers = [
            "PyQnnManagerAdaptor.h",
        ],
        base_module = "executorch.backends.qualcomm.python",
        preprocessor_flags = [
            "-DEXECUTORCH_PYTHON_MODULE_NAME={}".format(PYTHON_MODULE_NAME),
        ],
        deps = [
            "//executorch/runtime/core:core",
            "//executorch/backends/qualcomm/aot/python:python_lib",
            "//executorch/backends/qualcomm/aot/wrappers:wrappers",
            "//executorch/backends/qualcomm/runtime:logging",
            "//executorch/backends/qualcomm:schema",
            "//executorch/backends/qualcomm/runtime:runtime",
            qnn_third_party_dep("api"),
            qnn_third_party_dep("app_sources"),
            qnn_third_party_dep("pybind11"),
        ],
        external_deps = ["libtorch_python"],
        use_static_deps = True,
    )

    runtime.cxx_library(
        name = "python_lib",
        srcs = glob([
            "*.cpp",
        ]),
        exported_headers = glob([
            "*.h",
        ]),
        platforms = (CXX),
        deps = [
            "//executorch/backends/qualcomm/aot/wrappers:wrappers",
            "//executorch/backends/qualcomm/runtime:logging",
            qnn_third_party_dep("api"),
            qnn_third_party_dep("pybind11"),
        ],
    )
"""
)

_BUCK_WRAPPERS = (
    _LOAD_PLATFORMS
    + _LOAD_RUNTIME
    + _LOAD_THIRD_PARTY
    + """
def define_common_targets():
    runtime.cxx_library(
        name = "wrappers",
        srcs = glob([
            "*.cpp",
        ]),
        exported_headers = glob([
            "*.h",
        ]),
        platforms = [ANDROID, CXX],
        deps = [
            qnn_third_party_dep("api"),
            qnn_third_party_dep("app_sources"),
            "//executorch/runtime/backend:interface",
            "//executorch/runtime/core:core",
        ],
        exported_deps = [
            "//executorch/backends/qualcomm/runtime:logging",
        ],
    )
"""
)

_BUCK_RUNTIME = (
    _LOAD_PLATFORMS
    + _LOAD_RUNTIME
    + _LOAD_THIRD_PARTY
    + """
def define_common_targets():
    runtime.cxx_library(
        name = "logging",
        srcs = [
            "Logging.cpp",
        ],
        exported_headers = [
            "Logging.h",
        ],
        platforms = [ANDROID, CXX],
        deps = [
            qnn_third_party_dep("api"),
            qnn_third_party_dep("app_sources"),
            "//executorch/runtime/backend:interface",
        ],
        exported_deps = [
            qnn_third_party_dep("log"),
            "//executorch/backends/qualcomm:schema",
            "//executorch/runtime/core:core",
        ],
    )

    # Included as <pal/…>, as by CMake's include directory.
    runtime.cxx_library(
        name = "pal",
        srcs = glob([
            "pal/src/linux/*.cpp",
        ]),
        exported_headers = {
            "DynamicLoading.h": "pal/include/pal/DynamicLoading.h",
            "Path.h": "pal/include/pal/Path.h",
        },
        header_namespace = "pal",
        platforms = [ANDROID, CXX],
    )

    # "runtime" is used for offline compilation.
    for include_aot_qnn_lib in (True, False):
        qnn_build_suffix = ("" if include_aot_qnn_lib else "_android_build")
        runtime.cxx_library(
            name = "runtime" + qnn_build_suffix,
            srcs = glob(
                [
                    "*.cpp",
                    "backends/*.cpp",
                    "backends/gpu/*.cpp",
                    "backends/htp/*.cpp",
                    "backends/ir/*.cpp",
                    "backends/lpai/*.cpp",
                ] + (
                    ["backends/gpu/host/*.cpp"] if include_aot_qnn_lib else ["backends/gpu/target/*.cpp"]) + (
                    ["backends/htp/host/*.cpp"] if include_aot_qnn_lib else ["backends/htp/target/*.cpp"]) + (
                    ["backends/ir/host/*.cpp"] if include_aot_qnn_lib else ["backends/ir/target/*.cpp"]) + (
                    ["backends/lpai/host/*.cpp"] if include_aot_qnn_lib else ["backends/lpai/target/*.cpp"]
                ),
                exclude = ["Logging.cpp"],
            ),
            exported_headers = glob(
                [
                    "*.h",
                    "backends/*.h",
                    "backends/gpu/*.h",
                    "backends/htp/*.h",
                    "backends/ir/*.h",
                    "backends/lpai/*.h",
                ],
                exclude = ["Logging.h"],
            ),
            link_whole = True,
            platforms = [ANDROID, CXX],
            resources = ({
                "qnn_lib": qnn_third_party_dep("qnn_offline_compile_libs"),
            } if include_aot_qnn_lib else {
            }),
            compiler_flags = select({
                "DEFAULT": [],
                "ovr_config//os:macos": ["-Wno-unused-lambda-capture"],
                "ovr_config//os:android": ["-Wno-unused-function"],
            }),
            deps = [
                qnn_third_party_dep("api"),
                qnn_third_party_dep("app_sources"),
                ":logging",
                "//executorch/backends/qualcomm:schema",
                "//executorch/backends/qualcomm/aot/wrappers:wrappers",
                "//executorch/runtime/core:core",
                "//executorch/extension/tensor:tensor",
            ] + select({
                "DEFAULT": [],
                "ovr_config//os:android": [":logging"],
            }),
            exported_deps = [
                ":pal",
                "//executorch/runtime/backend:interface",
                "//executorch/runtime/core/exec_aten/util:scalar_type_util",
                "//executorch/runtime/core:event_tracer",
            ],
        )
"""
)


def _cmake() -> dict[str, str]:
    return {
        "CMakeLists.txt": _CMAKE_ROOT,
        "tools/cmake/Utils.cmake": _CMAKE_UTILS,
        "third-party/pybind11/CMakeLists.txt": _CMAKE_PYBIND11,
        f"{QUALCOMM}/CMakeLists.txt": _CMAKE_QUALCOMM,
        f"{QUALCOMM}/cmake/Schema.cmake": _CMAKE_SCHEMA,
        f"{QUALCOMM}/aot/python/CMakeLists.txt": _CMAKE_PYTHON,
        f"{QUALCOMM}/aot/wrappers/CMakeLists.txt": _CMAKE_WRAPPERS,
        f"{QUALCOMM}/runtime/CMakeLists.txt": _CMAKE_RUNTIME,
        f"{BACKENDS}/CMakeLists.txt": _CMAKE_BACKENDS + _plain_libraries(),
        f"{BACKENDS}/direct_mode/CMakeLists.txt": _CMAKE_DIRECT,
    }


def _plain_libraries() -> str:
    made = ""
    for library, names in LIBRARIES.items():
        headers = "\n         ".join(f"${{CMAKE_CURRENT_LIST_DIR}}/{name}.h" for name in names)
        sources = "\n          ".join(f"${{CMAKE_CURRENT_LIST_DIR}}/{name}.cpp" for name in names)
        made += f"\ntarget_sources(\n  {library}\n  PUBLIC {headers}\n  PRIVATE {sources}\n)\n"
    return made


_CMAKE_ROOT = """\
cmake_minimum_required(VERSION 3.28)
project(executorch LANGUAGES CXX)

option(EXECUTORCH_BUILD_QNN "Build the Qualcomm backend" ON)
set(QNN_SDK_ROOT "/qnn-sdk" CACHE PATH "Qualcomm SDK root directory")
include(${CMAKE_CURRENT_SOURCE_DIR}/tools/cmake/Utils.cmake)

foreach(name executorch executorch_core extension_tensor extension_data_loader etdump)
  add_library(${name} INTERFACE)
endforeach()

if(EXECUTORCH_BUILD_QNN)
  add_subdirectory(backends/qualcomm)
endif()
"""

_CMAKE_UTILS = """\
# Keep registrations that nothing refers to.
function(executorch_target_link_options_shared_lib target_name)
  target_link_options(${target_name} INTERFACE "SHELL:LINKER:--whole-archive")
endfunction()
"""

_CMAKE_PYBIND11 = """\
add_library(pybind11_module INTERFACE)
add_library(pybind11::module ALIAS pybind11_module)
add_library(pybind11_lto INTERFACE)
add_library(pybind11::lto ALIAS pybind11_lto)
function(pybind11_extension name)
  set_target_properties(${name} PROPERTIES PREFIX "")
endfunction()
function(pybind11_strip name)
endfunction()
"""

_CMAKE_SCHEMA = """\
set(_qnn_schema__srcs backends/qualcomm/serialization/qc_compiler_spec.fbs)
set(_qnn_schema__include_dir "${CMAKE_BINARY_DIR}/schema/include")
set(_qnn_schema__outputs)
foreach(fbs_file ${_qnn_schema__srcs})
  string(REGEX REPLACE "serialization/([^/]+)[.]fbs$" "\\\\1_generated.h"
                       generated "${fbs_file}"
  )
  list(APPEND _qnn_schema__outputs
       "${_qnn_schema__include_dir}/executorch/${generated}"
  )
endforeach()
add_custom_command(
  OUTPUT ${_qnn_schema__outputs}
  COMMAND
    flatc --cpp --cpp-std c++11 --scoped-enums -o
    "${_qnn_schema__include_dir}/executorch/backends/qualcomm" ${_qnn_schema__srcs}
  WORKING_DIRECTORY ${EXECUTORCH_SOURCE_DIR}
  COMMENT "Generating qnn_schema headers"
  VERBATIM
)
"""

_CMAKE_QUALCOMM = """\
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)

get_filename_component(
  EXECUTORCH_SOURCE_DIR "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE
)
get_filename_component(
  QNN_EXECUTORCH_ROOT_DIR ${CMAKE_CURRENT_LIST_DIR} ABSOLUTE
)

if(NOT DEFINED QNN_SDK_ROOT AND DEFINED ENV{QNN_SDK_ROOT})
  set(QNN_SDK_ROOT $ENV{QNN_SDK_ROOT} CACHE PATH "Qualcomm SDK root" FORCE)
endif()
if(NOT DEFINED QNN_SDK_ROOT)
  message(
    FATAL_ERROR
      "Please define QNN_SDK_ROOT, e.g. cmake <..> -DQNN_SDK_ROOT=<...>"
  )
elseif(CMAKE_TOOLCHAIN_FILE MATCHES ".*(iOS|ios\\.toolchain)\\.cmake$")
  message(FATAL_ERROR "ios is not supported by Qualcomm AI Engine Direct")
endif()

message(STATUS "Using qnn sdk root ${QNN_SDK_ROOT}")

if(${ANDROID})
  find_library(android_log log)
endif()

add_compile_options("-Wall" "-Werror" "-Wno-sign-compare")
add_compile_definitions(C10_USING_CUSTOM_GENERATED_MACROS)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options("-Wno-error=attributes")
endif()

if(NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
  add_compile_options("-O3" "-ffunction-sections" "-frtti")
endif()

# Let files say "include <executorch/path/to/header.h>".
get_filename_component(
  _common_include_directories "${EXECUTORCH_SOURCE_DIR}/.." ABSOLUTE
)
include_directories(
  BEFORE ${_common_include_directories} ${QNN_SDK_ROOT}/include/QNN
  ${QNN_EXECUTORCH_ROOT_DIR}/runtime/pal/include
)
include(${CMAKE_CURRENT_LIST_DIR}/cmake/Schema.cmake)

#
# declare targets
#
foreach(
  name
  qnn_backend qnn_backend_cache qnn_backend_options qnn_backend_unified_registry
  qnn_context qnn_custom_protocol qnn_device qnn_dlc_manager
  qnn_executorch_logging qnn_factory qnn_graph qnn_implementation qnn_logger
  qnn_manager qnn_mem_manager qnn_op_package_manager qnn_pal qnn_profiler
  qnn_sys_implementation shared_buffer utils wrappers
)
  add_library(${name} STATIC)
endforeach()
add_library(executorch_backend INTERFACE)
add_library(qnn_executorch_backend SHARED)
add_library(qnn_executorch_header INTERFACE)
add_library(qnn_function_interface INTERFACE)
add_library(qnn_schema INTERFACE ${_qnn_schema__outputs})
add_library(qnn_sys_function_interface INTERFACE)

#
# declare dependency
#
target_link_libraries(wrappers PRIVATE qnn_executorch_logging)
target_link_libraries(
  qnn_implementation PRIVATE qnn_function_interface qnn_executorch_logging qnn_pal
                             ${CMAKE_DL_LIBS}
)
target_link_libraries(
  qnn_sys_implementation PRIVATE qnn_sys_function_interface
                                 qnn_executorch_logging ${CMAKE_DL_LIBS}
)
target_link_libraries(qnn_executorch_logging PRIVATE qnn_schema)
target_link_libraries(qnn_profiler PRIVATE qnn_executorch_logging)
target_link_libraries(qnn_logger PRIVATE qnn_implementation ${android_log})
target_link_libraries(
  qnn_backend PRIVATE qnn_implementation qnn_logger qnn_op_package_manager
)
target_link_libraries(qnn_custom_protocol PRIVATE qnn_logger)
target_link_libraries(qnn_backend_options PRIVATE qnn_schema)
target_link_libraries(
  qnn_device PRIVATE qnn_executorch_logging qnn_implementation qnn_logger
)
target_link_libraries(qnn_backend_cache PRIVATE qnn_sys_implementation)
target_link_libraries(
  qnn_context PRIVATE qnn_implementation qnn_logger qnn_backend qnn_device
                      qnn_backend_cache
)
target_link_libraries(
  qnn_graph PRIVATE qnn_executorch_logging qnn_implementation qnn_context
                    qnn_profiler
)
target_link_libraries(
  qnn_mem_manager PRIVATE qnn_executorch_logging qnn_implementation qnn_context
)
target_link_libraries(
  qnn_factory PRIVATE qnn_schema qnn_backend qnn_device qnn_context qnn_graph
                      qnn_mem_manager qnn_custom_protocol
)
target_link_libraries(
  qnn_backend_unified_registry PRIVATE qnn_schema qnn_backend qnn_device
                                       qnn_implementation
)
target_link_libraries(
  qnn_dlc_manager PRIVATE qnn_factory qnn_backend_unified_registry qnn_backend
)
target_link_libraries(
  qnn_manager
  PRIVATE qnn_factory
          qnn_backend_unified_registry
          wrappers
          qnn_schema
          utils
          shared_buffer
          qnn_dlc_manager
)
target_link_libraries(
  qnn_executorch_backend
  PRIVATE qnn_executorch_header qnn_schema qnn_manager executorch_core
          qnn_backend_options
)
target_link_libraries(utils PRIVATE qnn_executorch_logging)
target_link_libraries(
  shared_buffer PRIVATE qnn_executorch_logging ${CMAKE_DL_LIBS}
)
if(${CMAKE_SYSTEM_PROCESSOR} MATCHES Hexagon)
  if(DSP_TYPE STREQUAL "3")
    string(TOUPPER ${DSP_VERSION} CAPITAL_DSP_VERSION)
    add_compile_definitions(HEXAGON_LIB="libQnnHtp${CAPITAL_DSP_VERSION}.so")
  else()
    message(FATAL_ERROR "Unknown DSP_TYPE ${DSP_TYPE}")
  endif()
  target_link_libraries(
    qnn_executorch_backend
    PRIVATE ${HEXAGON_TOOLS_ROOT}/Tools/target/hexagon/lib/${DSP_VERSION}/G0/pic/libc.so
  )
endif()
executorch_target_link_options_shared_lib(qnn_executorch_backend)

#
# add sources
#
add_subdirectory(
  ${QNN_EXECUTORCH_ROOT_DIR}/runtime ${CMAKE_CURRENT_BINARY_DIR}/qnn_executorch
)
add_subdirectory(
  ${QNN_EXECUTORCH_ROOT_DIR}/runtime/backends
  ${CMAKE_CURRENT_BINARY_DIR}/qnn_executorch/backends
)
add_subdirectory(
  ${QNN_EXECUTORCH_ROOT_DIR}/aot/wrappers
  ${CMAKE_CURRENT_BINARY_DIR}/qnn_executorch/wrappers
)
if(DEFINED ENV{HEXAGON_SDK_ROOT})
  if(${CMAKE_SYSTEM_PROCESSOR} MATCHES Hexagon)
    add_subdirectory(
      ${QNN_EXECUTORCH_ROOT_DIR}/runtime/backends/direct_mode
      ${CMAKE_CURRENT_BINARY_DIR}/qnn_executorch/direct_mode
    )
  endif()
endif()
if(CDSP_VERSION)
  message(STATUS "Direct mode for ${CDSP_VERSION}")
endif()
if(EXECUTORCH_BUILD_SHARED)
  target_link_libraries(qnn_executorch_backend PRIVATE executorch_shared)
endif()
install(TARGETS qnn_executorch_backend DESTINATION lib)

# QNN pybind
if(${CMAKE_SYSTEM_PROCESSOR} MATCHES "x86_64")
  add_subdirectory(
    ${EXECUTORCH_SOURCE_DIR}/third-party/pybind11
    ${CMAKE_CURRENT_BINARY_DIR}/pybind11
  )
  add_library(PyQnnManagerAdaptor MODULE)
  set_target_properties(
    PyQnnManagerAdaptor PROPERTIES CXX_VISIBILITY_PRESET hidden
  )
  target_link_libraries(
    PyQnnManagerAdaptor
    PRIVATE pybind11::module
            pybind11::lto
            qnn_schema
            qnn_manager
            qnn_executorch_header
            executorch
            extension_tensor
            qnn_backend_options
            wrappers
            qnn_executorch_logging
  )
  if(NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
    set(_pybind_compile_options -Wno-deprecated-declarations -fPIC -fexceptions)
    target_compile_options(
      PyQnnManagerAdaptor PUBLIC ${_pybind_compile_options}
    )
  endif()

  pybind11_extension(PyQnnManagerAdaptor)
  if(NOT MSVC AND NOT ${CMAKE_BUILD_TYPE} MATCHES RelWithDebInfo)
    pybind11_strip(PyQnnManagerAdaptor)
  endif()
  add_subdirectory(
    ${QNN_EXECUTORCH_ROOT_DIR}/aot/python
    ${CMAKE_CURRENT_BINARY_DIR}/qnn_executorch/python
  )
endif()
"""

_CMAKE_PYTHON = """\
target_sources(
  PyQnnManagerAdaptor
  PRIVATE ${CMAKE_CURRENT_LIST_DIR}/PyQnnManagerAdaptor.cpp
          ${CMAKE_CURRENT_LIST_DIR}/PyQnnManagerAdaptor.h
)
"""

_CMAKE_WRAPPERS = """\
target_sources(
  wrappers
  PUBLIC ${CMAKE_CURRENT_LIST_DIR}/TensorWrapper.cpp
         ${CMAKE_CURRENT_LIST_DIR}/OpWrapper.h
         ${CMAKE_CURRENT_LIST_DIR}/ParamWrapper.h
         ${CMAKE_CURRENT_LIST_DIR}/QuantizeParamsWrapper.h
         ${CMAKE_CURRENT_LIST_DIR}/ScalarParamWrapper.h
         ${CMAKE_CURRENT_LIST_DIR}/TensorParamWrapper.h
         ${CMAKE_CURRENT_LIST_DIR}/TensorWrapper.h
  PRIVATE ${CMAKE_CURRENT_LIST_DIR}/OpWrapper.cpp
          ${CMAKE_CURRENT_LIST_DIR}/QuantizeParamsWrapper.cpp
)
"""

_CMAKE_RUNTIME = """\
target_sources(
  executorch_backend INTERFACE ${EXECUTORCH_SOURCE_DIR}/backends/backend.h
)

# qnn_executorch_header
target_sources(
  qnn_executorch_header INTERFACE ${CMAKE_CURRENT_LIST_DIR}/QnnExecuTorch.h
)

# qnn_executorch_backend
target_sources(
  qnn_executorch_backend
  INTERFACE ${CMAKE_CURRENT_LIST_DIR}/QnnExecuTorchBackend.h
  PRIVATE ${CMAKE_CURRENT_LIST_DIR}/QnnExecuTorchBackend.cpp
)

# qnn_manager
target_sources(
  qnn_manager
  INTERFACE ${CMAKE_CURRENT_LIST_DIR}/QnnManager.h
  PRIVATE ${CMAKE_CURRENT_LIST_DIR}/QnnManager.cpp
)

# logging
target_sources(
  qnn_executorch_logging
  PUBLIC ${CMAKE_CURRENT_LIST_DIR}/Logging.h
  PRIVATE ${CMAKE_CURRENT_LIST_DIR}/Logging.cpp
)

set(_backend_options QnnBackendOptions.cpp QnnBackendOptions.h)
target_sources(qnn_backend_options PRIVATE ${_backend_options})

target_sources(
  utils
  PUBLIC ${CMAKE_CURRENT_LIST_DIR}/Utils.h
  PRIVATE ${CMAKE_CURRENT_LIST_DIR}/Utils.cpp
)

target_sources(
  shared_buffer PRIVATE ${CMAKE_CURRENT_LIST_DIR}/SharedBuffer.h
                        ${CMAKE_CURRENT_LIST_DIR}/SharedBuffer.cpp
)

if(WIN32)
  set(_pal windows)
else()
  set(_pal linux)
endif()
target_sources(
  qnn_pal
  PRIVATE ${CMAKE_CURRENT_LIST_DIR}/pal/src/${_pal}/DynamicLoading.cpp
          ${CMAKE_CURRENT_LIST_DIR}/pal/src/${_pal}/Path.cpp
)
"""

_CMAKE_BACKENDS = """\
# The code for the host prepares offline; the code for the target runs on the device.
set(_platform "target")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64")
  set(_platform "host")
endif()
foreach(kind gpu htp ir lpai)
  string(TOUPPER ${kind} _upper)
  set(HOST_ARCHITECTURE_${_upper} ${CMAKE_CURRENT_LIST_DIR}/${kind}/${_platform})
endforeach()

target_sources(
  qnn_function_interface
  INTERFACE ${CMAKE_CURRENT_LIST_DIR}/QnnFunctionInterface.h
)

target_sources(
  qnn_sys_function_interface
  INTERFACE $<BUILD_INTERFACE:${CMAKE_CURRENT_LIST_DIR}/QnnSysFunctionInterface.h>
)

# qnn_device
target_sources(
  qnn_device
  PUBLIC ${CMAKE_CURRENT_LIST_DIR}/QnnDeviceCommon.h
         ${CMAKE_CURRENT_LIST_DIR}/gpu/GpuDevice.h
         ${CMAKE_CURRENT_LIST_DIR}/htp/HtpDevice.h
         ${CMAKE_CURRENT_LIST_DIR}/lpai/LpaiDevice.h
  PRIVATE ${CMAKE_CURRENT_LIST_DIR}/QnnDeviceCommon.cpp
          ${CMAKE_CURRENT_LIST_DIR}/htp/HtpDevice.cpp
          ${CMAKE_CURRENT_LIST_DIR}/htp/HtpDevicePlatformInfoConfig.h
          ${CMAKE_CURRENT_LIST_DIR}/htp/HtpDeviceCustomConfig.h
          # Offline preparation has to provide the platform's facts.
          ${HOST_ARCHITECTURE_HTP}/HtpDevicePlatformInfoConfig.cpp
          ${HOST_ARCHITECTURE_HTP}/HtpDeviceCustomConfig.cpp
          ${HOST_ARCHITECTURE_LPAI}/LpaiDevice.cpp
)

# qnn_context
target_sources(
  qnn_context
  PUBLIC ${CMAKE_CURRENT_LIST_DIR}/QnnContextCommon.h
         ${CMAKE_CURRENT_LIST_DIR}/htp/HtpContext.h
         ${CMAKE_CURRENT_LIST_DIR}/ir/IrContext.h
         ${CMAKE_CURRENT_LIST_DIR}/gpu/GpuContext.h
         ${CMAKE_CURRENT_LIST_DIR}/lpai/LpaiContext.h
  PRIVATE ${CMAKE_CURRENT_LIST_DIR}/QnnContextCommon.cpp
          ${CMAKE_CURRENT_LIST_DIR}/htp/HtpContext.cpp
          ${CMAKE_CURRENT_LIST_DIR}/htp/HtpContextCustomConfig.h
          ${CMAKE_CURRENT_LIST_DIR}/gpu/GpuContext.cpp
          ${CMAKE_CURRENT_LIST_DIR}/gpu/GpuContextCustomConfig.h
          ${CMAKE_CURRENT_LIST_DIR}/lpai/LpaiContext.cpp
          ${CMAKE_CURRENT_LIST_DIR}/lpai/LpaiContextCustomConfig.h
          ${HOST_ARCHITECTURE_GPU}/GpuContextCustomConfig.cpp
          ${HOST_ARCHITECTURE_HTP}/HtpContextCustomConfig.cpp
          ${HOST_ARCHITECTURE_IR}/IrContext.cpp
          ${HOST_ARCHITECTURE_LPAI}/LpaiContextCustomConfig.cpp
)

# qnn_graph
file(GLOB _gpu_graph ${CMAKE_CURRENT_LIST_DIR}/gpu/GpuGraph*)
target_sources(
  qnn_graph
  PUBLIC ${CMAKE_CURRENT_LIST_DIR}/QnnGraphCommon.h
         ${CMAKE_CURRENT_LIST_DIR}/htp/HtpGraph.h
         ${CMAKE_CURRENT_LIST_DIR}/lpai/LpaiGraph.h
  PRIVATE ${CMAKE_CURRENT_LIST_DIR}/QnnGraphCommon.cpp
          ${_gpu_graph}
          ${CMAKE_CURRENT_LIST_DIR}/htp/HtpGraph.cpp
          ${CMAKE_CURRENT_LIST_DIR}/htp/HtpGraphCustomConfig.h
          ${CMAKE_CURRENT_LIST_DIR}/lpai/LpaiGraph.cpp
          ${HOST_ARCHITECTURE_HTP}/HtpGraphCustomConfig.cpp
)

# qnn_backend
set(_backend_sources GpuBackend.cpp GpuBackendCustomConfig.h GpuBackendCustomConfig.cpp)
list(TRANSFORM _backend_sources PREPEND "${CMAKE_CURRENT_LIST_DIR}/gpu/")
list(APPEND _backend_sources ${CMAKE_CURRENT_LIST_DIR}/lpai/LpaiBackend.cpp
     ${CMAKE_CURRENT_LIST_DIR}/lpai/LpaiBackendCustomConfig.h
     ${CMAKE_CURRENT_LIST_DIR}/lpai/LpaiBackendCustomConfig.cpp
)
target_sources(
  qnn_backend
  PUBLIC ${CMAKE_CURRENT_LIST_DIR}/QnnBackendCommon.h
         ${CMAKE_CURRENT_LIST_DIR}/gpu/GpuBackend.h
         ${CMAKE_CURRENT_LIST_DIR}/htp/HtpBackend.h
         ${CMAKE_CURRENT_LIST_DIR}/ir/IrBackend.h
         ${CMAKE_CURRENT_LIST_DIR}/lpai/LpaiBackend.h
  PRIVATE ${CMAKE_CURRENT_LIST_DIR}/QnnBackendCommon.cpp ${_backend_sources}
)

# qnn_dlc_manager
target_sources(
  qnn_dlc_manager
  PUBLIC ${CMAKE_CURRENT_LIST_DIR}/QnnDlcManager.h
  PRIVATE ${HOST_ARCHITECTURE_IR}/QnnDlcManager.cpp
)
"""

_CMAKE_DIRECT = """\
if(NOT ${CMAKE_SYSTEM_PROCESSOR} MATCHES Hexagon)
  message(
    FATAL_ERROR
      "This requires Hexagon tool chain, but found: ${CMAKE_SYSTEM_PROCESSOR}"
  )
endif()

add_custom_command(
  OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/qnn_executorch_skel.c
         ${CMAKE_CURRENT_BINARY_DIR}/qnn_executorch.h
  COMMAND
    ${HEXAGON_SDK_ROOT}/ipc/fastrpc/qaic/Ubuntu/qaic
    ${CMAKE_CURRENT_SOURCE_DIR}/qnn_executorch.idl -I ${HEXAGON_SDK_ROOT}/incs -o
    ${CMAKE_CURRENT_BINARY_DIR}
  COMMENT "Codegen for fastrpc files"
)

add_library(
  qnn_executorch_skel SHARED
  ${CMAKE_CURRENT_BINARY_DIR}/qnn_executorch.h
  ${CMAKE_CURRENT_BINARY_DIR}/qnn_executorch_skel.c qnn_executorch_imp.cpp
  QnnExecuTorchIdlWrapper.h QnnExecuTorchIdlWrapper.cpp
)
target_include_directories(
  qnn_executorch_skel PRIVATE ${CMAKE_CURRENT_BINARY_DIR}
)
target_link_libraries(
  qnn_executorch_skel PRIVATE extension_data_loader qnn_executorch_backend etdump
)
"""


EXAMPLES = "examples/qualcomm"
LLAMA = f"{EXAMPLES}/oss_scripts/llama"
WHISPER = f"{EXAMPLES}/oss_scripts/whisper"


def _examples() -> dict[str, str]:
    """The runners, which CMake builds as a project of their own."""
    runner = [f"{LLAMA}/runner/{name}" for name in ("decoder_runner", "kv_manager", "runner")]
    runner += [f"{WHISPER}/runner/{name}" for name in ("decoder", "encoder", "runner")]
    sources = [f"{EXAMPLES}/executor_runner/qnn_executor_runner", f"{LLAMA}/qnn_llama_runner", *runner]
    sources.append(f"{WHISPER}/qnn_whisper_runner")
    sources.append(f"{EXAMPLES}/qaihub_scripts/llama/qaihub_llama3_8b_runner")
    modules = ("utils", "scripts/export_example", "scripts/deeplab_v3", "oss_scripts/llama/llama")
    return {
        **{f"{path}.cpp": "// runner\n" for path in sources},
        **{f"{path}.h": "#pragma once\n" for path in runner},
        **{f"{EXAMPLES}/{name}.py": "# module\n" for name in modules},
        f"{EXAMPLES}/BUCK": _BUCK_EXAMPLES,
        f"{EXAMPLES}/executor_runner/BUCK": _BUCK_FILE,
        f"{EXAMPLES}/executor_runner/targets.bzl": _BUCK_RUNNER,
        f"{LLAMA}/BUCK": _BUCK_FILE,
        f"{LLAMA}/targets.bzl": _BUCK_LLAMA,
        f"{WHISPER}/BUCK": _BUCK_FILE,
        f"{WHISPER}/targets.bzl": _BUCK_LLAMA.replace("llama", "whisper"),
        f"{EXAMPLES}/CMakeLists.txt": _CMAKE_EXAMPLES,
        f"{EXAMPLES}/executor_runner/CMakeLists.txt": _CMAKE_RUNNER,
        f"{LLAMA}/CMakeLists.txt": _CMAKE_LLAMA,
        f"{WHISPER}/CMakeLists.txt": (
            _CMAKE_LLAMA.replace("llama", "whisper")
            .replace("decoder_runner", "decoder")
            .replace("kv_manager", "encoder")
        ),
        f"{EXAMPLES}/qaihub_scripts/llama/CMakeLists.txt": (
            "add_executable(qaihub_llama3_8b_runner qaihub_llama3_8b_runner.cpp)\n"
        ),
    }


_BUCK_EXAMPLES = """\
load("@fbcode_macros//build_defs:build_file_migration.bzl", "fbcode_target")
load("@fbcode_macros//build_defs:python_binary.bzl", "python_binary")
load("@fbsource//xplat/executorch/backends/qualcomm/qnn_version.bzl", "get_qnn_library_version")
load("@fbsource//xplat/executorch/build:runtime_wrapper.bzl", "runtime")

fbcode_target(_kind = python_binary,
    name = "export_example",
    srcs = ["scripts/export_example.py"],
    deps = [
        "//executorch/backends/qualcomm/quantizer:quantizer",
        "//executorch/extension/pybindings:aten_lib",
    ],
)

fbcode_target(_kind = runtime.command_alias,
    name = "export_example_qnn",
    env = {"QNN_SDK_ROOT": "$(location fbsource//third-party/qualcomm/qnn/qnn-{0}:__dir__)".format(
        get_qnn_library_version(),
    )},
    exe = ":export_example",
)

fbcode_target(_kind = runtime.python_library,
    name = "utils",
    srcs = ["utils.py"],
    deps = ["//executorch/backends/qualcomm/debugger:debugger"],
)
"""

_BUCK_RUNNER = (
    _LOAD_PLATFORMS
    + _LOAD_RUNTIME
    + """
def define_common_targets():
    runtime.cxx_binary(
        name = "qnn_executor_runner",
        srcs = ["qnn_executor_runner.cpp"],
        deps = [
            "//executorch/backends/qualcomm/runtime:runtime",
            "//executorch/kernels/quantized:generated_lib",
        ],
        platforms = [ANDROID],
        external_deps = ["gflags"],
    )
"""
)

_BUCK_LLAMA = """\
load("@fbsource//tools/build_defs:default_platform_defs.bzl", "ANDROID")
load("@fbsource//xplat/executorch/build:runtime_wrapper.bzl", "get_oss_build_kwargs", "runtime")

def define_common_targets():
    runtime.cxx_library(
        name = "runner_lib",
        srcs = glob(["runner/*.cpp"]),
        exported_headers = glob(["runner/*.h"]),
        compiler_flags = ["-Wno-global-constructors"],
        exported_deps = ["//executorch/backends/qualcomm/runtime:runtime"],
        platforms = [ANDROID],
        **get_oss_build_kwargs()
    )

    runtime.cxx_binary(
        name = "qnn_llama_runner",
        srcs = ["qnn_llama_runner.cpp"],
        deps = [":runner_lib"],
        platforms = [ANDROID],
        **get_oss_build_kwargs()
    )
"""

_CMAKE_EXAMPLES = """\
set(CMAKE_CXX_STANDARD 17)
cmake_minimum_required(VERSION 3.19)
project(qualcomm_runner_example)

if(NOT EXECUTORCH_ROOT)
  set(EXECUTORCH_ROOT ${CMAKE_CURRENT_SOURCE_DIR}/../..)
endif()
include(${EXECUTORCH_ROOT}/tools/cmake/Utils.cmake)

find_package(executorch CONFIG REQUIRED)
target_compile_options(executorch INTERFACE -DET_EVENT_TRACER_ENABLED)
find_package(gflags REQUIRED)

get_filename_component(
  EXECUTORCH_SOURCE_DIR "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE
)
set(_common_compile_options -Wno-deprecated-declarations -fPIC)
set(_common_include_directories ${EXECUTORCH_ROOT}/..)

add_subdirectory(${CMAKE_CURRENT_SOURCE_DIR}/executor_runner)
add_subdirectory(${CMAKE_CURRENT_SOURCE_DIR}/oss_scripts/llama)
add_subdirectory(${CMAKE_CURRENT_SOURCE_DIR}/oss_scripts/whisper)
add_subdirectory(${CMAKE_CURRENT_SOURCE_DIR}/qaihub_scripts/llama)
"""

_CMAKE_RUNNER = """\
set(_qnn_executor_runner__srcs ${_executor_runner__srcs})
list(TRANSFORM _qnn_executor_runner__srcs PREPEND "${EXECUTORCH_SOURCE_DIR}/")
list(FILTER _qnn_executor_runner__srcs EXCLUDE REGEX ".*executor_runner.cpp$")
list(PREPEND _qnn_executor_runner__srcs
     ${CMAKE_CURRENT_LIST_DIR}/qnn_executor_runner.cpp
)
add_executable(qnn_executor_runner ${_qnn_executor_runner__srcs})
target_include_directories(
  qnn_executor_runner PUBLIC ${_common_include_directories}
)
target_link_libraries(
  qnn_executor_runner qnn_executorch_backend etdump gflags
)
"""

_CMAKE_LLAMA = """\
set(_llama_runner__srcs
    ${CMAKE_CURRENT_LIST_DIR}/qnn_llama_runner.cpp
    ${CMAKE_CURRENT_LIST_DIR}/runner/decoder_runner.cpp
    ${CMAKE_CURRENT_LIST_DIR}/runner/decoder_runner.h
    ${CMAKE_CURRENT_LIST_DIR}/runner/kv_manager.cpp
    ${CMAKE_CURRENT_LIST_DIR}/runner/kv_manager.h
    ${CMAKE_CURRENT_LIST_DIR}/runner/runner.cpp
    ${CMAKE_CURRENT_LIST_DIR}/runner/runner.h
)
add_executable(qnn_llama_runner ${_llama_runner__srcs})
target_include_directories(
  qnn_llama_runner PUBLIC ${_common_include_directories}
)
target_link_libraries(
  qnn_llama_runner qnn_executorch_backend executorch_core extension_tensor gflags
)
target_compile_options(qnn_llama_runner PUBLIC ${_common_compile_options})
"""


def _pins() -> dict[str, str]:
    return {
        f"{QUALCOMM}/scripts/qnn_config.sh": (
            '#!/bin/bash\nQNN_VERSION="2.37.0.250724"\nHEXAGON_SDK_VERSION="6.5.0.0"\n'
        ),
        f"{QUALCOMM}/scripts/download_qnn_sdk.py": 'VERSION = CONFIG.get("QNN_VERSION", "2.37.0.250724")\n',
        f"{QUALCOMM}/scripts/install_qnn_sdk.sh": 'setup_android_ndk() {\n    NDK_VERSION="r26c"\n}\n',
        ".ci/docker/build.sh": (
            "case $1 in\n  *-android)\n    ANDROID_NDK_VERSION=r28c\n    ;;\n"
            "  *-qnn-sdk)\n    ANDROID_NDK_VERSION=r26c\n    ;;\nesac\n"
        ),
        "docs/source/backends-qualcomm.md": (
            "# Qualcomm AI Engine Backend\n\n"
            "- [Android NDK](https://developer.android.com/ndk). This example is verified with NDK 26c.\n"
            "- [QNN 2.37.0](https://softwarecenter.qualcomm.com/api/download/software/sdks/"
            "Qualcomm_AI_Runtime_Community/All/2.37.0.250724/v2.37.0.250724.zip) is what we test with.\n"
        ),
    }
