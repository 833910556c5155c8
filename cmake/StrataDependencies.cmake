# Libraries from the distribution. jobs/setup/install-packages.sh lists their Debian packages.

# strata_found(name version tested...): says a library's version, and with which the tests were run.
function(strata_found name version)
  list(JOIN ARGN ", " tested)
  message(STATUS "${name} ${version} (tested: ${tested})")
endfunction()

# strata_header_version(variable header name...): the numbers of these macros, as in 3.7.2.
function(strata_header_version variable header)
  set(version)
  foreach(name ${ARGN})
    file(STRINGS ${header} line REGEX "define +${name} +[0-9]+" LIMIT_COUNT 1)
    string(REGEX REPLACE ".*${name} +([0-9]+).*" "\\1" number "${line}")
    list(APPEND version ${number})
  endforeach()
  list(JOIN version . version)
  set(${variable} ${version} PARENT_SCOPE)
endfunction()

find_package(PkgConfig REQUIRED)
find_package(MPI REQUIRED COMPONENTS C)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(ZLIB REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)

# Debian's package configuration of oneDNN asks for OpenCL, which its CPU engine does not need.
find_path(STRATA_DNNL_INCLUDE dnnl.hpp)
find_library(STRATA_DNNL_LIBRARY dnnl)
if(NOT STRATA_DNNL_INCLUDE OR NOT STRATA_DNNL_LIBRARY)
  message(FATAL_ERROR "oneDNN (dnnl.hpp, libdnnl) not found: install libdnnl-dev")
endif()
strata_header_version(STRATA_DNNL_VERSION ${STRATA_DNNL_INCLUDE}/oneapi/dnnl/dnnl_version.h
  DNNL_VERSION_MAJOR DNNL_VERSION_MINOR DNNL_VERSION_PATCH)
if(NOT STRATA_DNNL_VERSION VERSION_GREATER_EQUAL 2.5 OR NOT STRATA_DNNL_VERSION VERSION_LESS 4)
  message(FATAL_ERROR "oneDNN in ${STRATA_DNNL_INCLUDE} is \"${STRATA_DNNL_VERSION}\"; strata needs 2.5 or higher, or 3: name "
    "another one by -DSTRATA_DNNL_INCLUDE=DIR and -DSTRATA_DNNL_LIBRARY=FILE")
endif()
add_library(strata_dnnl INTERFACE)
target_include_directories(strata_dnnl SYSTEM INTERFACE ${STRATA_DNNL_INCLUDE})
target_link_libraries(strata_dnnl INTERFACE ${STRATA_DNNL_LIBRARY})

# The plain C interface only: without this mpi.h asks for the old C++ bindings.
add_library(strata_mpi INTERFACE)
target_link_libraries(strata_mpi INTERFACE MPI::MPI_C)
target_compile_definitions(strata_mpi INTERFACE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)

# strata_package(name module...)
#   Target strata_<name>: the library that pkg-config knows as one of the modules, the first of them that it has.
function(strata_package name)
  pkg_search_module(PACKAGE_${name} REQUIRED ${ARGN})
  add_library(strata_${name} INTERFACE)
  target_include_directories(strata_${name} SYSTEM INTERFACE ${PACKAGE_${name}_INCLUDE_DIRS})
  target_link_directories(strata_${name} INTERFACE ${PACKAGE_${name}_LIBRARY_DIRS})
  target_link_libraries(strata_${name} INTERFACE ${PACKAGE_${name}_LIBRARIES})
endfunction()

# The serial build, Debian's hdf5-serial: it is the thread-safe one. find_package(HDF5) may pick the parallel one.
strata_package(hdf5 hdf5-serial hdf5)
strata_package(hwloc hwloc)
strata_package(xxhash libxxhash)
strata_package(utf8proc libutf8proc)
strata_package(pcre2 "libpcre2-8>=10.40")  # with properties such as White_Space
strata_package(turbojpeg libturbojpeg)
strata_package(png libpng)
strata_package(zstd libzstd)

# Optional. Not by pkg-config, which would link the trainer too.
find_path(STRATA_SENTENCEPIECE_INCLUDE sentencepiece_processor.h)
find_library(STRATA_SENTENCEPIECE_LIBRARY sentencepiece)
add_library(strata_sentencepiece INTERFACE)
if(STRATA_SENTENCEPIECE_INCLUDE AND STRATA_SENTENCEPIECE_LIBRARY)
  target_include_directories(strata_sentencepiece SYSTEM INTERFACE ${STRATA_SENTENCEPIECE_INCLUDE})
  target_link_libraries(strata_sentencepiece INTERFACE ${STRATA_SENTENCEPIECE_LIBRARY})
  set(STRATA_HAVE_SENTENCEPIECE ON)
else()
  message(STATUS "SentencePiece: not found (libsentencepiece-dev); its tokenizers are left out")
endif()

find_path(STRATA_RANDOM123_INCLUDE Random123/philox.h)
if(NOT STRATA_RANDOM123_INCLUDE)
  message(FATAL_ERROR "Random123/philox.h not found: install librandom123-dev")
endif()
add_library(strata_random123 INTERFACE)
target_include_directories(strata_random123 SYSTEM INTERFACE ${STRATA_RANDOM123_INCLUDE})

strata_found(${CMAKE_CXX_COMPILER_ID} "${CMAKE_CXX_COMPILER_VERSION}" "GNU 12.2" "GNU 14.2")
if(MPI_C_HEADER_DIR AND EXISTS ${MPI_C_HEADER_DIR}/mpi.h)
  strata_header_version(mpi ${MPI_C_HEADER_DIR}/mpi.h OMPI_MAJOR_VERSION OMPI_MINOR_VERSION OMPI_RELEASE_VERSION)
endif()
strata_found("Open MPI" "${mpi}" 4.1.4 5.0.7)
strata_found(oneDNN "${STRATA_DNNL_VERSION}" 2.6.3 3.7.2)
strata_found(HDF5 "${PACKAGE_hdf5_VERSION}" 1.10.8 1.14.5)
strata_found(fmt "${fmt_VERSION}" 9.1.0 10.1.0)
strata_found(nlohmann/json "${nlohmann_json_VERSION}" 3.11.2 3.11.3)
strata_found(hwloc "${PACKAGE_hwloc_VERSION}" 2.9.0 2.12.0)
strata_found(PCRE2 "${PACKAGE_pcre2_VERSION}" 10.42 10.46)
strata_found(utf8proc "${PACKAGE_utf8proc_VERSION}" 2.6.0 3.0.0)
strata_found(xxHash "${PACKAGE_xxhash_VERSION}" 0.8.1 0.8.3)
strata_found(libjpeg-turbo "${PACKAGE_turbojpeg_VERSION}" 2.1.5)
strata_found(libpng "${PACKAGE_png_VERSION}" 1.6.39 1.6.48)
strata_found(zlib "${ZLIB_VERSION_STRING}" 1.2.13 1.3.1)
strata_found(zstd "${PACKAGE_zstd_VERSION}" 1.5.4 1.5.7)
