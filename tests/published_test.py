"""Predicted against published speed-ups of mixed precision. The rows are not part of the project: PRECOG_REFERENCE_DATA names their folder."""

import json
import os
import pathlib
import sys
import unittest

from program import BINARY, ROOT, run

os.environ["PRECOG"] = str(BINARY)
sys.path.insert(0, str(ROOT / "tools"))
import published_speedups  # noqa: E402

# What we want, and where we stand (docs/published_speedups.md says what is counted, and what else was looked at). A change that
# makes any of them worse fails.
ASKED = {"median": 10.0, "p90": 25.0, "spearman": 0.6, "of_constant": 2 / 3}
RECORDED = {"median": 9.7, "p90": 25.0, "spearman": 0.9, "of_constant": 2 / 3}


@unittest.skipUnless(published_speedups.published_file(), "PRECOG_REFERENCE_DATA is not set, or holds no published/published_dl.csv.gz")
class PublishedSpeedups(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.pairs = published_speedups.evaluate()
        cls.amp = [pair for pair in cls.pairs if published_speedups.is_amp(pair)]
        cls.figures = published_speedups.figures(cls.amp)

    def test_pairs_are_many_and_none_is_lost(self):
        self.assertGreaterEqual(self.figures["pairs"], 370)
        self.assertGreaterEqual(sum("predicted" in pair for pair in self.amp), 375)
        for pair in self.pairs:
            self.assertTrue(("predicted" in pair) != ("reason" in pair), pair)

    def test_median_error(self):
        self.assertLessEqual(self.figures["median"], min(ASKED["median"], RECORDED["median"]))

    def test_90th_percentile(self):
        self.assertLessEqual(self.figures["p90"], max(ASKED["p90"], RECORDED["p90"]))

    def test_with_what_is_not_counted(self):
        errors = [abs(pair["error"]) for pair in self.amp if "predicted" in pair]
        self.assertLessEqual(100 * published_speedups.quantile(errors, 0.5), 10.0)
        self.assertLessEqual(100 * published_speedups.quantile(errors, 0.9), 25.3)

    def test_order(self):
        self.assertGreaterEqual(self.figures["spearman"], max(ASKED["spearman"], RECORDED["spearman"]))

    def test_against_the_best_constant(self):
        self.assertLessEqual(self.figures["median"] / self.figures["constant_median"], max(ASKED["of_constant"], RECORDED["of_constant"]))

    def test_better_than_a_constant_that_has_not_seen_the_family(self):
        self.assertLess(self.figures["median"], 0.8 * self.figures["blind_median"])

    def test_readme_says_the_same(self):
        said = " ".join((published_speedups.ROOT / "README.md").read_text().split())
        self.assertIn(f"Of {self.figures['pairs']} speed-ups", said)
        self.assertIn(f"the median error is {self.figures['median']:.1f}%", said)
        self.assertIn(f"chosen with hindsight: {self.figures['constant_median']:.1f}%", said)
        self.assertIn(f"Spearman {self.figures['spearman']:.2f}", said)

    def test_page_is_current(self):
        page = published_speedups.PAGE.read_text()
        made = "\n".join(published_speedups.tables(self.pairs))
        written = page.split(published_speedups.BEGIN)[1].split(published_speedups.END)[0].strip()
        self.assertEqual(written, made.strip(), "run tools/published_speedups.py --write")


class Arithmetic(unittest.TestCase):
    """The figures' own arithmetic, on pairs that a hand can check."""

    def test_best_constant(self):
        self.assertAlmostEqual(published_speedups.best_constant([2.0, 2.0, 5.0]), 2.0)

    def test_ranks_share_ties(self):
        self.assertEqual(published_speedups.ranks([10, 20, 20, 5]), [1, 2.5, 2.5, 0])

    def test_spearman_is_about_order(self):
        self.assertAlmostEqual(published_speedups.spearman([1, 2, 3], [10, 100, 1000]), 1)
        self.assertAlmostEqual(published_speedups.spearman([1, 2, 3], [3, 2, 1]), -1)

    def test_quantile(self):
        self.assertAlmostEqual(published_speedups.quantile([0, 1, 2, 3, 4], 0.9), 3.6)

    def test_copies_slow_down_with_their_number(self):
        measured = {"in_use": 12.0, "anew_from": 100, "anew": {"1": 2.0, "4": 1.0}}
        self.assertEqual(published_speedups.copy_rate(measured, 50, 8), 12.0)
        self.assertAlmostEqual(published_speedups.copy_rate(measured, 200, 1), 2.0)
        self.assertAlmostEqual(published_speedups.copy_rate(measured, 200, 2), 2.0 ** 0.5)
        self.assertAlmostEqual(published_speedups.copy_rate(measured, 200, 8), 1.0)


class WhatRan(unittest.TestCase):
    """Rows that mean another job than their label says."""

    def made(self, **fields):
        pair = {field: "" for field in (*published_speedups.COLUMNS, "system", "edition")} | {"gpu": "V100", "mem": "16", "slow": "fp32", "fast": "amp-fp16"} | fields
        return published_speedups.requests_of(pair, json.loads(published_speedups.MAP.read_text()), {"apex-o2", "fp32", "amp-fp16", "tf32"})

    def test_gpus_that_train_alone_exchange_nothing(self):
        fields = {"model": "Transformer-XL", "variant": "large", "framework": "PyTorch", "gpus": "8", "batch": "2"}
        self.assertEqual([one["cluster"]["gpus"] for one in self.made(source="lambdal/deeplearning-benchmark", **fields)], [1, 1])
        self.assertEqual([one["cluster"]["gpus"] for one in self.made(source="NVIDIA/DeepLearningExamples", **fields)], [8, 8])

    def test_convolutions_are_fused_whole_on_tensor_cores_only(self):
        fields = {"model": "SE(3)-Transformer", "framework": "PyTorch (DGL)", "gpus": "1", "batch": "240"}
        by_degree, whole = self.made(**fields)
        self.assertNotEqual(by_degree["model"], whole["model"])
        tf32, amp = self.made(**fields | {"gpu": "A100", "mem": "80", "slow": "tf32"})
        self.assertEqual([tf32["model"], amp["model"]], [whole["model"]] * 2)
        need = [json.loads(run("predict", "--model", model["graph"], "--batch", 240, "--gpu", "a100-sxm-80gb", "--precision", "fp32", "--json").stdout)["memory"]["activations"]
                for model in (by_degree["model"], whole["model"])]
        self.assertLess(need[0], 0.85 * need[1])  # features spread over 704 columns at once, or over 112 at most


class Bags(unittest.TestCase):
    def test_a_bag_reads_a_row_for_every_index(self):
        done = run("predict", "--model", "tests/data/published/vae-cf.precog.json.zst", "--batch", 1024, "--gpu", "v100-sxm2-16gb", "--precision", "fp32", "--dump-after", "kernel")
        self.assertEqual(done.returncode, 0, done.stderr)
        read = next(line for line in done.stdout.splitlines() if line.startswith("  _embedding_bag"))
        self.assertIn("read 180 MB", read)  # 1024 x 73 rows of 600, and the indices


if __name__ == "__main__":
    unittest.main()
