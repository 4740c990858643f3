# Keep registrations that nothing refers to.
function(executorch_target_link_options_shared_lib target_name)
  target_link_options(${target_name} INTERFACE "SHELL:LINKER:--whole-archive")
endfunction()
