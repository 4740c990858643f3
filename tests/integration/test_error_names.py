"""The numbers that QNN's own libraries name are those of manifests/diagnose.toml."""

from __future__ import annotations

from ci.diagnose.logs import data_type_name
from ci.diagnose.rules import table
from tests.support.error_names import error_names
from tests.support.sdk import sdk_root


def test_the_table_of_error_codes_is_the_librarys() -> None:
    names = error_names(sdk_root() / "lib" / "x86_64-linux-clang" / "libQnnHtp.so")
    assert len(names) > 90
    assert {code: table().codes.get(code) for code in names} == names


def test_the_table_of_data_types_is_the_wheels() -> None:
    from executorch.backends.qualcomm.python import PyQnnManagerAdaptor

    for name, value in PyQnnManagerAdaptor.Qnn_DataType_t.__members__.items():
        known = data_type_name(int(value)).partition(" ")[0]
        assert int(value) == 0x7FFFFFFF or f"QNN_DATATYPE_{known}" == name
