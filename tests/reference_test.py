"""Predictions against results that others published. The files are not part of the project: PRECOG_REFERENCE_DATA names their folder."""

import csv
import gzip
import os
import pathlib
import statistics
import unittest

from program import run_json

FOLDER = os.environ.get("PRECOG_REFERENCE_DATA", "")
PUBLISHED = pathlib.Path(FOLDER) / "published" / "published_dl.csv.gz"


def published_rows():
    with gzip.open(PUBLISHED, "rt", newline="") as file:
        return list(csv.DictReader(file))


def resnet50_pairs(rows):
    """Published (fp32 images/s, AMP images/s) of ResNet-50 v1.5 in PyTorch on one V100, by the AMP row's memory format.

    Two rows make a pair when one source states both for the same software and card.
    """
    groups = {}
    for row in rows:
        if (row["model"], row["framework"], row["num_gpus"]) != ("ResNet-50 v1.5", "PyTorch", "1") or not row["gpu"].startswith("V100"):
            continue
        if row["precision"] not in ("fp32", "amp-fp16") or "SUSPECT" in row["notes"] or "CHECK" in row["notes"]:
            continue
        system = next((part.strip() for part in row["notes"].split(";") if part.strip().startswith("system=")), "")
        key = (row["source_repo_or_paper"], row["date_or_version"], row["framework_version"], row["gpu_mem_gb"], system)
        groups.setdefault(key, {}).setdefault(row["precision"], []).append(row)
    pairs = {"contiguous": [], "channels_last": []}
    for group in groups.values():
        for slow in group.get("fp32", []):
            for fast in group.get("amp-fp16", []):
                memory_format = "channels_last" if fast["channels_last"] == "yes" else "contiguous"
                pairs[memory_format].append((slow, fast))
    return pairs


@unittest.skipUnless(FOLDER and PUBLISHED.is_file(), "PRECOG_REFERENCE_DATA is not set, or holds no published/published_dl.csv.gz")
class ResNet50OnV100(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.pairs = resnet50_pairs(published_rows())

    def predicted(self, precision, batch, memory_format="contiguous"):
        return run_json("predict", "--model", "resnet50", "--gpu", "v100-sxm2-32gb", "--batch", batch, "--precision", precision,
                        "--optimizer", "sgd-momentum", "--memory-format", memory_format)["samples_per_s"]

    def check(self, memory_format):
        """The speed-up of AMP at the published batch sizes (where stated), within 25% of the published median."""
        pairs = self.pairs[memory_format]
        self.assertGreaterEqual(len(pairs), 3)
        published = statistics.median(float(fast["throughput"]) / float(slow["throughput"]) for slow, fast in pairs)

        def batch_of(rows, otherwise):
            stated = [int(row["batch_per_gpu"]) for row in rows if row["batch_per_gpu"]]
            return int(statistics.median(stated)) if stated else otherwise

        slow = self.predicted("fp32", batch_of([slow for slow, _ in pairs], 128))
        fast = self.predicted("amp-fp16", batch_of([fast for _, fast in pairs], 256), memory_format)
        self.assertGreater(fast, slow)
        self.assertAlmostEqual(fast / slow / published, 1, delta=0.25, msg=f"predicted {fast / slow:.2f}, published {published:.2f}")

    def test_nchw(self):
        self.check("contiguous")

    def test_channels_last(self):
        self.check("channels_last")

    def test_channels_last_is_faster_in_amp(self):
        self.assertGreater(self.predicted("amp-fp16", 256, "channels_last"), self.predicted("amp-fp16", 256))

    def test_compare_as_a_user_runs_it(self):
        """`precog compare --model resnet50 --gpu v100-sxm2-32gb --batch 256`: its ratio against the NCHW rows."""
        reports = run_json("compare", "--model", "resnet50", "--gpu", "v100-sxm2-32gb", "--batch", 256)["reports"]
        steps = {report["precision"]: report["step_s"] for report in reports}
        published = statistics.median(float(fast["throughput"]) / float(slow["throughput"]) for slow, fast in self.pairs["contiguous"])
        self.assertAlmostEqual(steps["fp32"] / steps["amp-fp16"] / published, 1, delta=0.25)


if __name__ == "__main__":
    unittest.main()
