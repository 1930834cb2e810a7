# How LibTorch.cmake and libraries.cmake look for things. The installed package (FlotillaConfig.cmake) includes
# the same two files, with other versions of these macros: there a missing library is the caller's to report.
macro(flotilla_find)
  find_package(${ARGN} REQUIRED)
endmacro()
macro(flotilla_missing)
  message(FATAL_ERROR ${ARGN})
endmacro()
