load("@fbsource//xplat/executorch/build:runtime_wrapper.bzl", "runtime")
load("@fbcode_macros//build_defs:export_files.bzl", "export_file")

def define_common_targets():
    export_file(name = "qc_compiler_spec_schema", src = "qc_compiler_spec.fbs")
    runtime.python_library(
        name = "serialization",
        srcs = glob(["*.py"]),
        resources = {":qc_compiler_spec_schema": "qc_compiler_spec.fbs"},
    )
