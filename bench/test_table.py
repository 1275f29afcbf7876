"""python3 -m unittest discover bench"""

import argparse
import os
import shutil
import tempfile
import unittest
from pathlib import Path

import table


class Program(unittest.TestCase):
    def test_a_program_beside_is_found_as_a_shell_finds_it(self):
        before = os.getcwd()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                Path("refrain").write_text("#!/bin/sh\necho here\n")
                Path("refrain").chmod(0o755)
                parser = table.parser("doc", ["seed"], ["torch"], rounds=1)
                for name in ("./refrain", f"{folder}/refrain"):
                    refrain = parser.parse_args(["--refrain", name]).refrain
                    self.assertEqual(table.output("refrain", (refrain,)), "here\n", name)
                with self.assertRaises(argparse.ArgumentTypeError):
                    table.program("./none")
            finally:
                os.chdir(before)

    def test_a_name_is_one_of_those_of_the_path(self):
        self.assertEqual(table.program("sh"), Path(shutil.which("sh")))


if __name__ == "__main__":
    unittest.main()
