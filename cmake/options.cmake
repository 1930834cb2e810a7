# Every option of the build, with its meaning, its values and its default.
option(FLOTILLA_CUDA "Build the CUDA code (ON needs nvcc 12.8 or newer and the CUDA wheels of LibTorch)" OFF)
set(FLOTILLA_CUDA_ARCHS "80-real;90a-real;100a-real;100-virtual" CACHE STRING
    "CUDA architectures, in the syntax of CMAKE_CUDA_ARCHITECTURES, which wins when it is given")
set(FLOTILLA_TORCH_ROOT "" CACHE PATH
    "Folder with include/ATen and lib/libtorch_cpu.so (empty: the torch package of python3)")
option(FLOTILLA_WERROR "Treat warnings as errors (ON in the presets debug and asan)" OFF)
set(FLOTILLA_SANITIZE "" CACHE STRING "Sanitizers for host code, as in -fsanitize= (e.g. address,undefined); empty: none")
option(FLOTILLA_TESTS "Build the tests" ON)
option(FLOTILLA_FUZZ "Build the fuzzers with the tests (they need libasan and libubsan; not with CUDA)" ON)

function(flotilla_print_options)
  message(STATUS "Flotilla ${PROJECT_VERSION} (${FLOTILLA_COMMIT})")
  foreach(line
      "build type      ${CMAKE_BUILD_TYPE}"
      "compiler        ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}"
      "LibTorch        ${FLOTILLA_TORCH_VERSION} at ${FLOTILLA_TORCH_ROOT}"
      "CUDA            ${FLOTILLA_CUDA} ${CMAKE_CUDA_COMPILER_VERSION} (${CMAKE_CUDA_ARCHITECTURES})"
      "MPI             ${MPI_CXX_VERSION}"
      "HDF5            ${HDF5_VERSION}"
      "sanitizers      ${FLOTILLA_SANITIZE}"
      "tests           ${FLOTILLA_TESTS}")
    message(STATUS "  ${line}")
  endforeach()
endfunction()
