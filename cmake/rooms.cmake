# flotilla_room(<name> SOURCES ... [LINKS ...] [PRIVATE_LINKS ...] [TORCH])
# One static library a folder of src/. LINKS is the rule of who may include whom: tests/house/include_table_test.py
# compares it and the #include lines with docs/architecture.md's table. TORCH: the room has tensors, so it gets
# LibTorch and the precompiled ATen header.
function(flotilla_room name)
  cmake_parse_arguments(ARG "TORCH" "" "SOURCES;LINKS;PRIVATE_LINKS" ${ARGN})
  add_library(flotilla_${name} STATIC ${ARG_SOURCES})
  add_library(flotilla::${name} ALIAS flotilla_${name})
  target_include_directories(flotilla_${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>)
  target_compile_features(flotilla_${name} PUBLIC cxx_std_20)
  flotilla_install_library(flotilla_${name} ${name})
  list(TRANSFORM ARG_LINKS REPLACE "^([a-z_]+)$" "flotilla::\\1")
  target_link_libraries(flotilla_${name} PUBLIC ${ARG_LINKS} PRIVATE ${ARG_PRIVATE_LINKS} flotilla_flags)
  if(ARG_TORCH)
    target_link_libraries(flotilla_${name} PUBLIC flotilla::torch)
    target_precompile_headers(flotilla_${name} REUSE_FROM flotilla_pch)
  endif()
endfunction()

# flotilla_test(<name> SOURCES ... LINKS ... [LABEL unit|golden|slow|gpu|mpi2|mpi4])
# One GoogleTest program; its cases appear one by one in CTest. Those that start ranks (mpi*, slow) run
# one at a time, since they count seconds and what is left behind, but beside others.
function(flotilla_test name)
  cmake_parse_arguments(ARG "NO_TORCH" "LABEL;TIMEOUT" "SOURCES;LINKS" ${ARGN})
  if(NOT ARG_LABEL)
    set(ARG_LABEL unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  list(TRANSFORM ARG_LINKS REPLACE "^([a-z_]+)$" "flotilla::\\1")
  target_link_libraries(${name} PRIVATE ${ARG_LINKS} GTest::gtest GTest::gmock flotilla_flags)
  if(ARG_NO_TORCH)
    target_link_libraries(${name} PRIVATE GTest::gtest_main)
  else()
    target_link_libraries(${name} PRIVATE flotilla::test_support)
    target_precompile_headers(${name} REUSE_FROM flotilla_pch)
  endif()
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_compile_definitions(${name} PRIVATE
    FLOTILLA_SOURCE_DIR="${PROJECT_SOURCE_DIR}" FLOTILLA_BINARY_DIR="${PROJECT_BINARY_DIR}")
  set(lock)
  if(ARG_LABEL MATCHES "^(mpi|slow)")
    set(lock RESOURCE_LOCK ranks)
  endif()
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 120
    PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT} ${lock})
endfunction()

# flotilla_mpi_test(<name> RANKS 2 4 ... SOURCES ... LINKS ... [TIMEOUT s])
# One GoogleTest program with the MPI main of tests/support; for each rank count one CTest entry
# <name>.np<count> with the label mpi<count>. A count of 1 runs without a launcher, label unit.
function(flotilla_mpi_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "RANKS;SOURCES;LINKS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 180)
  endif()
  add_executable(${name} ${ARG_SOURCES} ${PROJECT_SOURCE_DIR}/tests/support/mpi_main.cpp)
  list(TRANSFORM ARG_LINKS REPLACE "^([a-z_]+)$" "flotilla::\\1")
  target_link_libraries(${name} PRIVATE ${ARG_LINKS} flotilla::comm flotilla::test_support GTest::gtest
                                        GTest::gmock flotilla_flags)
  target_precompile_headers(${name} REUSE_FROM flotilla_pch)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_compile_definitions(${name} PRIVATE
    FLOTILLA_SOURCE_DIR="${PROJECT_SOURCE_DIR}" FLOTILLA_BINARY_DIR="${PROJECT_BINARY_DIR}")
  foreach(ranks ${ARG_RANKS})
    if(ranks EQUAL 1)
      add_test(NAME ${name}.np1 COMMAND ${name})
      set_tests_properties(${name}.np1 PROPERTIES LABELS unit)
    else()
      add_test(NAME ${name}.np${ranks}
        COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks} $<TARGET_FILE:${name}>)
      set_tests_properties(${name}.np${ranks} PROPERTIES LABELS mpi${ranks})
    endif()
    set_tests_properties(${name}.np${ranks} PROPERTIES RUN_SERIAL ON TIMEOUT ${ARG_TIMEOUT}
      ENVIRONMENT "${FLOTILLA_MPI_TEST_ENVIRONMENT}")
  endforeach()
endfunction()

# More ranks than cores, as root in a container too; Open MPI itself leaks a little.
set(FLOTILLA_MPI_TEST_ENVIRONMENT OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none OMP_NUM_THREADS=1
    ASAN_OPTIONS=detect_leaks=0)
