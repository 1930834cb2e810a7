-- Environment module (Lmod) for an installed Flotilla. Copy it to <modules>/flotilla/<version>.lua and set `prefix`.
local prefix = "/opt/flotilla"

help([[
Flotilla: video with sound from text and images, with the LTX-2 models.
  flotilla run --ranks 4 job.yaml
  flotilla --help
Demo job: $FLOTILLA_DATA/configs/demo.yaml (give --output, --latents and --metrics places where you may write).
]])
whatis("Name: Flotilla")
whatis("Version: " .. myModuleVersion())
whatis("Description: text/image-to-video-with-sound generation as an MPI job")

conflict("flotilla")
-- depends_on("openmpi")   -- where MPI is a module too: that of the build

prepend_path("PATH", pathJoin(prefix, "bin"))
prepend_path("CMAKE_PREFIX_PATH", prefix)
prepend_path("XDG_DATA_DIRS", pathJoin(prefix, "share"))   -- bash completion
setenv("FLOTILLA_DATA", pathJoin(prefix, "share", "flotilla"))
-- The program finds LibTorch where it was when Flotilla was built. If it has moved:
-- prepend_path("LD_LIBRARY_PATH", "<folder of the torch package>/lib")
