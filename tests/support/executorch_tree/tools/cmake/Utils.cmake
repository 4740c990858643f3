# What a library registers when it is loaded would be dropped by a linker that sees no symbol used.
function(executorch_target_link_options_shared_lib name)
  target_link_options(${name} INTERFACE "SHELL:LINKER:--no-as-needed")
endfunction()
