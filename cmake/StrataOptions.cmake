# Compiler options of every target of ours: C++20, warnings, sanitizers, and floating-point
# settings under which a vector loop and its scalar tail give the same bits (docs/numerics.md).
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
# An installed program finds libraries where it was linked, as those of a cluster's modules.
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

# Compilers are called through ccache where it is installed. -DCMAKE_CXX_COMPILER_LAUNCHER= leaves it out, for nvcc too.
find_program(STRATA_CCACHE ccache)
if(STRATA_CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${STRATA_CCACHE})
endif()
if(NOT DEFINED CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()
if(CMAKE_CXX_COMPILER_LAUNCHER)
  message(STATUS "Compiler cache: ${CMAKE_CXX_COMPILER_LAUNCHER}")
else()
  message(STATUS "Compiler cache: none")
endif()

# -Wrestrict: GCC 12 warns falsely inside std::string (its bug 105651).
add_library(strata_options INTERFACE)
target_compile_options(strata_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic $<$<BOOL:${STRATA_WERROR}>:-Werror> -Wshadow -Wconversion -Wno-sign-conversion -Wno-restrict
    -Wno-missing-field-initializers -Wnon-virtual-dtor -Wold-style-cast -Woverloaded-virtual
    -ffp-contract=off -fno-math-errno -fno-trapping-math>)

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # The compiler collects its garbage from 512 MiB on, not from a tenth of that: a sixth less time.
  target_compile_options(strata_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=524288>)
endif()

if(CMAKE_UNITY_BUILD)
  # A class of a .cpp file looks like a header's where that file is included.
  target_compile_options(strata_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
endif()

if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # Older versions build for fuzzing only. Lambdas capture structured bindings under their own names, which clang 14 needs and
  # clang 19 takes for shadowing; GCC finds what shadows.
  set(off -Wno-everything)
  if(CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 19)
    set(off -Wno-shadow -Wno-unknown-warning-option)
  endif()
  target_compile_options(strata_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${off}>")
endif()

set(march ${STRATA_MARCH})
if(NOT march AND CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
  set(march x86-64-v3)
elseif(NOT march AND CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
  set(march armv8-a)
endif()
if(march)
  target_compile_options(strata_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=${march}>)
endif()
set(STRATA_MARCH_USED "${march}")

if(STRATA_SANITIZE)
  target_compile_options(strata_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${STRATA_SANITIZE} -fno-omit-frame-pointer>)
  target_link_options(strata_options INTERFACE -fsanitize=${STRATA_SANITIZE})
  # GCC's sanitizer instrumentation raises false alarms in this warning.
  target_compile_options(strata_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized>)
  if(STRATA_SANITIZE MATCHES undefined)
    target_compile_options(strata_options INTERFACE
      $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=all>)
    # A failed check is an illegal instruction, of which AddressSanitizer prints the stack. Calls, which name the check, take
    # a quarter of the compile time. GCC leaves out the check of an object's dynamic type.
    if(NOT STRATA_FUZZ)
      target_compile_options(strata_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize-undefined-trap-on-error>)
    endif()
    # This check takes a sixth of the compile time. An access by a null pointer ends the test in any case.
    target_compile_options(strata_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=null>)
  endif()
endif()
if(CMAKE_BUILD_TYPE STREQUAL "Debug")
  target_compile_definitions(strata_options INTERFACE _GLIBCXX_ASSERTIONS)
endif()
