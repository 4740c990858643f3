include(${EXECUTORCH_ROOT}/tools/cmake/Utils.cmake)

function(executorch_load_build_variables)
  set(_lists ${EXECUTORCH_ROOT}/shim_et/xplat/executorch/build/build_variables.bzl)
  configure_file(${_lists} ${PROJECT_BINARY_DIR}/build_variables.bzl COPYONLY)
  foreach(list EXECUTOR_RUNNER)
    execute_process(
      COMMAND
        "${PYTHON_EXECUTABLE}" -c
        "exec(open('${_lists}').read());print(';'.join(${list}_SRCS))"
      RESULT_VARIABLE _failed
      OUTPUT_VARIABLE _printed
    )
    if(NOT _failed EQUAL 0)
      message(FATAL_ERROR "${_lists} has no list ${list}_SRCS")
    endif()
    string(REPLACE "\n" "" _printed "${_printed}")
    string(TOLOWER ${list} _name)
    set(_${_name}__srcs "${_printed}" PARENT_SCOPE)
  endforeach()
endfunction()

function(gen_operators_lib)
  cmake_parse_arguments(GEN "" "LIB_NAME" "DEPS" ${ARGN})
  execute_process(
    COMMAND "${PYTHON_EXECUTABLE}" -c "import torchgen; print(torchgen.__path__[0])"
    OUTPUT_VARIABLE torchgen-out
  )
  file(GLOB_RECURSE _torchgen_srcs "${torchgen-out}/*.py")
  set(_register ${CMAKE_CURRENT_BINARY_DIR}/${GEN_LIB_NAME}/Register.cpp)
  add_custom_command(
    OUTPUT ${_register}
    COMMAND "${PYTHON_EXECUTABLE}" -m codegen.gen
            --tags-path=${torchgen-out}/tags.yaml --install-dir=${_register}
    DEPENDS ${_torchgen_srcs}
  )
  add_library(${GEN_LIB_NAME} ${_register})
  target_link_libraries(${GEN_LIB_NAME} PRIVATE ${GEN_DEPS})
  executorch_target_link_options_shared_lib(${GEN_LIB_NAME})
endfunction()
