#!/usr/bin/env python3
"""Runs the scripts of scripts/slurm with stand-ins for Slurm's programs and for flotilla.

The stand-ins write their command lines into a file; the one of flotilla ends with the exit code that the test wants, after
SIGUSR1 where it is to wait for that.
"""
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

SCRIPTS = Path(sys.argv.pop(1)) / "scripts/slurm"

RECORD = '#!/bin/bash\necho "$(basename "$0") $*" >> "$CALLS"\n'
STAND_INS = {
    "srun": RECORD + 'while [[ $1 == --* ]]; do shift; done\nexec "$@"\n',
    "salloc": RECORD + 'while [[ $1 == --* ]]; do shift; done\nexec "$@"\n',
    "scontrol": RECORD,
    "flotilla": RECORD + 'if [ -n "${WAIT_FOR_SIGNAL:-}" ]; then\n'
    "  trap 'sleep 0.3; exit \"$CODE\"' USR1\n"
    '  echo ready >> "$CALLS"\n  for i in {1..200}; do sleep 0.05; done\nfi\nexit "$CODE"\n',
}


class SlurmScripts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.calls_file = self.folder / "calls"
        for name, text in STAND_INS.items():
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o755)

    def start(self, script, arguments, code=0, **variables):
        self.calls_file.write_text("")
        environment = {
            "PATH": f"{self.folder}:{os.environ['PATH']}",
            "CALLS": str(self.calls_file),
            "CODE": str(code),
            "SLURM_JOB_ID": "7",
            "SLURM_CPUS_PER_TASK": "3",
        } | variables
        return subprocess.Popen(["bash", str(SCRIPTS / script), *arguments], env=environment, cwd=self.folder,
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def run_script(self, *arguments, **options):
        return self.start(*arguments, **options).wait(30)

    def calls(self, program):
        return [line for line in self.calls_file.read_text().splitlines() if line.startswith(program + " ")]

    def test_job_keeps_the_exit_code(self):
        for code in (0, 6):
            self.assertEqual(self.run_script("job.sbatch", ["a.yaml"], code=code), code)
            self.assertEqual(self.calls("scontrol"), [])
        (call,) = self.calls("flotilla")
        self.assertIn("run a.yaml --set checkpoint.path=a.state.h5", call)
        self.assertIn("checkpoint.resume=auto", call)

    def test_job_that_stopped_is_requeued(self):
        self.assertEqual(self.run_script("job.sbatch", ["a.yaml"], code=75), 75)
        self.assertEqual(self.calls("scontrol"), ["scontrol requeue 7"])

    def array(self, arguments, task=1, **options):
        return self.start("array.sbatch", arguments, SLURM_ARRAY_TASK_ID=str(task), SLURM_ARRAY_JOB_ID="40", **options)

    def test_array_element_takes_its_job_file(self):
        self.assertEqual(self.array(["a.yaml", "b c.yaml"], code=3).wait(30), 3)
        (call,) = self.calls("flotilla")
        self.assertIn("run --ranks 4 ", call)
        self.assertIn(" b c.yaml --set checkpoint.path=b c.state.h5", call)
        self.assertEqual(self.calls("scontrol"), [])
        self.assertEqual(self.array(["a.yaml"], task=1).wait(30), 2)
        self.assertEqual(self.calls("flotilla"), [])

    def test_array_passes_signals_on_and_is_requeued(self):
        for number in (signal.SIGUSR1, signal.SIGTERM):
            script = self.array(["a.yaml"], task=0, code=75, WAIT_FOR_SIGNAL="1")
            deadline = time.monotonic() + 20
            while "ready" not in self.calls_file.read_text() and time.monotonic() < deadline:
                time.sleep(0.05)
            script.send_signal(number)
            self.assertEqual(script.wait(30), 75)
            self.assertEqual(self.calls("scontrol"), ["scontrol requeue 40_0"])

    def test_sweep_leaves_its_part_to_the_program_and_is_requeued(self):
        def sweep(**options):
            return self.start("sweep.sbatch", ["s.yaml", "--retry-failed"], SLURM_ARRAY_TASK_ID="3",
                              SLURM_ARRAY_JOB_ID="40", **options)

        self.assertEqual(sweep(code=9).wait(30), 9)
        self.assertTrue(self.calls("flotilla")[0].endswith(" --grace 150 s.yaml --retry-failed"))
        self.assertEqual(self.calls("scontrol"), [])
        script = sweep(code=75, WAIT_FOR_SIGNAL="1")
        deadline = time.monotonic() + 20
        while "ready" not in self.calls_file.read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        script.send_signal(signal.SIGUSR1)
        self.assertEqual(script.wait(30), 75)
        self.assertEqual(self.calls("scontrol"), ["scontrol requeue 40_3"])

    def test_interactive_asks_for_what_the_ranks_need(self):
        self.assertEqual(self.run_script("interactive.sh", [], code=0), 2)
        code = self.run_script("interactive.sh", ["a.yaml", "--seed", "5"], code=75, FLOTILLA_RANKS="2")
        self.assertEqual(code, 75)
        (call,) = self.calls("salloc")
        self.assertIn("--ntasks-per-node=2", call)
        self.assertIn("--gpus-per-node=2", call)
        self.assertTrue(self.calls("flotilla")[0].endswith("--set checkpoint.resume=auto --seed 5"))
        self.run_script("interactive.sh", ["a.yaml"], FLOTILLA_GPUS="0")
        self.assertNotIn("--gpus", self.calls("salloc")[0])


if __name__ == "__main__":
    unittest.main()
