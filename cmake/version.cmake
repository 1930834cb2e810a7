# Writes build/<preset>/generated/version.h: version, commit and the facts that `flotilla --version` prints.
execute_process(COMMAND git describe --always --dirty --abbrev=9 --match=NeVeRmAtCh
  WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE FLOTILLA_COMMIT
  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT FLOTILLA_COMMIT)
  set(FLOTILLA_COMMIT "unknown")
endif()
# Configure again when HEAD moves, so that the commit is the one that was built.
if(EXISTS "${PROJECT_SOURCE_DIR}/.git/logs/HEAD")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/.git/logs/HEAD")
endif()
set(FLOTILLA_CUDA_FACTS "off")
if(FLOTILLA_CUDA)
  set(FLOTILLA_CUDA_FACTS "${CMAKE_CUDA_COMPILER_VERSION} (${CMAKE_CUDA_ARCHITECTURES})")
endif()
configure_file(${PROJECT_SOURCE_DIR}/cmake/version.h.in ${PROJECT_BINARY_DIR}/generated/version.h @ONLY)
add_library(flotilla_version INTERFACE)
target_include_directories(flotilla_version INTERFACE $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/generated>)
flotilla_install_library(flotilla_version version)
