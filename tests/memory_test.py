"""Memory: recorded peaks, plans that are known to have run, the largest batch, what makes a job fit, and the views of it."""

import json
import os
import pathlib
import re
import shutil
import statistics
import sys
import tempfile
import unittest

from program import BINARY, ROOT, run, run_json

os.environ["PRECOG"] = str(BINARY)
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tools" / "gpu"), str(ROOT / "python" / "tests")]
import memory_limits  # noqa: E402
import package_support  # noqa: E402, F401: finds the package and its library; many jobs are predicted faster in one process
import precog  # noqa: E402
import published_speedups  # noqa: E402

MEASURED = ROOT / "data" / "measured"

# Where we stand on recorded steps, in per cent: (median, mean, 95th percentile) of the absolute error of max_memory_allocated,
# and the median of max_memory_reserved. A change that makes one worse fails. What is asked for is a mean of 6 and a 95th of 15.
PEAKS = {("2026-11-15-h200", "eager"): (0.2, 0.8, 3.0, 2.0), ("2026-11-15-h200-held-out", "eager"): (0.2, 1.2, 5.0, 3.5),
         ("2026-11-15-h200-compiled", "eager"): (0.2, 0.6, 2.0, 2.0), ("2026-11-15-h200-compiled", "compile"): (2.0, 3.5, 14.0, 4.0)}

# Jobs that public recipes run, and where they say so.
RAN = [
    # karpathy/nanoGPT, config/train_gpt2.py and README.md: one node of 8 x A100 40GB, DDP, bfloat16, compiled
    ("nanoGPT", ["--model", "gpt2", "--batch", 12, "--seq", 1024, "--precision", "amp-bf16", "--mode", "compile", "--gpu", "a100-sxm-40gb",
                 "--gpus", 8, "--optimizer-impl", "fused", "--global-batch", 480]),
    # tatsu-lab/stanford_alpaca, README.md: LLaMA 7B on 4 x A100 80G, FSDP full_shard, bf16, per-device batch 4, 512 tokens
    ("Alpaca", ["--model", "llama2-7b", "--batch", 4, "--seq", 512, "--precision", "amp-bf16", "--gpu", "a100-sxm-80gb", "--gpus", 4,
                "--fsdp", "full", "--global-batch", 128]),
    # google-research/bert, README.md, "Out-of-memory issues": largest batches on a 12 GB Titan X in fp32, so on a 16 GB card too
    *[(f"{model} {seq}", ["--model", model, "--batch", batch, "--seq", seq, "--precision", "fp32", "--gpu", "p100"])
      for model, batch, seq in [("bert-base", 64, 64), ("bert-base", 32, 128), ("bert-base", 16, 256), ("bert-base", 12, 384),
                                ("bert-base", 6, 512), ("bert-large", 12, 64), ("bert-large", 6, 128), ("bert-large", 2, 256)]],
    # NVIDIA/DeepLearningExamples, PyTorch/Classification/ConvNets/resnet50v1.5: 256 per GPU in mixed precision, 16 GB cards
    ("ResNet-50", ["--model", "resnet50", "--batch", 256, "--precision", "amp-fp16", "--gpu", "v100-sxm2-16gb", "--gpus", 8,
                   "--optimizer", "sgd-momentum", "--memory-format", "channels_last"]),
]
# Rajbhandari et al., ZeRO (2020), section 1: data parallelism alone ends at 1.4 billion parameters on 32 GB cards.
DIED = [("ZeRO: 3 B without sharding", ["--model", "qwen2.5-3b", "--batch", 1, "--seq", 1024, "--precision", "fp16-master", "--gpu", "v100-sxm2-32gb",
                                        "--gpus", 8])]

BASE = ["--model", "bert-base", "--seq", 128, "--precision", "amp-bf16", "--gpu", "rtx-2080-ti", "--allow-emulated"]


def recorded(folder, mode):
    lines = (MEASURED / folder / "steps.jsonl").read_text().splitlines()
    return [run for run in map(json.loads, lines) if "peak_bytes" in run.get("measured", {}) and run["request"].get("mode", "eager") == mode]


class RecordedSteps(unittest.TestCase):
    def test_peak_and_reserved_memory(self):
        for (folder, mode), (median, mean, p95, reserved_median) in PEAKS.items():
            peaks, reserved = [], []
            for row in recorded(folder, mode):
                report = precog.predict(row["request"])
                peaks.append(100 * abs(report.peak_bytes / row["measured"]["peak_bytes"] - 1))
                reserved.append(100 * abs(report.reserved_bytes / row["measured"]["reserved_bytes"] - 1))
                self.assertTrue(report.fits, row["id"])
            with self.subTest(folder, mode=mode, runs=len(peaks)):
                self.assertGreater(len(peaks), 30)
                self.assertLess(statistics.median(peaks), median)
                self.assertLess(statistics.mean(peaks), mean)
                self.assertLess(sorted(peaks)[int(0.95 * len(peaks))], p95)
                self.assertLess(statistics.median(reserved), reserved_median)


class OutOfMemory(unittest.TestCase):
    """What ran and what died on an H200 (tools/gpu/memory_limits.py): predictions were written before, and tried."""

    def test_the_largest_batch_is_within_five_per_cent(self):
        rows = [json.loads(line) for line in (MEASURED / "2026-11-15-h200-memory" / "limits.jsonl").read_text().splitlines()]
        attempts = {}
        for row in rows:
            if "measured" in row:
                attempts.setdefault(row["job"], []).append(row)
        self.assertGreaterEqual(len(attempts), 8)
        exact, bounded = 0, 0
        with tempfile.TemporaryDirectory() as scratch:
            data = pathlib.Path(scratch) / "data"
            shutil.copytree(ROOT / "data", data, ignore=shutil.ignore_patterns("measured"))
            spec, job = data / "gpus" / "h200-sxm.json", pathlib.Path(scratch) / "job.json"
            whole = spec.read_text()
            for name, tried in attempts.items():
                spec.write_text(memory_limits.with_memory(whole, tried[0]["limit_bytes"]))
                job.write_text(json.dumps(tried[0]["request"]))
                found = run_json("predict", job, "--max-batch", "--data", data)["max_batch"]["batch"]
                ran, died = max([r["batch"] for r in tried if r["measured"]["ran"]], default=0), min([r["batch"] for r in tried if not r["measured"]["ran"]], default=None)
                with self.subTest(name, found=found, ran=ran, died=died):
                    self.assertGreaterEqual(1.05 * found, ran)
                    if died is not None:
                        self.assertLess(0.95 * found, died)
                        bounded += 1
                        exact += ran <= found < died
        self.assertGreaterEqual(bounded, 7)
        self.assertGreaterEqual(exact, 5)  # 6 of 7 when it was recorded


class KnownPlans(unittest.TestCase):
    def test_what_ran_fits(self):
        for name, flags in RAN:
            with self.subTest(name):
                report = run_json("predict", *flags, expected=(0, 3))
                self.assertTrue(report["fits"], f"needs {report['device_bytes'] / 1e9:.1f} of {report['capacity_bytes'] / 1e9:.1f} GB")

    def test_what_died_does_not(self):
        for name, flags in DIED:
            with self.subTest(name):
                self.assertEqual(run("predict", *flags).returncode, 3)

    @unittest.skipUnless(published_speedups.published_file(), "PRECOG_REFERENCE_DATA is not set, or holds no published/published_dl.csv.gz")
    def test_published_runs_fit(self):
        mapping, recipes = json.loads(published_speedups.MAP.read_text()), published_speedups.known_names("precisions")
        jobs = {}
        for pair in published_speedups.read_pairs(published_speedups.published_file()):
            made = published_speedups.requests_of(pair, mapping, recipes)
            if not isinstance(made, str):
                jobs.update({json.dumps(request, sort_keys=True): request for request in made})
        wrong, predicted = [], 0
        for text, request in jobs.items():
            try:
                report = precog.predict(request)
            except precog.PrecogError:
                continue  # refused: published_test.py counts those
            predicted += 1
            if not report.fits:
                wrong.append(text)
        self.assertGreater(predicted, 600)
        self.assertEqual(wrong, [])


class WhatMakesItLess(unittest.TestCase):
    """Each way to need less memory does, costs what it must, and is said again in the report's request."""

    JOB = ["--model", "gpt2", "--batch", 8, "--seq", 1024, "--precision", "bf16", "--gpu", "h100-sxm"]

    def setUp(self):
        self.base = run_json("predict", *self.JOB)

    def test_less_memory(self):
        for flags, slower in [(["--recompute", "norm+activation"], True), (["--recompute", "mlp"], True), (["--recompute", "norm+mlp+attention"], True), (["--loss-chunks", 8], True),
                              (["--offload", "states"], True), (["--offload", "parameters"], False), (["--offload", "activations"], False), (["--offload", "activations", "--offload-layers", 6], False)]:
            with self.subTest(" ".join(map(str, flags))):
                report = run_json("predict", *self.JOB, *flags)
                self.assertLess(report["peak_bytes"], 0.99 * self.base["peak_bytes"])
                self.assertGreaterEqual(report["step_s"], 0.999 * self.base["step_s"])
                if slower:
                    self.assertGreater(report["step_s"], 1.001 * self.base["step_s"])
                key = "loss_chunks" if flags[0] == "--loss-chunks" else flags[0][2:]
                said = report["request"]["plan"] if key == "offload" else report["request"]
                self.assertEqual(said[key], flags[1])

    def test_more_saved_where_more_is_recomputed_or_moved(self):
        peak = [run_json("predict", *self.JOB, "--recompute", parts)["peak_bytes"] for parts in ("activation", "mlp", "norm+mlp", "norm+mlp+attention")]
        self.assertEqual(peak, sorted(peak, reverse=True))
        layers = [run_json("predict", *self.JOB, "--offload", "activations", "--offload-layers", count)["peak_bytes"] for count in (3, 6, 9)]
        self.assertEqual(layers, sorted(layers, reverse=True))

    def test_allocators(self):
        expandable, planned = (run_json("predict", *self.JOB, "--allocator", name) for name in ("expandable", "planned"))
        self.assertLessEqual(expandable["device_bytes"], self.base["device_bytes"])
        self.assertLessEqual(planned["device_bytes"], expandable["device_bytes"])
        self.assertEqual(expandable["step_s"], self.base["step_s"])

    def test_zero_2_shards_main_gradients(self):
        job = ["--model", "llama2-7b", "--batch", 1, "--seq", 512, "--precision", "bf16-master", "--gpu", "h200-sxm", "--gpus", 8, "--global-batch", 16]
        one, two = (run_json("predict", *job, "--fsdp", kind, expected=(0, 3))["memory"]["gradients"] for kind in ("zero1", "zero2"))
        self.assertGreater(one, 26e9)  # 6.7 G parameters in fp32
        self.assertLess(two, one / 4)

    def test_deepspeeds_stage_1_keeps_gradients_once(self):
        job = ["--model", "llama2-7b", "--batch", 1, "--seq", 512, "--gpu", "h200-sxm", "--gpus", 8, "--fsdp", "zero1"]  # 6.74 G parameters
        half, bf16 = (run_json("predict", *job, "--precision", recipe)["memory"]["by_category"] for recipe in ("deepspeed-fp16", "deepspeed-bf16"))
        self.assertAlmostEqual(half["gradients"] / 13.48e9, 1, delta=0.01)  # where autograd left them
        self.assertLess(half["gradient_buckets"], 3.5e9)                    # a rank's share in fp32
        self.assertAlmostEqual(bf16["gradient_buckets"] / 26.95e9, 1, delta=0.05)  # the optimizer's own, in fp32; messages in bf16 come and go

    def test_deepspeeds_states_are_there_before_the_first_step(self):
        # So they lie together: no state sits in a segment that an activation asked for.
        job = ["--model", "llama2-7b", "--batch", 2, "--seq", 4096, "--gpu", "h200-sxm", "--gpus", 8, "--fsdp", "zero2", "--recompute", "full"]
        deepspeed, megatron = (run_json("predict", *job, "--precision", recipe) for recipe in ("deepspeed-bf16", "bf16-master"))
        self.assertLess(deepspeed["reserved_bytes"] / deepspeed["peak_bytes"], megatron["reserved_bytes"] / megatron["peak_bytes"])

    def test_a_layer_waits_for_its_own_parameters(self):
        report = run_json("predict", *self.JOB, "--offload", "parameters")
        # Twice up, once down and up in the update; the link carries 64 GB/s at most, and the layers are too short to hide it.
        self.assertGreater(report["step_s"], self.base["step_s"] + 0.5 * 2 * report["memory"]["gradients"] / 64e9)

    def test_the_core_of_an_attention_that_is_written_out(self):
        core, selective = (run_json("predict", *self.JOB, "--attention", "eager", "--recompute", parts)["peak_bytes"] for parts in ("core", "selective"))
        self.assertLess(core, 1.02 * selective)

    def test_recomputation_that_does_nothing_says_so(self):
        said = run_json("predict", "--model", "resnet50", "--batch", 8, "--gpu", "h100-sxm", "--precision", "amp-bf16", "--recompute", "core")["warnings"]
        self.assertTrue(any("recompute core does nothing" in one for one in said), said)
        self.assertFalse(any("does nothing" in one for one in run_json("predict", *self.JOB, "--recompute", "core")["warnings"]))

    def test_the_hosts_memory_is_said_and_checked(self):
        job = ["--model", "llama2-70b", "--batch", 1, "--seq", 2048, "--precision", "fp16", "--fsdp", "full", "--recompute", "full", "--offload", "optimizer+parameters"]
        small, large = (run_json("predict", *job, "--cluster", name, expected=(0, 3)) for name in ("dgx-1-v100", "dgx-a100-80gb"))
        self.assertEqual(small["host_bytes_per_node"], 8 * small["host_bytes"])
        self.assertGreater(small["host_bytes_per_node"], 68.9e9 * 18)  # weights twice, two states and gradients: 18 bytes each
        self.assertEqual((small["fits"], large["fits"]), (False, True))
        self.assertTrue(any("host's memory" in one for one in small["warnings"]))
        self.assertNotIn("host_bytes", self.base)

    def test_what_cannot_be(self):
        for flags, said in [(["--recompute", "norm+"], "known"), (["--recompute", "soup"], "norm, activation"), (["--offload", "soup"], "DeepSpeed's offload_optimizer"), (["--offload", "optimizer+states"], "choose one"),
                            (["--offload-layers", 3], "offload activations"), (["--loss-chunks", 0], "from 1 to"), (["--loss-chunks", 8193], "8192 tokens"), (["--allocator", "soup"], "expandable"),
                            (["--offload", "activations", "--mode", "compile"], "compiled"), (["--offload", "parameters", "--gpus", 8], "fsdp full")]:
            with self.subTest(" ".join(map(str, flags))):
                done = run("predict", *self.JOB, *flags)
                self.assertEqual(done.returncode, 2)
                self.assertIn(said, done.stderr)


class CudaGraphs(unittest.TestCase):
    """A pool of their own, as torch/_inductor/cudagraph_trees.py keeps it."""

    def compiled(self, *flags):
        return [run_json("predict", "--gpu", "h100-sxm", *flags, "--mode", mode) for mode in ("compile", "compile-cudagraphs")]

    def test_what_graphs_hold_nothing_else_can_have(self):
        for flags in (["--model", "gpt2", "--batch", 8, "--precision", "amp-bf16"], ["--model", "resnet50", "--batch", 64, "--precision", "bf16"],
                      ["--model", "bert-large", "--batch", 8, "--precision", "fp32", "--optimizer", "sgd-momentum"]):
            with self.subTest(flags):
                plain, graphs = self.compiled(*flags)
                pool, kept = graphs["memory"]["graph_pool"], graphs["memory"]["parameters"] + graphs["memory"]["optimizer"]
                self.assertNotIn("graph_pool", plain["memory"])
                self.assertGreater(pool, graphs["memory"]["activations"] - graphs["memory"]["by_category"]["inputs"])  # gradients and workspaces, too
                self.assertGreater(graphs["device_bytes"], pool + kept + 0.8e9)  # and a context
                self.assertGreaterEqual(graphs["reserved_bytes"], pool + kept)
                # Copies in the optimizer (foreach) lie beside the pool, not in what activations left.
                lists = max(point.get("optimizer_temporaries", 0) for point in graphs["memory"]["timeline"])
                if lists:
                    self.assertGreater(graphs["reserved_bytes"], pool + kept + lists)

    def test_inputs_are_there_twice(self):
        plain, graphs = (report["memory"]["by_category"]["inputs"] for report in self.compiled("--model", "resnet50", "--batch", 64, "--precision", "bf16"))
        self.assertEqual(graphs, 2 * plain - 512)  # of labels, which forward alone reads, the copy is gone at the peak

    def test_a_gradient_of_scores_is_copied_in(self):
        # 4 x 2048 x 128,256 scores in fp32: zeros, made outside, and the graph's copy of them.
        plain, graphs = (report["peak_bytes"] for report in self.compiled("--model", "llama3-8b", "--layers", 4, "--batch", 4, "--seq", 2048, "--precision", "bf16"))
        self.assertAlmostEqual((graphs - plain) / (4 * 4 * 2048 * 128256), 1, delta=0.03)

    def test_the_pool_counts_in_what_fits_and_can_be_done_without(self):
        job = ["--model", "qwen2.5-0.5b", "--seq", 1024, "--precision", "amp-bf16", "--gpu", "rtx-4090"]
        plain, graphs = (run_json("predict", *job, "--mode", mode, "--max-batch")["batch"] for mode in ("compile", "compile-cudagraphs"))
        self.assertLess(graphs, plain)
        report = run_json("predict", *job, "--mode", "compile-cudagraphs", "--batch", plain, expected=(3,))
        without = [fix for fix in report["fixes"] if fix["flags"] == "--mode compile"]
        self.assertEqual([fix["change"] for fix in without], ["no CUDA graphs"])

    def test_several_steps_keep_one_pool(self):
        one, four = (run_json("predict", "--model", "gpt2", "--batch", 4, "--gpu", "h100-sxm", "--precision", "amp-bf16", "--mode", "compile-cudagraphs", "--global-batch", batch)["memory"]["graph_pool"] for batch in (4, 16))
        self.assertAlmostEqual(four / one, 1, delta=0.1)


class LargestBatch(unittest.TestCase):
    def test_fragmentation_of_one_batch_stops_no_larger_one(self):
        # Of bert-base 175 and 180 samples take a third more segments than their neighbours; of llama3-8b 21 do, and 22 and 23 fit.
        job = ["--model", "bert-base", "--seq", 512, "--recompute", "full", "--gpu", "a100-sxm-40gb", "--precision", "amp-bf16"]
        for batch in (175, 179, 180, 181):
            self.assertTrue(run_json("predict", *job, "--batch", batch)["fits"])
        self.assertGreater(run_json("predict", *job, "--max-batch")["max_batch"]["batch"], 210)
        found = run_json("predict", "--model", "llama3-8b", "--seq", 2048, "--recompute", "full", "--gpu", "h200-sxm", "--precision", "bf16", "--max-batch")["max_batch"]
        self.assertGreaterEqual(found["batch"], 22)
        self.assertTrue(all(hole < found["batch"] for hole in found["fragmented"]))

    def test_it_fits_and_one_more_does_not(self):
        found = run_json("predict", *BASE, "--max-batch")
        batch = found["max_batch"]["batch"]
        self.assertEqual(found["batch"], batch)
        self.assertEqual(found["max_batch"]["next_batch"], batch + 1)
        self.assertGreater(batch, 1)
        self.assertGreater(found["samples_per_s"], 0)
        self.assertTrue(run_json("predict", *BASE, "--batch", batch)["fits"])
        more = run_json("predict", *BASE, "--batch", batch + 1, expected=(3,))
        self.assertFalse(more["fits"])
        self.assertEqual(more["device_bytes"], found["max_batch"]["next_device_bytes"])

    def test_a_global_batch_leaves_its_divisors(self):
        found = run_json("predict", *BASE, "--global-batch", 96, "--max-batch")
        self.assertEqual(96 % found["batch"], 0)
        self.assertEqual(found["global_batch"], 96)

    def test_nothing_fits(self):
        found = run_json("predict", "--model", "llama3-8b", "--precision", "fp32", "--gpu", "t4", "--max-batch", expected=(3,))
        self.assertEqual(found["max_batch"]["batch"], 0)
        self.assertEqual(found["batch"], 1)
        self.assertFalse(found["fits"])

    def test_a_change_is_listed_with_the_largest_batch_that_it_lets_through(self):
        # Of these, changes of degrees among them: typed in, with --max-batch, each is what was listed.
        for job in (["--model", "gpt2-xl", "--precision", "amp-bf16", "--gpu", "rtx-3090", "--gpus", 4, "--micro-batches", 4],
                    ["--model", "llama3-70b", "--precision", "bf16", "--gpu", "h100-sxm", "--gpus", 16, "--tp", 4],
                    ["--model", "gpt2-xl", "--precision", "fp32", "--gpu", "rtx-4090", "--global-batch", 64]):
            found = run_json("predict", *job, "--max-batch", expected=(3,))
            self.assertEqual(found["max_batch"]["batch"], 0)
            listed = [(fix["flags"], fix) for fix in found["fixes"]] + [(f"{fix['flags']} {fix['faster_with']['flags']}", fix["faster_with"]) for fix in found["fixes"] if "faster_with" in fix]
            self.assertGreaterEqual(len(listed), 6)
            for flags, said in listed:
                with self.subTest(flags):
                    typed = run_json("predict", *job, "--max-batch", *flags.split())
                    self.assertEqual((typed["batch"], typed["step_s"], typed["device_bytes"]), (said["batch"], said["step_s"], said["device_bytes"]))
                    self.assertAlmostEqual(found["samples_per_s"] / typed["samples_per_s"], said["time_ratio"])
            self.assertTrue(any(fix["batch"] > 1 for fix in found["fixes"]) or "llama3-70b" in job)
            self.assertEqual([fix["time_ratio"] for fix in found["fixes"]], sorted(fix["time_ratio"] for fix in found["fixes"]))

    def test_as_a_field_of_the_request(self):
        with tempfile.TemporaryDirectory() as scratch:
            path = pathlib.Path(scratch) / "job.json"
            job = {"schema": 1, "model": "gpt2", "precision": "amp-bf16", "cluster": {"gpu": "h100-sxm"}, "max_batch": True}
            path.write_text(json.dumps(job))
            self.assertEqual(run_json("predict", path)["max_batch"], run_json("predict", "--model", "gpt2", "--precision", "amp-bf16", "--gpu",
                                                                              "h100-sxm", "--max-batch")["max_batch"])
            path.write_text(json.dumps({**job, "max_batch": "yes"}))
            done = run("predict", path)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn("max_batch: wants true or false", done.stderr)

    def test_wrong_uses(self):
        for arguments, said in [(["compare", "--model", "gpt2", "--gpu", "t4", "--batch", 1, "--max-batch"], "belongs to predict"),
                                (["predict", *BASE, "--max-batch", "--dump-after", "memory"], "leave out --max-batch"),
                                (["predict", "--model", "gpt2", "--max-batch", "--precision", "fp32"], "gpu")]:
            done = run(*arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""), arguments)
            self.assertIn(said, done.stderr)


class Fixes(unittest.TestCase):
    JOB = ["predict", "--model", "gpt2-medium", "--batch", 8, "--precision", "fp32", "--gpu", "rtx-4090"]

    def test_each_fits_when_tried_and_the_cheapest_is_first(self):
        report = run_json(*self.JOB, expected=(3,))
        self.assertGreaterEqual(len(report["fixes"]), 3)
        costs = [fix["time_ratio"] for fix in report["fixes"]]
        self.assertEqual(costs, sorted(costs))
        for fix in report["fixes"]:
            with self.subTest(fix["change"]):
                changed = run_json(*self.JOB, *fix["flags"].split())  # later flags win
                self.assertTrue(changed["fits"])
                self.assertEqual(changed["step_s"], fix["step_s"])
                self.assertEqual(changed["device_bytes"], fix["device_bytes"])

    def test_several_together_where_one_is_not_enough(self):
        report = run_json("predict", "--model", "llama3-8b", "--gpu", "h100-sxm", "--gpus", 8, "--batch", 2, "--seq", 4096, "--precision", "amp-bf16",
                          expected=(3,))
        self.assertTrue(report["fixes"])
        for fix in report["fixes"]:
            self.assertLessEqual(fix["device_bytes"], report["capacity_bytes"])

    def test_text_and_page_say_them(self):
        with tempfile.TemporaryDirectory() as scratch:
            page = pathlib.Path(scratch) / "report.html"
            done = run(*self.JOB, "--html", page)
            self.assertEqual(done.returncode, 3)
            self.assertIn("What would make it fit", done.stdout)
            self.assertIn("--batch 4", done.stdout)
            self.assertIn("What would make it fit", page.read_text())

    def test_what_fits_needs_none(self):
        self.assertNotIn("fixes", run_json("predict", *BASE, "--batch", 1))


class Views(unittest.TestCase):
    def test_parts_add_up_and_the_timeline_holds_the_peak(self):
        for extra in ([], ["--mode", "compile"], ["--recompute", "full"], ["--gpus", 8, "--fsdp", "full"]):
            report = run_json("predict", "--model", "bert-base", "--batch", 8, "--precision", "amp-bf16", "--gpu", "h100-sxm", *extra)
            memory = report["memory"]
            with self.subTest(extra):
                parts = sum(memory[key] for key in ("parameters", "gradients", "optimizer", "activations", "workspace"))
                self.assertEqual(parts, report["peak_bytes"])
                self.assertEqual(sum(memory["by_category"].values()), report["peak_bytes"])
                self.assertEqual(sum(module["bytes"] for module in memory["by_module"]), report["peak_bytes"])
                self.assertEqual(memory["fragmentation"], report["reserved_bytes"] - report["peak_bytes"])
                self.assertEqual(report["peak_bytes"] + memory["gaps"] + memory["outside"], report["device_bytes"])
                self.assertLessEqual(memory["gaps"], memory["fragmentation"])
                self.assertLessEqual(len(memory["timeline"]), 250)
                self.assertEqual(max(point["bytes"] for point in memory["timeline"]), report["peak_bytes"])
                times = [point["s"] for point in memory["timeline"]]
                self.assertEqual(times, sorted(times))
                self.assertTrue(0 <= times[0] < 0.05 * report["step_s"])  # of this step, not of the host's way to it
                self.assertAlmostEqual(times[-1], report["step_s"], delta=0.05 * report["step_s"])
                self.assertLess(report["device_bytes_low"], report["device_bytes"])
                self.assertLess(report["device_bytes"], report["device_bytes_high"])

    def test_verdict_is_certain_far_from_the_limit_only(self):
        small = run_json("predict", *BASE, "--batch", 1)
        self.assertEqual(small["fits_verdict"], "certain")
        batch = run_json("predict", *BASE, "--max-batch")["batch"]
        self.assertEqual(run_json("predict", *BASE, "--batch", batch)["fits_verdict"], "likely")
        self.assertEqual(run_json("predict", *BASE, "--batch", 4 * batch, expected=(3,))["fits_verdict"], "certain")

    def test_picture_and_counter_track(self):
        with tempfile.TemporaryDirectory() as scratch:
            page, trace = pathlib.Path(scratch) / "report.html", pathlib.Path(scratch) / "trace.json"
            report = run_json("predict", *BASE, "--batch", 4, "--html", page, "--trace", trace)
            text = page.read_text()
            self.assertIn("Memory over the step", text)
            self.assertIn("Memory at the peak, by module", text)
            self.assertIn(f"<td>{report['memory']['by_module'][0]['module']}</td>", text)
            self.assertEqual(len(re.findall(r'<title id="memory-timeline-t">', text)), 1)
            counters = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "C"]
            self.assertEqual(max(sum(event["args"].values()) for event in counters), report["peak_bytes"])
            kernels = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X" and event["tid"] == 1]
            self.assertAlmostEqual(counters[0]["ts"], min(event["ts"] for event in kernels), delta=0.02e6 * report["step_s"])


if __name__ == "__main__":
    unittest.main()
