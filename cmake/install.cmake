# What `cmake --install` puts under the prefix, which may be moved afterwards:
#   bin/flotilla             the program
#   lib/libflotilla_*.a      one library a room, as in the build
#   include/flotilla/        the headers of the rooms, with their folders: #include "pipeline/run_job.h"
#   lib/cmake/Flotilla/      find_package(Flotilla): targets flotilla::pipeline, flotilla::parallel, ...
#   share/flotilla/          configs, the demo model, Slurm scripts; share/doc/flotilla: docs
#   share/bash-completion/   completion of commands, options and file names
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
# CMake leaves out what lies inside of the source folder, as .deps/ does.
set(CMAKE_INSTALL_RPATH "${FLOTILLA_TORCH_ROOT}/lib")
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH TRUE)  # LibTorch lies outside of the folders that the loader knows

# Into the package as flotilla::<name>.
function(flotilla_install_library target name)
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  install(TARGETS ${target} EXPORT FlotillaTargets
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
    INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/flotilla)
endfunction()

# Once, after all rooms.
function(flotilla_install_package)
  set(package ${CMAKE_INSTALL_LIBDIR}/cmake/Flotilla)
  set(data ${CMAKE_INSTALL_DATADIR}/flotilla)
  install(TARGETS flotilla RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(DIRECTORY src/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/flotilla FILES_MATCHING PATTERN "*.h")
  install(DIRECTORY kernels DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/flotilla FILES_MATCHING PATTERN "*.h")
  install(FILES ${PROJECT_BINARY_DIR}/generated/version.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/flotilla)

  install(EXPORT FlotillaTargets NAMESPACE flotilla:: DESTINATION ${package})
  configure_package_config_file(cmake/FlotillaConfig.cmake.in generated/FlotillaConfig.cmake
    INSTALL_DESTINATION ${package} PATH_VARS CMAKE_INSTALL_BINDIR CMAKE_INSTALL_DATADIR)
  # Of one version only: there is no promise about the interfaces of the rooms yet.
  write_basic_package_version_file(generated/FlotillaConfigVersion.cmake COMPATIBILITY ExactVersion)
  install(FILES ${PROJECT_BINARY_DIR}/generated/FlotillaConfig.cmake
    ${PROJECT_BINARY_DIR}/generated/FlotillaConfigVersion.cmake cmake/LibTorch.cmake cmake/libraries.cmake
    DESTINATION ${package})

  install(DIRECTORY configs models DESTINATION ${data} PATTERN "README.md" EXCLUDE)
  install(DIRECTORY scripts/slurm DESTINATION ${data}/scripts USE_SOURCE_PERMISSIONS)
  install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR})
  install(FILES README.md CHANGELOG.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
  install(FILES scripts/packaging/bash-completion/flotilla DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
endfunction()
