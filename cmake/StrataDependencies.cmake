# Libraries from the distribution. jobs/setup/install-packages.sh lists their Debian packages.
find_package(PkgConfig REQUIRED)
find_package(MPI REQUIRED COMPONENTS C)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(ZLIB REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(Boost REQUIRED COMPONENTS program_options)

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

# The serial build: it is the thread-safe one. find_package(HDF5) may pick the parallel one.
pkg_check_modules(STRATA_HDF5 REQUIRED hdf5-serial)
add_library(strata_hdf5 INTERFACE)
target_include_directories(strata_hdf5 SYSTEM INTERFACE ${STRATA_HDF5_INCLUDE_DIRS})
target_link_directories(strata_hdf5 INTERFACE ${STRATA_HDF5_LIBRARY_DIRS})
target_link_libraries(strata_hdf5 INTERFACE ${STRATA_HDF5_LIBRARIES})

pkg_check_modules(STRATA_HWLOC REQUIRED hwloc)
add_library(strata_hwloc INTERFACE)
target_include_directories(strata_hwloc SYSTEM INTERFACE ${STRATA_HWLOC_INCLUDE_DIRS})
target_link_libraries(strata_hwloc INTERFACE ${STRATA_HWLOC_LIBRARIES})

pkg_check_modules(STRATA_XXHASH REQUIRED libxxhash)
add_library(strata_xxhash INTERFACE)
target_link_libraries(strata_xxhash INTERFACE ${STRATA_XXHASH_LIBRARIES})

pkg_check_modules(STRATA_UTF8PROC REQUIRED libutf8proc)
add_library(strata_utf8proc INTERFACE)
target_include_directories(strata_utf8proc SYSTEM INTERFACE ${STRATA_UTF8PROC_INCLUDE_DIRS})
target_link_libraries(strata_utf8proc INTERFACE ${STRATA_UTF8PROC_LIBRARIES})

pkg_check_modules(STRATA_TURBOJPEG REQUIRED libturbojpeg)
add_library(strata_turbojpeg INTERFACE)
target_link_libraries(strata_turbojpeg INTERFACE ${STRATA_TURBOJPEG_LIBRARIES})

pkg_check_modules(STRATA_PNG REQUIRED libpng)
add_library(strata_png INTERFACE)
target_include_directories(strata_png SYSTEM INTERFACE ${STRATA_PNG_INCLUDE_DIRS})
target_link_libraries(strata_png INTERFACE ${STRATA_PNG_LIBRARIES})

find_path(STRATA_RANDOM123_INCLUDE Random123/philox.h)
if(NOT STRATA_RANDOM123_INCLUDE)
  message(FATAL_ERROR "Random123/philox.h not found: install librandom123-dev")
endif()
add_library(strata_random123 INTERFACE)
target_include_directories(strata_random123 SYSTEM INTERFACE ${STRATA_RANDOM123_INCLUDE})
