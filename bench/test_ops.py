"""python3 -m unittest discover bench"""

import argparse
import contextlib
import io
import unittest

import ops


class Report(unittest.TestCase):
    def test_shares_and_what_is_slower_are_of_their_dtype_and_threads(self):
        cells = {(1, "add", "f32", "row"): (10.0, 20.0), (1, "exp", "f32", "row"): (32.0, 20.0),
                 (1, "add", "u8", "row"): (24.0, 20.0), (2, "add", "f32", "row"): (10.0, 40.0)}
        best = {cell: {"refrain": a, "torch": b} for cell, (a, b) in cells.items()}
        ratios = {cell: a / b for cell, (a, b) in cells.items()}
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            ops.report(ratios, best, argparse.Namespace(threads=["1", "2"], dtypes=["f32", "u8"], all=False))
        lines = printed.getvalue().splitlines()
        self.assertIn("| f32 | 1 | 2 | 50% | 1 | 1.05 |", lines)
        self.assertIn("| u8 | 1 | 1 | 100% | 0 | 1.20 |", lines)
        self.assertIn("| all | 1 | 3 | 67% | 1 | 1.20 |", lines)
        self.assertIn("| f32 | 2 | 1 | 100% | 0 | 0.25 |", lines)
        self.assertEqual(lines[-1], "| 1 | exp | f32 | row | 32.0 | 20.0 | 1.60 |")
        self.assertEqual(sum("| add |" in line for line in lines), 0)


if __name__ == "__main__":
    unittest.main()
