include("${CMAKE_CURRENT_LIST_DIR}/ExecuTorchTargets.cmake")
