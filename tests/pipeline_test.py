"""Pipelined plans, from outside: what must hold whatever the coefficients are."""

import json
import pathlib
import tempfile
import unittest

import program
from program import run_json

JOB = ["--model", "gpt2-medium", "--gpu", "h100-sxm", "--batch", 4, "--precision", "bf16-master"]


def step(*flags):
    return run_json("predict", *JOB, *flags, expected=(0, 3))


def parts(report):
    breakdown = dict(report["breakdown"])
    return sum(breakdown.pop("exposed_communication").values()) + sum(breakdown.values())


class Pipelines(unittest.TestCase):
    def test_every_schedule_adds_up(self):
        for flags in (["--schedule", "gpipe"], ["--schedule", "1f1b"], ["--vpp", 3], ["--schedule", "zb"], ["--schedule", "zbv"], ["--schedule", "dualpipe"],
                      ["--mode", "compile"], ["--fsdp", "zero1"], ["--recompute", "full"], ["--precision", "amp-fp16"], ["--clip-grad-norm", 1]):
            with self.subTest(flags):
                report = step("--gpus", 8, "--pp", 4, "--global-batch", 128, *flags)
                self.assertAlmostEqual(parts(report), report["step_s"], delta=1e-6 * report["step_s"])
                self.assertGreater(report["breakdown"]["pipeline_bubble"], 0)
                self.assertEqual(report["parameters"], 354823168)
                self.assertIn("stage", report["peak_at"])

    def test_memory_over_the_step_reaches_the_peak(self):
        for flags in (["--schedule", "gpipe", "--global-batch", 32], ["--global-batch", 128], ["--vpp", 3, "--global-batch", 128], ["--schedule", "zb", "--global-batch", 128],
                      ["--schedule", "zbv", "--global-batch", 128], ["--precision", "fsdp-bf16", "--fsdp", "full", "--global-batch", 128]):
            with self.subTest(flags):
                report = step("--gpus", 8, "--pp", 4, *flags)
                points = report["memory"]["timeline"]
                self.assertTrue(2 <= len(points) <= 241)
                times, sizes = [point["s"] for point in points], [point["bytes"] for point in points]
                self.assertEqual(times, sorted(times))
                self.assertEqual(max(sizes), report["peak_bytes"])
                self.assertLess(min(sizes), 0.95 * max(sizes))

    def test_memory_of_other_micro_batches_and_chunks_is_told_by_module(self):
        report = step("--gpus", 8, "--pp", 4, "--vpp", 3, "--global-batch", 128)
        modules = report["memory"]["by_module"]
        self.assertEqual(sum(one["bytes"] for one in modules), report["peak_bytes"])
        for part in ("parameters", "gradients", "optimizer", "activations", "workspace"):
            self.assertEqual(sum(one[part] for one in modules), report["memory"][part], part)
        for part in ("parameters", "activations"):
            of_layers = sum(one[part] for one in modules if one["module"].startswith("transformer.h.*"))
            self.assertGreater(of_layers, (0.5 if part == "parameters" else 0.9) * report["memory"][part], part)

    def test_scores_in_pieces_do_not_wait_for_backward(self):
        def of_a_micro_batch(*flags):
            few, many = (step("--gpus", 4, "--pp", 4, "--schedule", "gpipe", "--micro-batches", n, *flags)["peak_bytes"] for n in (8, 16))
            return (many - few) / 8

        self.assertGreaterEqual(of_a_micro_batch() - of_a_micro_batch("--loss-chunks", 8), 4 * 1024 * 50257 * 4)  # log-probabilities in fp32

    def test_one_stage_is_no_pipeline(self):
        plain = step("--gpus", 8, "--global-batch", 128)
        one = step("--gpus", 8, "--global-batch", 128, "--pp", 1)
        self.assertEqual(plain, one)

    def test_more_micro_batches_fill_the_pipeline(self):
        shares = []
        for micro_batches in (4, 8, 32, 128, 1024):
            report = step("--gpus", 4, "--pp", 4, "--micro-batches", micro_batches)
            shares.append(report["breakdown"]["pipeline_bubble"] / report["step_s"])
        self.assertEqual(shares, sorted(shares, reverse=True))

    def test_the_v_has_less_bubble(self):
        plain, v = (step("--gpus", 4, "--pp", 4, "--micro-batches", 16, "--schedule", name) for name in ("1f1b", "zbv"))
        self.assertLess(v["breakdown"]["pipeline_bubble"], plain["breakdown"]["pipeline_bubble"])

    def test_the_same_work_whatever_the_schedule(self):
        busy = [step("--gpus", 4, "--pp", 4, "--micro-batches", 16, *flags)["gpu_busy_s"] for flags in ([], ["--schedule", "gpipe"], ["--schedule", "zb"])]
        self.assertAlmostEqual(busy[0], busy[1], delta=1e-9)
        self.assertAlmostEqual(busy[0], busy[2], delta=1e-9)

    def test_memory_follows_what_is_in_flight(self):
        def peak(*flags):
            return step("--gpus", 4, "--pp", 4, *flags)["peak_bytes"]
        self.assertEqual(peak("--micro-batches", 8), peak("--micro-batches", 64))  # 1F1B keeps as many as there are stages
        self.assertGreater(peak("--micro-batches", 64, "--schedule", "gpipe"), peak("--micro-batches", 8, "--schedule", "gpipe"))
        self.assertGreater(peak("--micro-batches", 8, "--schedule", "gpipe"), peak("--micro-batches", 8))

    def test_replicas_change_only_what_they_exchange(self):
        """16 or 1024 replicas of the same pipeline: the same kernels, the same bubble."""
        few, many = (step("--gpus", gpus, "--pp", 4, "--micro-batches", 16) for gpus in (64, 4096))
        self.assertEqual(few["kernels"], many["kernels"])
        self.assertAlmostEqual(few["gpu_busy_s"], many["gpu_busy_s"], delta=1e-3 * few["gpu_busy_s"])
        self.assertAlmostEqual(few["tflops_per_gpu"] * few["step_s"], many["tflops_per_gpu"] * many["step_s"], places=6)

    def test_uneven_layers_and_other_models(self):
        report = step("--gpus", 7, "--pp", 7, "--micro-batches", 14)
        self.assertTrue(any("numbers of layers: 3, 4, 4, 4, 4, 3, 2" in warning for warning in report["warnings"]), report["warnings"])
        for model in ("t5-base", "vit-b", "resnet50", "bert-base", "mixtral-8x7b"):
            with self.subTest(model):
                report = run_json("predict", "--model", model, "--gpu", "h200-sxm", "--gpus", 4, "--pp", 4, "--batch", 2, "--micro-batches", 8,
                                  "--precision", "amp-bf16", expected=(0, 3))
                self.assertAlmostEqual(parts(report), report["step_s"], delta=1e-6 * report["step_s"])

    def test_a_stage_may_only_embed_or_only_score(self):
        def planned(*layers):
            job = {"schema": 1, "model": "gpt2-medium", "batch": 4, "precision": "bf16-master", "micro_batches": 8, "plan": {"pp": 4, "stage_layers": layers}, "cluster": {"gpu": "h100-sxm", "gpus": 4}}
            with tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder) / "job.json"
                path.write_text(json.dumps(job))
                return run_json("predict", path, expected=(0, 3))
        even = planned(6, 6, 6, 6)
        for layers in ((0, 8, 8, 8), (8, 8, 8, 0), (0, 12, 12, 0)):
            with self.subTest(layers):
                report = planned(*layers)
                self.assertAlmostEqual(parts(report), report["step_s"], delta=1e-6 * report["step_s"])
                self.assertEqual(report["parameters"], even["parameters"])
                self.assertAlmostEqual(report["tflops_per_gpu"] * report["step_s"], even["tflops_per_gpu"] * even["step_s"], places=6)
        # A cut that is never left to chance: as many chunks as layers, embedding and head.
        report = run_json("predict", "--model", "gpt2-medium", "--gpu", "h100-sxm", "--gpus", 2, "--pp", 2, "--vpp", 13, "--batch", 4, "--micro-batches", 8, "--precision", "bf16-master", expected=(0, 3))
        self.assertTrue(any("0, 1, 1" in warning and "1, 0" in warning for warning in report["warnings"]), report["warnings"])

    def test_what_is_impossible_says_why(self):
        for flags, why in ((["--pp", 32, "--gpus", 32], "24 repeated layers"), (["--pp", 4, "--vpp", 2, "--gpus", 4, "--micro-batches", 6], "multiple of pp"),
                           (["--vpp", 2], "pp of at least 2"), (["--pp", 4, "--gpus", 4, "--schedule", "interleaved"], "at least 2 chunks"),
                           (["--pp", 4, "--gpus", 4, "--schedule", "zbv", "--vpp", 4], "two chunks of layers per stage"),
                           (["--pp", 3, "--gpus", 3, "--schedule", "dualpipe", "--micro-batches", 8], "even number of stages"),
                           (["--pp", 4, "--gpus", 4, "--schedule", "dualpipe", "--micro-batches", 4], "at least 2 x pp"),
                           (["--pp", 4, "--gpus", 6], "no whole number"), (["--pp", 4, "--gpus", 4, "--schedule", "fastest"], "known: gpipe")):
            with self.subTest(flags):
                done = program.run("predict", *JOB, *flags)
                self.assertEqual(done.returncode, 2)
                self.assertIn(why, " ".join(done.stderr.split()))

    def test_trace_and_page(self):
        with tempfile.TemporaryDirectory() as folder:
            trace, page = pathlib.Path(folder) / "t.json", pathlib.Path(folder) / "t.html"
            step("--gpus", 8, "--pp", 4, "--micro-batches", 8, "--trace", trace, "--html", page)
            events = json.loads(trace.read_text())["traceEvents"]
            self.assertTrue(any(event["ph"] == "C" for event in events))
            self.assertIn("memory", page.read_text())
            self.assertEqual({e["args"]["name"].split(" of ")[0] for e in events if e["name"] == "process_name"}, {f"stage {i}" for i in range(4)})
            work = [e for e in events if e.get("cat") == "pipeline" and e["tid"] == 0]
            self.assertEqual(sum(e["name"].startswith("forward") for e in work), 4 * 8)
            for stage in range(1, 5):  # no stage does two things at once
                mine = sorted((e["ts"], e["dur"]) for e in work if e["pid"] == stage)
                self.assertTrue(all(a[0] + a[1] <= b[0] + 1e-3 for a, b in zip(mine, mine[1:])))
            self.assertTrue(any(e["name"].startswith("linear") for e in events))
            self.assertIn("stage by stage", page.read_text())
            self.assertIn("Precision of one micro-batch", page.read_text())
            self.assertEqual({e["pid"] for e in events if e.get("cat") == "precision"}, {1, 2, 3, 4})

    def test_too_few_micro_batches_are_said(self):
        def warned(micro_batches):
            return any("stages at work" in w for w in step("--gpus", 4, "--pp", 4, "--micro-batches", micro_batches)["warnings"])
        self.assertTrue(warned(2))
        self.assertFalse(warned(4))


class Scaling(unittest.TestCase):
    def test_doubling_numbers_of_gpus(self):
        points = run_json("predict", *JOB, "--pp", 4, "--micro-batches", 8, "--scale", "1..256")
        self.assertEqual([p["gpus"] for p in points], [1, 2, 4, 8, 16, 32, 64, 128, 256])
        self.assertIn("no whole number", points[0]["problem"])
        self.assertTrue(points[0]["problem"].startswith(("plan.", "cluster.gpus: ")), points[0]["problem"])
        known = [p for p in points if "report" in p]
        self.assertEqual(known[0]["efficiency"], 1)
        self.assertEqual([p["report"]["global_batch"] for p in known], [4 * 8 * p["dp"] for p in known])
        self.assertTrue(all(p["scaling"] == "weak" and 0 < p["efficiency"] <= 1.001 for p in known))

    def test_strong_scaling_keeps_the_batch(self):
        points = run_json("predict", *JOB, "--global-batch", 256, "--scale", "1..64")
        self.assertEqual({p["report"]["global_batch"] for p in points}, {256})
        steps = [p["report"]["step_s"] for p in points]
        self.assertEqual(steps, sorted(steps, reverse=True))

    def test_wrong_ranges(self):
        for text in ("8", "8..4", "0..4", "a..b", "1..99999999999"):
            done = program.run("predict", *JOB, "--scale", text)
            self.assertEqual(done.returncode, 2, text)
            self.assertIn("--scale", done.stderr)


class WholeRuns(unittest.TestCase):
    def test_failures_lengthen_the_run(self):
        job = ["--gpus", 1024, "--steps", 100000]
        plain, failing = step(*job), step(*job, "--mtbf", 50000)
        self.assertEqual(plain["step_s"], failing["step_s"])
        self.assertGreater(failing["total_s"], plain["total_s"])
        self.assertAlmostEqual(failing["run_losses"]["useful_share"], plain["total_s"] / failing["total_s"], places=9)
        self.assertEqual(failing["run_losses"]["checkpoint_source"], "estimate")

    def test_stragglers_slow_large_jobs(self):
        for gpus in (1, 8, 1024):
            calm, varied = step("--gpus", gpus, "--jitter", 0), step("--gpus", gpus, "--jitter", 0.02)
            self.assertAlmostEqual(varied["step_s"] - calm["step_s"], varied["breakdown"]["exposed_communication"].get("stragglers", 0), places=9)
            self.assertEqual(gpus > 1, varied["step_s"] > calm["step_s"])


if __name__ == "__main__":
    unittest.main()
