#!/usr/bin/env python3
"""The files of scripts/packaging, as far as they can be checked without Spack, Lmod and Apptainer: the recipe and the module file run
with stand-ins for what these programs give them, the scripts of the container definition are parsed, and all are held against the build.

  packaging_test.py SOURCE_DIR
"""
import re
import shutil
import subprocess
import sys
import tempfile
import types
import unittest
from pathlib import Path

ROOT = Path(sys.argv.pop(1))
PACKAGING = ROOT / "scripts/packaging"
LUA = next((found for name in ("lua", "lua5.4", "lua5.3", "lua5.1", "luajit") if (found := shutil.which(name))), None)

# What find_package() calls the libraries -> what Spack does.
SPACK_NAMES = {"MPI": "openmpi", "HDF5": "hdf5", "yaml-cpp": "yaml-cpp", "nlohmann_json": "nlohmann-json", "Threads": None,
               "PNG": "libpng", "JPEG": "jpeg", "PkgConfig": "pkgconfig", "SENTENCEPIECE": "sentencepiece", "WEBP": "libwebp"}


class Recipe(unittest.TestCase):
    """Spack's."""

    def setUp(self) -> None:
        self.depends: list[tuple[str, dict]] = []
        ignore = lambda *args, **options: None
        package = types.ModuleType("spack.package")
        package.__dict__.update(
            depends_on=lambda spec, **options: self.depends.append((spec, options)), version=ignore, variant=ignore,
            license=ignore, conflicts=ignore, generator=ignore, run_after=lambda _: lambda f: f,
            on_package_attributes=lambda **_: lambda f: f, Executable=ignore)
        base = type("CMakePackage", (), {"define": lambda self, name, value: f"-D{name}={value}",
                                         "define_from_variant": lambda self, name, variant: f"-D{name}=variant {variant}"})
        modules = {"spack": types.ModuleType("spack"), "spack.package": package}
        for name in ("spack_repo", "spack_repo.builtin", "spack_repo.builtin.build_systems"):
            modules[name] = types.ModuleType(name)
        for name, value in (("cmake", {"CMakePackage": base}), ("cuda", {"CudaPackage": type("CudaPackage", (), {})})):
            module = modules[f"spack_repo.builtin.build_systems.{name}"] = types.ModuleType(name)
            module.__dict__.update(value)
        sys.modules.update(modules)
        self.addCleanup(lambda: [sys.modules.pop(name) for name in modules])
        scope: dict = {}
        exec(compile((PACKAGING / "spack/package.py").read_text(), "package.py", "exec"), scope)
        self.package = scope["Flotilla"]

    def test_every_library_of_the_build_is_a_dependency(self) -> None:
        text = (ROOT / "cmake/libraries.cmake").read_text()
        libraries = set(re.findall(r"flotilla_find\(([\w-]+)", text)) | set(re.findall(r"pkg_check_modules\((\w+)", text))
        self.assertGreater(len(libraries), 5)
        names = {re.match(r"[\w-]+", spec).group() for spec, _ in self.depends}
        for library in libraries:
            self.assertIn(library, SPACK_NAMES)
            if SPACK_NAMES[library]:
                self.assertIn(SPACK_NAMES[library], names)
        version = re.search(r"torch==(\d+\.\d+)", (ROOT / "cmake/requirements/requirements-cpu.txt").read_text()).group(1)
        self.assertIn(f"py-torch@{version}", [spec for spec, _ in self.depends])

    def test_cmake_gets_the_options_that_it_knows(self) -> None:
        class Spec(dict):
            variants = {"cuda_arch": types.SimpleNamespace(value=("90",))}

            def satisfies(self, constraint: str) -> bool:
                return constraint == "+cuda"

        made = self.package()
        made.spec = Spec({"py-torch": types.SimpleNamespace(prefix="/torch-prefix"),
                          "python": types.SimpleNamespace(package=types.SimpleNamespace(platlib="lib/python3.12/site-packages"))})
        arguments = made.cmake_args()
        self.assertIn("-DFLOTILLA_TORCH_ROOT=/torch-prefix/lib/python3.12/site-packages/torch", arguments)
        self.assertIn("-DCMAKE_CUDA_ARCHITECTURES=['90']", arguments)
        known = (ROOT / "cmake/options.cmake").read_text()
        for name in re.findall(r"-D(FLOTILLA_\w+)", " ".join(arguments)):
            self.assertRegex(known, rf"(option|set)\({name} ")


class Module(unittest.TestCase):
    """The environment module of Lmod."""

    @unittest.skipIf(LUA is None, "no Lua interpreter on this machine")
    def test_it_sets_the_places_that_an_install_has(self) -> None:
        stand_ins = """
            function myModuleVersion() return "1.2.3" end
            function pathJoin(...) return table.concat({...}, "/") end
            function help(text) end
            function conflict(name) end
            function whatis(text) print("whatis", text) end
            function prepend_path(name, path) print(name, path) end
            function setenv(name, value) print(name, value) end
        """
        with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
            file.write(stand_ins + f'dofile("{PACKAGING / "modulefiles/flotilla.lua"}")\n')
            file.flush()
            said = subprocess.run([LUA, file.name], capture_output=True, text=True)
        self.assertEqual(said.returncode, 0, said.stderr)
        for line in ("PATH\t/opt/flotilla/bin", "CMAKE_PREFIX_PATH\t/opt/flotilla", "FLOTILLA_DATA\t/opt/flotilla/share/flotilla",
                     "whatis\tVersion: 1.2.3"):
            self.assertIn(line, said.stdout.splitlines())


class Container(unittest.TestCase):
    """Apptainer's definition."""

    def setUp(self) -> None:
        text = (PACKAGING / "apptainer/flotilla.def").read_text()
        self.header = text.split("\n%", 1)[0]
        self.sections = dict(re.findall(r"^%(\w+)\n(.*?)(?=^%|\Z)", text, re.M | re.S))

    def test_header_and_sections_are_apptainers(self) -> None:
        self.assertRegex(self.header, r"\ABootstrap: docker\nFrom: \S+")
        self.assertLessEqual(set(self.sections), {"arguments", "files", "post", "environment", "runscript", "test", "labels", "help"})

    def test_arguments_are_declared_and_used(self) -> None:
        declared = set(re.findall(r"^    (\w+)=", self.sections["arguments"], re.M))
        used = set(re.findall(r"\{\{ (\w+) \}\}", self.header + "".join(self.sections.values())))
        self.assertEqual(declared, used)

    def test_scripts_are_shell_and_name_files_of_the_sources(self) -> None:
        for name in ("post", "environment", "runscript", "test"):
            script = self.sections[name].replace("{{ FLAVOUR }}", "cpu").replace("{{ JOBS }}", "1")
            said = subprocess.run(["sh", "-n"], input=script, capture_output=True, text=True)
            self.assertEqual(said.returncode, 0, f"%{name}: {said.stderr}")
            for file in re.findall(r"(?:^|\s)((?:scripts|cmake)/[\w./-]+)", script):
                self.assertTrue((ROOT / file).exists(), f"%{name} names {file}")


class Completion(unittest.TestCase):
    def test_bash_reads_it(self) -> None:
        subprocess.run(["bash", "-n", PACKAGING / "bash-completion/flotilla"], check=True)


unittest.main(verbosity=2)
