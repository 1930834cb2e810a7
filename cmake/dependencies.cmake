# The libraries of the project: those of the rooms, and those of the program and the tests alone.
include(${CMAKE_CURRENT_LIST_DIR}/libraries.cmake)
# Boost: its own package where that has the compiled program_options; else a folder named by the
# environment variable BOOST_ROOT (include/boost, lib/libboost_program_options.*), headers and library
# from one place. FindBoost is not used: CMake 4 has removed it.
if(DEFINED ENV{BOOST_ROOT})
  find_path(FLOTILLA_BOOST_INCLUDE boost/program_options.hpp PATHS $ENV{BOOST_ROOT}/include NO_DEFAULT_PATH REQUIRED)
  find_library(FLOTILLA_BOOST_PROGRAM_OPTIONS boost_program_options PATHS $ENV{BOOST_ROOT}/lib NO_DEFAULT_PATH REQUIRED)
  add_library(Boost::headers INTERFACE IMPORTED)
  target_include_directories(Boost::headers INTERFACE ${FLOTILLA_BOOST_INCLUDE})
  add_library(Boost::program_options UNKNOWN IMPORTED)
  set_target_properties(Boost::program_options PROPERTIES IMPORTED_LOCATION ${FLOTILLA_BOOST_PROGRAM_OPTIONS})
  target_link_libraries(Boost::program_options INTERFACE Boost::headers)
else()
  find_package(Boost CONFIG REQUIRED COMPONENTS program_options)
endif()
if(FLOTILLA_TESTS)
  find_package(GTest REQUIRED)
endif()
