# Compares PAGE with what PROGRAM prints for "help reference".
execute_process(COMMAND ${PROGRAM} help reference OUTPUT_FILE ${SCRATCH} RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "\"strata help reference\" ended with ${status}")
endif()
execute_process(COMMAND ${CMAKE_COMMAND} -E compare_files ${SCRATCH} ${PAGE} RESULT_VARIABLE status ERROR_QUIET)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${PAGE} is not what the program prints; write it anew: strata help reference > docs/configuration.md")
endif()
