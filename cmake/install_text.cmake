# Part of cmake --install: manual pages and completions, which the program prints, and modulefiles with the prefix.
file(REMOVE_RECURSE ${STRATA_SCRATCH})
file(MAKE_DIRECTORY ${STRATA_SCRATCH})

# strata_install_text(DIRECTORY FILE ARGUMENT...): what "strata help ARGUMENT..." prints.
function(strata_install_text directory file)
  execute_process(COMMAND ${STRATA_PROGRAM} help ${ARGN} OUTPUT_FILE ${STRATA_SCRATCH}/${file}
    COMMAND_ERROR_IS_FATAL ANY)
  file(INSTALL ${STRATA_SCRATCH}/${file} DESTINATION ${CMAKE_INSTALL_PREFIX}/${directory})
endfunction()

execute_process(COMMAND ${STRATA_PROGRAM} help man OUTPUT_VARIABLE pages COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^\n]+" pages "${pages}")
foreach(page ${pages})
  strata_install_text(${STRATA_MANDIR}/man1 ${page}.1 man ${page})
endforeach()
strata_install_text(${STRATA_DATADIR}/bash-completion/completions strata completion bash)

get_filename_component(STRATA_ROOT "${CMAKE_INSTALL_PREFIX}" ABSOLUTE)
set(zsh site-functions)
if(STRATA_ROOT STREQUAL "/usr" AND EXISTS /etc/debian_version)
  set(zsh vendor-completions)
endif()
strata_install_text(${STRATA_DATADIR}/zsh/${zsh} _strata completion zsh)

# On the default paths nothing has to be loaded.
if(NOT STRATA_ROOT STREQUAL "/usr")
  foreach(module ${STRATA_MODULES})
    string(APPEND STRATA_LOADS_LUA "depends_on(\"${module}\")\n")
    string(APPEND STRATA_LOADS_TCL "module load ${module}\n")
  endforeach()
  configure_file(${STRATA_TEMPLATES}/modulefile.lua.in ${STRATA_SCRATCH}/${STRATA_VERSION}.lua @ONLY)
  configure_file(${STRATA_TEMPLATES}/modulefile.tcl.in ${STRATA_SCRATCH}/${STRATA_VERSION} @ONLY)
  file(INSTALL ${STRATA_SCRATCH}/${STRATA_VERSION}.lua ${STRATA_SCRATCH}/${STRATA_VERSION}
    DESTINATION ${CMAKE_INSTALL_PREFIX}/${STRATA_DATADIR}/modulefiles/strata)
endif()
