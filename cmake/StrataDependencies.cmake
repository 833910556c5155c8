# Libraries from the distribution. jobs/setup/install-packages.sh lists their Debian packages.
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
add_library(strata_dnnl INTERFACE)
target_include_directories(strata_dnnl SYSTEM INTERFACE ${STRATA_DNNL_INCLUDE})
target_link_libraries(strata_dnnl INTERFACE ${STRATA_DNNL_LIBRARY})

# The plain C interface only: without this mpi.h asks for the old C++ bindings.
add_library(strata_mpi INTERFACE)
target_link_libraries(strata_mpi INTERFACE MPI::MPI_C)
target_compile_definitions(strata_mpi INTERFACE OMPI_SKIP_MPICXX)

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
