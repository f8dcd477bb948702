"""`precog validate`: the figures of the contract, on runs whose errors are known by construction and on the recorded ones."""

import json
import unittest

import program
from contract import SMALL, InTemporaryFolder
from program import run, run_json


class Validate(InTemporaryFolder):
    def runs(self):
        def measured(identifier, precision, step_s, gpu="h100-sxm"):
            return {"id": identifier, "source": "made up for this test",
                    "request": {"model": {"name": "bert-base", "layers": 2}, "batch": 4, "seq": 64, "precision": precision,
                                "cluster": {"gpu": gpu, "gpus": 1}},
                    "measured": {"step_s": step_s, "peak_bytes": 1e9, "gpu_busy_s": step_s / 2, "kernels": 1000}}

        def predicted(precision):
            return run_json("predict", *SMALL, "--gpus", 1, "--precision", precision)["step_s"]

        fp32, amp = predicted("fp32"), predicted("amp-bf16")
        # Errors known by construction: +25% (predicted 1.25 of measured), exact, and one that no V100 runs.
        return [measured("slow", "fp32", fp32 / 1.25), measured("exact", "amp-bf16", amp), measured("odd", "bf16", 1.0, "v100-sxm2-32gb")]

    def check(self, report):
        self.assertEqual({"overall", "groups", "speedups", "unpredicted", "runs"} - set(report), set())
        for summary in [report["overall"], *report["groups"].values()]:
            self.assertEqual({"rows", "predicted", "mape", "median", "p95", "bias"} - set(summary), set())
        for summary in report["speedups"].values():
            self.assertEqual({"pairs", "median", "p95"} - set(summary), set())
        for entry in report["runs"]:
            self.assertEqual({"id", "measured_s", "predicted_s", "error", "measured_peak_bytes", "predicted_peak_bytes"} - set(entry), set())
        for entry in report["unpredicted"]:
            self.assertTrue(entry["id"] and entry["reason"])
        self.assertEqual(report["overall"]["rows"], report["overall"]["predicted"] + len(report["unpredicted"]))

    def test_the_figures_of_the_contract(self):
        path = self.write("runs.jsonl", "\n".join(map(json.dumps, self.runs())) + "\n")
        report = run_json("validate", path)
        self.check(report)
        overall = report["overall"]
        self.assertEqual((overall["rows"], overall["predicted"]), (3, 2))
        self.assertAlmostEqual(overall["mape"], 12.5, places=3)
        self.assertAlmostEqual(overall["bias"], 12.5, places=3)
        self.assertAlmostEqual(report["groups"]["precision=fp32"]["mape"], 25, places=3)
        self.assertAlmostEqual(report["groups"]["precision=amp-bf16"]["mape"], 0, places=3)
        self.assertAlmostEqual(report["speedups"]["fp32->amp-bf16"]["median"], 25, places=3)
        counted = run_json("predict", *SMALL, "--gpus", 1)["kernels"], run_json("predict", *SMALL, "--gpus", 1, "--precision", "fp32")["kernels"]
        self.assertEqual((report["kernels"]["rows"], report["kernels"]["predicted"]), (3, 2))
        self.assertAlmostEqual(report["kernels"]["bias"], sum(count / 10 - 100 for count in counted) / 2, places=6)
        self.assertAlmostEqual(report["kernels"]["mape"], sum(abs(count / 10 - 100) for count in counted) / 2, places=6)
        self.assertEqual(report["unpredicted"][0]["id"], "odd")
        self.assertIn("bf16", report["unpredicted"][0]["reason"])
        text = run("validate", path, "--by", "precision,gpu")
        self.assertEqual((text.returncode, text.stderr), (0, ""))
        for fragment in ["12.5", "fp32", "amp-bf16", "odd", "kernels"]:
            self.assertIn(fragment, text.stdout)

    def test_a_csv_says_the_same(self):
        lines = ["id,model,layers,batch,seq,precision,gpu,gpus,step_s,peak_bytes,gpu_busy_s,kernels"]
        for entry in self.runs():
            request, measured = entry["request"], entry["measured"]
            lines.append(f"{entry['id']},bert-base,2,4,64,{request['precision']},{request['cluster']['gpu']},1,{measured['step_s']!r},"
                         f"{measured['peak_bytes']!r},{measured['gpu_busy_s']!r},{measured['kernels']}")
        jsonl = self.write("runs.jsonl", "\n".join(map(json.dumps, self.runs())) + "\n")
        csv = self.write("runs.csv", "\n".join(lines) + "\n")
        from_csv, from_jsonl = run_json("validate", csv), run_json("validate", jsonl)
        for figures in ("overall", "kernels", "gpu_busy", "memory"):
            self.assertEqual(from_csv[figures], from_jsonl[figures])

    def test_of_some_runs_only_the_peak_is_known(self):
        runs = self.runs()
        peak = {"peak_bytes": runs[0]["measured"]["peak_bytes"]}
        report = run_json("validate", self.write("runs.jsonl", "\n".join(map(json.dumps, [*runs, {**runs[0], "id": "peak alone", "measured": peak}])) + "\n"))
        alone = report["runs"][-1]
        self.assertIsNone(alone["error"])
        self.assertEqual(alone["measured_peak_bytes"], peak["peak_bytes"])
        self.assertEqual(report["memory"]["rows"], len(runs) + 1)
        self.assertEqual(report["overall"]["mape"], run_json("validate", self.write("timed.jsonl", "\n".join(map(json.dumps, runs)) + "\n"))["overall"]["mape"])

    def test_the_recorded_runs(self):
        recorded = [path for path in sorted((program.ROOT / "data" / "measured").rglob("*.jsonl"))
                    if {"request", "measured"} <= set(json.loads(path.read_text().split("\n", 1)[0]))]  # beside them: operators, host
        if not recorded:
            self.skipTest("no recorded runs in data/measured")
        for path in recorded:
            report = run_json("validate", path, "--by", "precision")
            self.check(report)
            self.assertGreater(report["overall"]["predicted"], 0)
            self.assertTrue(all(group.startswith("precision=") for group in report["groups"]))


if __name__ == "__main__":
    unittest.main()
