"""Predicted against timm's published training benchmark. The rows are not part of the project: PRECOG_REFERENCE_DATA names their folder."""

import os
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools"))
from program import BINARY  # noqa: E402

os.environ["PRECOG"] = str(BINARY)
import published_speedups  # noqa: E402
import published_timm  # noqa: E402


class TheBatchBefore(unittest.TestCase):
    def test_is_the_next_of_powers_of_two_and_what_lies_between(self):
        self.assertEqual([published_timm.next_larger(batch) for batch in (384, 256, 192, 128, 48, 2)], [512, 384, 256, 192, 64, 3])


@unittest.skipUnless(published_speedups.published_file(), "PRECOG_REFERENCE_DATA is not set, or holds no published/published_dl.csv.gz")
class PublishedTimm(unittest.TestCase):
    """What docs/published_timm.md says must be what the program says, and must not get worse."""

    @classmethod
    def setUpClass(cls):
        cls.rows = published_timm.evaluate()

    def test_the_page_is_current(self):
        written = published_timm.PAGE.read_text().partition("--write -->\n")[2].strip()
        self.assertEqual(written, "\n".join(published_timm.tables(self.rows)), "run tools/published_timm.py --write")

    def test_steps(self):
        for half, most in MAPE.items():
            got = published_timm.figures([row for row in self.rows if row["half"] == half])
            self.assertGreaterEqual(got["rows"], ROWS)
            self.assertLessEqual(got["mape"], most)

    def test_every_batch_that_ran_is_said_to_fit(self):
        self.assertEqual([row["model"] for row in self.rows if row["fills"] > 1], [])

    def test_few_batches_that_were_given_up_are_said_to_fit_with_room(self):
        self.assertLessEqual({(row["model"], row["format"]) for row in self.rows if row["next_fills"] and row["next_fills"] < 0.95}, SAID_TO_FIT)


MAPE = {"looking": 8.5, "judging": 13.0}
ROWS = 150
SAID_TO_FIT = {("mobilevitv2_100", "NCHW"), ("sequencer2d_s", "NHWC"), ("sequencer2d_l", "NHWC")}  # whose cause is not known

if __name__ == "__main__":
    unittest.main()
