# What cmake --install writes. Component "program" is what a package holds.
set(STRATA_MODULES "" CACHE STRING "Modules that strata's modulefile loads, as in openmpi/4.1;cuda/12.8")

install(FILES io/python/strata_reader.py io/python/strata_convert.py io/python/strata_chat.py
  io/python/torch_to_safetensors.py
  DESTINATION ${CMAKE_INSTALL_DATADIR}/strata/python COMPONENT program)
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

# find_package(strata): one target a room, as strata::train, with the libraries that it needs. Component "libraries".
install(TARGETS strata_options strata_dnnl strata_mpi strata_hdf5 strata_hwloc strata_xxhash strata_crypto strata_utf8proc
  strata_pcre2 strata_sentencepiece strata_turbojpeg strata_png strata_zstd strata_random123 EXPORT strata)
install(EXPORT strata NAMESPACE strata:: FILE strata-targets.cmake DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/strata
  COMPONENT libraries)
install(DIRECTORY include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT libraries)
include(CMakePackageConfigHelpers)
configure_package_config_file(cmake/strata-config.cmake.in strata-config.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/strata)
write_basic_package_version_file(strata-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/strata-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/strata-config-version.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/strata COMPONENT libraries)

# cpack -G DEB: the program as a Debian package. Its libraries become dependencies; CUDA's are loaded where they are found.
set(CPACK_GENERATOR DEB)
set(CPACK_COMPONENTS_ALL program)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGE_CONTACT "strata developers")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${PROJECT_DESCRIPTION})
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# Open MPI's library starts orted for a program that runs without mpirun.
set(CPACK_DEBIAN_PACKAGE_DEPENDS openmpi-bin)
include(CPack)
