# The cases of unit_comm between MPI ranks.
add_executable(comm_mpi_test mpi/comm_mpi_test.cpp unit/comm/comm_cases.cpp
  unit/comm/comm_sum_cases.cpp unit/comm/comm_window_cases.cpp)
target_link_libraries(comm_mpi_test PRIVATE strata_comm strata_options)
set(strata_mpi_environment
  "OMP_NUM_THREADS=1;OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;OMPI_MCA_mpi_yield_when_idle=1;OMPI_MCA_rmaps_base_oversubscribe=1;OMPI_MCA_hwloc_base_binding_policy=none;PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe;PRTE_MCA_hwloc_default_binding_policy=none")
foreach(ranks 2 3 4 6)
  add_test(NAME mpi.comm_${ranks}
    COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks} $<TARGET_FILE:comm_mpi_test>)
  # Ranks may outnumber the cores, so they give way while they wait.
  set_tests_properties(mpi.comm_${ranks} PROPERTIES TIMEOUT 900 LABELS mpi.comm
    ENVIRONMENT "${strata_mpi_environment}")
endforeach()

# strata plan --calibrate with small models.
add_executable(calibrate_mpi_test mpi/calibrate_mpi_test.cpp)
target_include_directories(calibrate_mpi_test PRIVATE ${CMAKE_SOURCE_DIR}/src/app)
target_link_libraries(calibrate_mpi_test PRIVATE strata_app strata_options)
foreach(ranks 1 3)
  add_test(NAME mpi.calibrate_${ranks}
    COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks} $<TARGET_FILE:calibrate_mpi_test>
            ${CMAKE_CURRENT_BINARY_DIR}/calibrate-${ranks})
  set_tests_properties(mpi.calibrate_${ranks} PROPERTIES TIMEOUT 900 LABELS "mpi.app;full"
    ENVIRONMENT "${strata_mpi_environment}")
endforeach()

# NCCL's communicator against MPI's; skipped, with a line, where there is no GPU.
if(STRATA_HAVE_NCCL AND STRATA_KERNELS STREQUAL "nvcc")
  add_executable(gpu_comm mpi/nccl_mpi_test.cpp)
  target_link_libraries(gpu_comm PRIVATE strata_comm strata_options)
  foreach(ranks 2 4)
    add_test(NAME gpu.comm_${ranks}
      COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks} $<TARGET_FILE:gpu_comm>)
    set_tests_properties(gpu.comm_${ranks} PROPERTIES TIMEOUT 300 LABELS "gpu.comm;full"
      SKIP_REGULAR_EXPRESSION "SKIPPED" ENVIRONMENT "${strata_mpi_environment}")
  endforeach()
endif()
