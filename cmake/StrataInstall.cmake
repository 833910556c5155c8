# What cmake --install writes. Component "program" is what a package holds.
set(STRATA_MODULES "" CACHE STRING "Modules that strata's modulefile loads, as in openmpi/4.1;cuda/12.8")

install(TARGETS strata RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
install(DIRECTORY jobs/ DESTINATION ${CMAKE_INSTALL_DATADIR}/strata/jobs COMPONENT program
  FILES_MATCHING PATTERN "*.ini" PATTERN "*.sbatch" PATTERN setup EXCLUDE)
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program)
foreach(variable PROJECT_VERSION PROJECT_DESCRIPTION CMAKE_INSTALL_BINDIR CMAKE_INSTALL_MANDIR CMAKE_INSTALL_DATADIR)
  string(REGEX REPLACE "^(CMAKE_INSTALL|PROJECT)_" "STRATA_" name ${variable})
  install(CODE "set(${name} [[${${variable}}]])" COMPONENT program)
endforeach()
install(CODE "set(STRATA_MODULES [[${STRATA_MODULES}]])
set(STRATA_PROGRAM [[$<TARGET_FILE:strata>]])
set(STRATA_SCRATCH [[${CMAKE_BINARY_DIR}/install]])
set(STRATA_TEMPLATES [[${CMAKE_SOURCE_DIR}/packaging]])" COMPONENT program)
install(SCRIPT cmake/install_text.cmake COMPONENT program)
