"""python3 -m unittest discover bench"""

import argparse
import contextlib
import io
import unittest

import ops


class Report(unittest.TestCase):
    def test_shares_and_what_is_slower_are_of_their_dtype_and_threads(self):
        cells = {(1, "add", "f32", "row"): (10.0, 20.0), (1, "exp", "f32", "row"): (32.0, 20.0),
                 (1, "add", "u8", "row"): (24.0, 20.0), (1, "add", "u8", "column"): (10.0, 20.0),
                 (2, "add", "f32", "row"): (10.0, 40.0)}
        best = {cell: {"refrain": a, "torch": b} for cell, (a, b) in cells.items()}
        ratios = {cell: a / b for cell, (a, b) in cells.items()}
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            ops.report(ratios, best, argparse.Namespace(threads=["1", "2"], dtypes=["f32", "u8"], all=False))
        lines = printed.getvalue().splitlines()
        self.assertIn("| row | 1.05 (50%) | 1.20 (100%) | 1.20 (67%) |", lines)
        self.assertIn("| column |  | 0.50 (100%) | 0.50 (100%) |", lines)
        self.assertIn("| all | 1.05 (50%) | 0.85 (100%) | 0.85 (75%) |", lines)
        self.assertIn("4 ratios, 1 above 1.5, the largest 1.6", lines)
        self.assertIn("| row | 0.25 (100%) |  | 0.25 (100%) |", lines)
        self.assertEqual(lines[-1], "| 1 | exp | f32 | row | 32.0 | 20.0 | 1.60 |")
        self.assertEqual(sum("| add |" in line for line in lines), 0)


if __name__ == "__main__":
    unittest.main()
