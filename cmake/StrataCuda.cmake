# The CUDA part: built where nvcc is found, left out, with a line saying so, where it is not.
set(STRATA_HAVE_CUDA OFF)
set(STRATA_HAVE_NCCL OFF)
set(STRATA_HAVE_CUDNN OFF)
set(STRATA_CUDA_VERSION "")

if(NOT STRATA_CUDA)
  message(STATUS "CUDA: switched off by STRATA_CUDA=OFF; building for CPU only")
  return()
endif()

find_program(STRATA_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda/bin PATH_SUFFIXES bin)
if(NOT STRATA_NVCC)
  message(STATUS "CUDA: nvcc not found (looked on PATH, CUDA_HOME and /usr/local/cuda/bin); building for CPU only")
  return()
endif()

# Set before the language is enabled, else the default is sm_75.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80 90)
endif()
foreach(architecture ${CMAKE_CUDA_ARCHITECTURES})
  if(architecture MATCHES "^[0-9]+" AND CMAKE_MATCH_0 LESS 80)
    message(FATAL_ERROR "CMAKE_CUDA_ARCHITECTURES has ${architecture}: strata's kernels need 80 (A100) or later")
  endif()
endforeach()
set(CMAKE_CUDA_COMPILER ${STRATA_NVCC})
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
# CMake before 3.26 knows no C++20 flag for nvcc.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
endif()
set(CMAKE_CUDA_STANDARD 20)
set(STRATA_HAVE_CUDA ON)
set(STRATA_CUDA_VERSION ${CUDAToolkit_VERSION})
message(STATUS "CUDA: ${CUDAToolkit_VERSION} (${STRATA_NVCC}), cuBLAS with it, architectures ${CMAKE_CUDA_ARCHITECTURES}")

# Warnings are errors. Products and sums are contracted only where the code says so, which keeps the bits of a loop the
# same as those of its tail (docs/cuda.md). fmt checks its formats while compiling, as it does under the host's
# compiler; it does not know that nvcc can.
set(STRATA_CUDA_OPTIONS -Werror=all-warnings --fmad=false --expt-relaxed-constexpr -DFMT_USE_CONSTEXPR=1
  -Xcompiler=-Wall,-Wextra,-Werror,-fno-math-errno)

# Headers and directories of libraries that are loaded at run time.
set(STRATA_CUDA_INCLUDE_DIRS ${CUDAToolkit_INCLUDE_DIRS})
set(STRATA_CUDA_LIBRARY_DIRS ${CUDAToolkit_LIBRARY_DIR})

macro(strata_find_cuda_library name header library)
  find_path(STRATA_${name}_INCLUDE ${header} HINTS ${CUDAToolkit_INCLUDE_DIRS} ENV ${name}_HOME PATH_SUFFIXES include)
  find_library(STRATA_${name}_LIBRARY ${library} HINTS ${CUDAToolkit_LIBRARY_DIR} ENV ${name}_HOME PATH_SUFFIXES lib lib64)
  if(STRATA_${name}_INCLUDE AND STRATA_${name}_LIBRARY)
    set(STRATA_HAVE_${name} ON)
    get_filename_component(directory ${STRATA_${name}_LIBRARY} DIRECTORY)
    list(APPEND STRATA_CUDA_INCLUDE_DIRS ${STRATA_${name}_INCLUDE})
    list(APPEND STRATA_CUDA_LIBRARY_DIRS ${directory})
    message(STATUS "${name}: ${STRATA_${name}_LIBRARY}")
  else()
    message(STATUS "${name}: not found (looked for ${header} beside the CUDA toolkit and in ${name}_HOME); left out")
  endif()
endmacro()
strata_find_cuda_library(NCCL nccl.h nccl)
strata_find_cuda_library(CUDNN cudnn.h cudnn)
if(STRATA_HAVE_CUDNN)
  file(STRINGS ${STRATA_CUDNN_INCLUDE}/cudnn_version.h cudnn_major REGEX "#define CUDNN_MAJOR [0-9]+")
  string(REGEX MATCH "[0-9]+$" cudnn_major "${cudnn_major}")
  if(cudnn_major LESS 9)
    set(STRATA_HAVE_CUDNN OFF)
    message(STATUS "CUDNN: version ${cudnn_major} is older than 9; left out")
  endif()
endif()
list(REMOVE_DUPLICATES STRATA_CUDA_INCLUDE_DIRS)
list(REMOVE_DUPLICATES STRATA_CUDA_LIBRARY_DIRS)
