load(
    "@fbsource//tools/build_defs:default_platform_defs.bzl",
    "ANDROID",
    "CXX",
)
load("@fbsource//xplat/executorch/build:runtime_wrapper.bzl", "runtime")

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
            "--gen-mutable",
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
