load(
    "@fbsource//tools/build_defs:default_platform_defs.bzl",
    "ANDROID",
    "CXX",
)
load("@fbsource//xplat/executorch/build:runtime_wrapper.bzl", "runtime")
load("@fbsource//xplat/executorch/backends/qualcomm/third-party:third_party_libs.bzl", "qnn_third_party_dep")

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
                "ovr_config//os:android": ["-Wall"],
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
