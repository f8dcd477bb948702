"""Predicted against published language-model training. The rows are not part of the project: PRECOG_REFERENCE_DATA names their folder."""

import os
import statistics
import sys
import unittest

from program import BINARY, ROOT

os.environ["PRECOG"] = str(BINARY)
sys.path.insert(0, str(ROOT / "tools"))
import published_llm  # noqa: E402

# Where we stand (docs/published_llm.md says why), with little room: a change that makes any of them worse fails. What was asked for is met by all but
# the order of BigScience's plans (0.8).
RECORDED = {"mape": 8.7, "stated_mape": 5.9, "bias": 2.5, "pair_median": 3.0, "pair_p90": 8.6, "pair_spearman": 0.83, "of_constant": 2 / 3, "megatron": 2.9, "vtrain": 9.2, "vtrain_scaled": 8.0,
            "fit": 98.9, "bigscience": 4.3, "tau": 0.74}


@unittest.skipUnless(published_llm.reference("published_llm.csv.gz"), "PRECOG_REFERENCE_DATA is not set, or holds no published/published_llm.csv.gz")
class PublishedRuns(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.rows = published_llm.evaluate()
        cls.figures = published_llm.figures(cls.rows)
        cls.pairs = published_llm.pair_figures(published_llm.precision_pairs(cls.rows))

    def test_page_names_every_source(self):
        page = published_llm.PAGE.read_text()
        for source in {row["source"] for row in self.rows if "predicted" in row}:
            self.assertIn(source, page, "run tools/published_llm.py --write")

    def test_nine_in_ten_are_predicted_and_none_is_lost(self):
        self.assertGreaterEqual(sum("predicted" in row for row in self.rows), 0.9 * len(self.rows))
        for row in self.rows:
            self.assertTrue(("predicted" in row) != ("reason" in row), row["id"])

    def test_step_time(self):
        self.assertLessEqual(self.figures["mape"], RECORDED["mape"])
        self.assertLessEqual(abs(self.figures["bias"]), RECORDED["bias"])

    def test_plans_of_one_sweep(self):
        self.assertLessEqual(published_llm.figures([row for row in self.rows if "bigscience" in row["source"]])["mape"], RECORDED["bigscience"])
        found = published_llm.sweeps(self.rows)
        self.assertEqual(len(found), 3)
        for sweep in found:
            self.assertGreaterEqual(sweep["tau"], RECORDED["tau"], sweep["sweep"])

    def test_where_recomputation_is_stated(self):
        told = published_llm.figures([row for row in self.rows if published_llm.stated(row)])
        self.assertLessEqual(told["mape"], RECORDED["stated_mape"])

    def test_plans_that_ran_fit(self):
        ran = [row["fits"] for row in self.rows if "fits" in row]
        self.assertGreaterEqual(100 * sum(ran) / len(ran), RECORDED["fit"])

    def test_two_precisions_of_one_job(self):
        self.assertLessEqual(self.pairs["median"], RECORDED["pair_median"])
        self.assertLessEqual(self.pairs["p90"], RECORDED["pair_p90"])
        self.assertLessEqual(self.pairs["median"] / self.pairs["constant"], RECORDED["of_constant"])
        self.assertGreaterEqual(self.pairs["spearman"], RECORDED["pair_spearman"])


@unittest.skipUnless(published_llm.reference("vtrain_single_node_a100.csv"), "PRECOG_REFERENCE_DATA is not set, or holds no published/vtrain_single_node_a100.csv")
class SingleNode(unittest.TestCase):
    def test_iterations(self):
        found = published_llm.vtrain()
        self.assertEqual([row["reason"] for row in found["rows"] if "reason" in row], [])
        self.assertLessEqual(found["plain"]["mape"], RECORDED["vtrain"])
        self.assertLessEqual(found["scaled"]["mape"], RECORDED["vtrain_scaled"])


class Megatron(unittest.TestCase):
    """Eight points of Korthikanti et al. 2022, which are in the tool: no reference data is needed."""

    def test_mean_error(self):
        points = published_llm.megatron_points()
        self.assertEqual([point["reason"] for point in points if "reason" in point], [])
        self.assertLessEqual(100 * statistics.mean(abs(point["error"]) for point in points), RECORDED["megatron"])

    def test_selective_recomputation_is_faster(self):
        points = published_llm.megatron_points()
        for full, selective in zip(points[::2], points[1::2]):
            self.assertLess(selective["predicted"], full["predicted"], full["model"])


class Defaults(unittest.TestCase):
    def test_every_default_has_a_source(self):
        for entry in {id(entry): entry for entry in published_llm.frameworks().values()}.values():
            for key in set(entry) - {"name", "names", "sources"}:
                self.assertTrue(key in entry["sources"] or key == "optimizer_impl", f"{entry['name']}: {key}")


class Arithmetic(unittest.TestCase):
    def test_kendall(self):
        self.assertEqual(published_llm.kendall([1, 2, 3], [10, 20, 30]), 1)
        self.assertEqual(published_llm.kendall([1, 2, 3], [30, 20, 10]), -1)
        self.assertAlmostEqual(published_llm.kendall([1, 2, 3], [10, 30, 20]), 1 / 3)

    def test_stages_count_embedding_and_head(self):
        self.assertEqual(published_llm.stages(126, 8, 8), [1] + [2] * 62 + [1])
        self.assertIsNone(published_llm.stages(96, 8, 3))
        self.assertEqual(sum(published_llm.stages(70, 12, 1)), 70)


if __name__ == "__main__":
    unittest.main()
