# Imported targets straight from a torch wheel (or an unpacked LibTorch), without TorchConfig.cmake:
# that one enables CUDA whenever the wheel has it, so it cannot give a CPU build. Also part of the
# installed package, hence imported targets and the macros of find.cmake.
#   flotilla::torch   interface target of the rooms with tensors
#   flotilla::fmt     torch's own fmt, header only, from a folder that holds nothing else
if(NOT FLOTILLA_TORCH_ROOT)
  flotilla_find(Python3 COMPONENTS Interpreter)
  execute_process(
    COMMAND ${Python3_EXECUTABLE} -c
      "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
    OUTPUT_VARIABLE _torch OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT _torch)
    flotilla_missing("LibTorch not found. Give -DFLOTILLA_TORCH_ROOT=<folder of the torch package>, "
                     "or run scripts/quickstart.sh of Flotilla, which installs it into .deps/")
  endif()
  set(FLOTILLA_TORCH_ROOT "${_torch}" CACHE PATH "" FORCE)
endif()
foreach(_lib c10 torch_cpu)
  if(NOT EXISTS "${FLOTILLA_TORCH_ROOT}/lib/lib${_lib}.so")
    flotilla_missing("FLOTILLA_TORCH_ROOT=${FLOTILLA_TORCH_ROOT} has no lib/lib${_lib}.so")
  endif()
endforeach()
file(STRINGS "${FLOTILLA_TORCH_ROOT}/include/torch/headeronly/version.h" _version
     REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCH ([0-9]+).*" "\\1.\\2.\\3"
       FLOTILLA_TORCH_VERSION "${_version}")

function(_flotilla_import name)
  add_library(flotilla_dep::${name} SHARED IMPORTED GLOBAL)
  set_target_properties(flotilla_dep::${name} PROPERTIES
    IMPORTED_LOCATION "${FLOTILLA_TORCH_ROOT}/lib/lib${name}.so" IMPORTED_SONAME "lib${name}.so"
    INTERFACE_INCLUDE_DIRECTORIES
      "${FLOTILLA_TORCH_ROOT}/include;${FLOTILLA_TORCH_ROOT}/include/torch/csrc/api/include")
endfunction()
_flotilla_import(c10)
_flotilla_import(torch_cpu)
add_library(flotilla::torch INTERFACE IMPORTED GLOBAL)
target_link_libraries(flotilla::torch INTERFACE flotilla_dep::torch_cpu flotilla_dep::c10)
if(FLOTILLA_CUDA)
  if(NOT EXISTS "${FLOTILLA_TORCH_ROOT}/lib/libtorch_cuda.so")
    flotilla_missing("Flotilla with CUDA, but ${FLOTILLA_TORCH_ROOT} is a CPU LibTorch")
  endif()
  _flotilla_import(c10_cuda)
  # --no-as-needed: the CUDA kernels register themselves when the library is loaded.
  target_link_libraries(flotilla::torch INTERFACE flotilla_dep::c10_cuda
    "-Wl,--push-state,--no-as-needed" "${FLOTILLA_TORCH_ROOT}/lib/libtorch_cuda.so" "-Wl,--pop-state")
endif()

# torch's include folder also has headers of protobuf and others, which must not shadow the system's
# in rooms without tensors; so fmt is reached through a folder with this one link.
file(MAKE_DIRECTORY "${CMAKE_BINARY_DIR}/fmt_include")
file(CREATE_LINK "${FLOTILLA_TORCH_ROOT}/include/fmt" "${CMAKE_BINARY_DIR}/fmt_include/fmt" SYMBOLIC)
add_library(flotilla::fmt INTERFACE IMPORTED GLOBAL)
target_include_directories(flotilla::fmt SYSTEM INTERFACE "${CMAKE_BINARY_DIR}/fmt_include")
target_compile_definitions(flotilla::fmt INTERFACE FMT_HEADER_ONLY=1)
