# Keep registrations that nothing refers to.
function(executorch_target_link_options_shared_lib target_name)
  get_target_property(_type ${target_name} TYPE)
  if(_type STREQUAL "SHARED_LIBRARY")
    return()
  endif()
  target_link_options(${target_name} INTERFACE "SHELL:LINKER:--whole-archive")
endfunction()

function(resolve_python_executable)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  set(PYTHON_EXECUTABLE ${Python3_EXECUTABLE} PARENT_SCOPE)
endfunction()
