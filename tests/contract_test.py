"""The JSON report, the request, and the commands that make one out of the other: fields, exit codes, arithmetic."""

import json
import math
import pathlib
import re
import shlex
import tempfile
import unittest

from contract import BREAKDOWN, LLAMA, MEMORY, PRECISION_NAMES, REPORT_NUMBERS, REPORT_REST, SMALL, InTemporaryFolder, every_precision
from program import run, run_json


def numbers(value, path=""):
    """Every number in a document, with where it is."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from numbers(item, f"{path}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from numbers(item, f"{path}[{index}]")
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path, value


def breakdown_sum(report):
    parts = report["breakdown"]
    return sum(parts[key] for key in BREAKDOWN if key != "exposed_communication") + sum(parts["exposed_communication"].values())


class ReportFields(unittest.TestCase):
    def check_report(self, report):
        for field in REPORT_NUMBERS:
            self.assertIsInstance(report[field], (int, float), field)
            self.assertGreater(report[field], 0, field)
        for field in REPORT_REST:
            self.assertIn(field, report)
        self.assertEqual(set(MEMORY) - set(report["memory"]), set())
        self.assertEqual(set(BREAKDOWN) - set(report["breakdown"]), set())
        for where, number in numbers(report):
            self.assertTrue(math.isfinite(number), where)
            self.assertGreaterEqual(number, 0, where)
        self.assertIn(report["bound"], ["compute", "memory", "host", "network"])
        self.assertAlmostEqual(breakdown_sum(report) / report["step_s"], 1, delta=0.01)
        self.assertLessEqual(report["step_s_low"], report["step_s"])
        self.assertLessEqual(report["step_s"], report["step_s_high"])
        self.assertLess(report["step_s_low"], report["step_s_high"])
        self.assertEqual(sum(report["memory"][key] for key in MEMORY if key != "fragmentation"), report["peak_bytes"])
        self.assertLessEqual(report["peak_bytes"], report["reserved_bytes"])
        self.assertLessEqual(report["reserved_bytes"], report["device_bytes"])
        self.assertLessEqual(report["gpu_busy_s"], report["step_s"] * 1.0001)
        self.assertLessEqual(report["mfu"], 1)
        kinds = {entry["kind"] for entry in report["provenance"]}
        self.assertLessEqual(kinds, {"measured", "fitted", "scaled", "datasheet", "estimate"})
        self.assertIn("estimate", kinds)  # the host and the allocator's own are, so far
        self.assertTrue(all(entry["what"] and entry["source"] for entry in report["provenance"]))
        self.assertTrue(all(entry.get("on", "somewhere") for entry in report["provenance"]))
        self.assertIsInstance(report["cast_kernels"], int)
        self.assertLessEqual(report["cast_kernels"], report["kernels"])

    def test_a_job_that_does_not_fit_still_gets_its_whole_report(self):
        done = run("predict", *LLAMA, "--json")
        self.assertEqual(done.returncode, 3, done.stderr)  # 8 G parameters with Adam's states: above 80 GB on every replica
        self.assertEqual(done.stderr, "")
        report = json.loads(done.stdout)
        self.check_report(report)
        self.assertFalse(report["fits"])
        self.assertTrue(any("fit" in warning for warning in report["warnings"]))
        text = run("predict", *LLAMA)
        self.assertEqual(text.returncode, 3)
        self.assertIn("step", text.stdout)

    def test_a_job_that_fits(self):
        done = run("predict", *SMALL, "--json")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        report = json.loads(done.stdout)
        self.check_report(report)
        self.assertTrue(report["fits"])
        self.assertAlmostEqual(report["samples_per_s"], report["request"]["global_batch"] / report["step_s"], delta=1e-6 * report["samples_per_s"])
        self.assertAlmostEqual(report["tokens_per_s"], report["samples_per_s"] * 64, delta=1e-6 * report["tokens_per_s"])
        self.assertAlmostEqual(report["tokens_per_s_per_gpu"], report["tokens_per_s"] / 2, delta=1e-6 * report["tokens_per_s"])

    def test_every_family_reports_every_field(self):
        for model in ["resnet18", "vgg16", "mobilenet_v2", "vit-b", "gpt2", "t5-base", "qwen2.5-0.5b"]:
            with self.subTest(model):
                report = run_json("predict", "--model", model, "--gpu", "a100-sxm-80gb", "--batch", 2, "--precision", "amp-fp16")
                language = model in ("gpt2", "t5-base", "qwen2.5-0.5b")
                if not language:
                    self.assertIsNone(report["tokens_per_s"])
                    report["tokens_per_s"] = report["tokens_per_s_per_gpu"] = 1
                self.check_report(report)
                self.assertGreater(report["breakdown"]["casts"], 0)
                self.assertGreater(report["breakdown"]["loss_scaling"], 0)

    def test_a_run_has_a_length_and_a_price(self):
        report = run_json("predict", *SMALL, "--samples", 8000, "--price", 3.6)
        self.assertAlmostEqual(report["total_s"], 1000 * report["step_s"], delta=1e-6 * report["total_s"])
        self.assertAlmostEqual(report["cost_usd"], report["total_s"] * 2 * 3.6 / 3600, delta=1e-6 * report["cost_usd"])
        twice = run_json("predict", *SMALL, "--samples", 8000, "--price", 7.2)
        self.assertAlmostEqual(twice["cost_usd"], 2 * report["cost_usd"], delta=1e-9 * twice["cost_usd"])
        self.assertEqual(twice["step_s"], report["step_s"])
        by_epochs = run_json("predict", *SMALL, "--epochs", 2, "--dataset-samples", 4000)
        self.assertAlmostEqual(by_epochs["total_s"], report["total_s"], delta=1e-6 * report["total_s"])
        by_tokens = run_json("predict", *SMALL, "--tokens", 8000 * 64)
        self.assertAlmostEqual(by_tokens["total_s"], report["total_s"], delta=1e-6 * report["total_s"])

    def test_the_echoed_request_gives_the_same_report(self):
        first = run_json("predict", *SMALL)
        with tempfile.TemporaryDirectory() as folder:
            job = pathlib.Path(folder) / "job.json"
            job.write_text(json.dumps(first["request"]))
            self.assertEqual(run_json("predict", job), first)


class Requests(InTemporaryFolder):
    def test_the_same_request_gives_the_same_bytes(self):
        for arguments in (["predict", *SMALL, "--json"], ["compare", *every_precision(SMALL), "--json"], ["predict", *SMALL, "--dump-after", "sim"]):
            self.assertEqual(run(*arguments).stdout, run(*arguments).stdout)

    def test_flags_override_the_job_file(self):
        job = self.write("job.json", {"schema": 1, "model": "bert-large", "batch": 2, "seq": 128, "precision": "amp-bf16", "mode": "eager",
                                      "optimizer": "adamw", "recompute": "none",
                                      "cluster": {"gpu": "a100-sxm-80gb", "gpus": 8, "gpus_per_node": 8, "network": "ib-hdr"},
                                      "plan": {"dp": 8, "fsdp": "none", "tp": 1, "sp": False, "pp": 1, "cp": 1, "ep": 1},
                                      "run": {"tokens": 1e9}, "price_usd_per_gpu_hour": 2.5})
        from_file = run_json("predict", job)
        self.assertEqual((from_file["request"]["batch"], from_file["gpu"], from_file["request"]["global_batch"]), (2, "a100-sxm-80gb", 16))
        self.assertGreater(from_file["cost_usd"], 0)
        changed = run_json("predict", job, "--batch", 4, "--gpu", "h100-sxm", "--precision", "bf16", "--samples", 100)
        self.assertEqual((changed["request"]["batch"], changed["gpu"], changed["precision"]), (4, "h100-sxm", "bf16"))
        self.assertEqual(changed["request"]["run"], {"samples": 100.0})
        self.assertEqual(changed["request"]["seq"], 128)
        by_flags = run_json("predict", "--model", "bert-large", "--batch", 2, "--seq", 128, "--precision", "amp-bf16", "--gpu", "a100-sxm-80gb",
                            "--gpus", 8, "--tokens", 1e9, "--price", 2.5)
        self.assertEqual(by_flags, from_file)

    def test_a_named_cluster_with_its_nodes(self):
        report = run_json("predict", "--model", "bert-base", "--batch", 8, "--precision", "bf16", "--cluster", "dgx-h100:4")
        self.assertEqual((report["gpu"], report["gpus"], report["request"]["cluster"]["gpus_per_node"]), ("h100-sxm", 32, 8))

    def test_the_cluster_that_was_assumed_is_said(self):
        job = ["--model", "bert-base", "--batch", 8, "--gpu", "rtx-4090", "--gpus", 8]
        cluster = run_json("predict", *job, "--precision", "amp-bf16")["request"]["cluster"]
        nodes = 8 // cluster["gpus_per_node"]
        said = f"8 GPUs: {nodes} nodes of {cluster['gpus_per_node']} ({cluster['name']}), {cluster['network']} between\n"
        self.assertGreater(nodes, 1)
        page = self.folder / "page.html"
        self.assertIn(said, run("predict", *job, "--precision", "amp-bf16", "--html", page).stdout)
        self.assertIn(said.strip(), page.read_text())
        self.assertIn(said, run("compare", *job).stdout)
        self.assertNotIn(" GPUs: ", run("compare", *job, "--gpus", 1).stdout)

    def test_the_global_batch_is_accumulated(self):
        one = run_json("predict", *SMALL)
        four = run_json("predict", *SMALL, "--global-batch", 32)
        self.assertEqual(four["micro_batches"], 4)
        self.assertGreater(four["step_s"], 2 * one["step_s"])
        self.assertLess(four["step_s"], 4.001 * one["step_s"])  # one optimizer step and one reduction, not four

    def test_an_alias_is_the_same_gpu(self):
        self.assertEqual(run_json("predict", *SMALL, "--gpu", "H100"), run_json("predict", *SMALL))


class Precisions(unittest.TestCase):
    def test_no_hardware_is_an_error_that_names_what_there_is(self):
        done = run("predict", "--model", "bert-base", "--gpu", "v100-sxm2-32gb", "--batch", 8, "--precision", "bf16")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        for fragment in ["bf16", "v100-sxm2-32gb", "amp-fp16", "fp32", "--allow-emulated"]:
            self.assertIn(fragment, done.stderr)
        supported = done.stderr.split("supported:")[1]
        self.assertNotIn("amp-bf16", supported)
        self.assertNotIn("tf32,", supported)

    def test_emulation_is_predicted_with_a_warning(self):
        common = ["--model", "bert-base", "--gpu", "v100-sxm2-32gb", "--batch", 8]
        emulated = run_json("predict", *common, "--precision", "bf16", "--allow-emulated")
        self.assertTrue(any("emulat" in warning for warning in emulated["warnings"]), emulated["warnings"])
        self.assertGreater(emulated["step_s"], run_json("predict", *common, "--precision", "fp16")["step_s"])

    def test_an_unknown_precision_names_the_nearest(self):
        done = run("predict", *SMALL[:-1], "amp-bfloat16")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("nearest known", done.stderr)
        self.assertIn("amp-bf16", done.stderr)
        done = run("predict", *SMALL[:-1], "fp8-rowise")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("fp8-rowise", done.stderr)
        self.assertRegex(done.stderr, r"nearest known: .*fp")


class Compare(unittest.TestCase):
    def test_every_supported_precision_fastest_first(self):
        for gpu, expected in {"h100-sxm": PRECISION_NAMES, "v100-sxm2-32gb": ["fp32", "fp16", "amp-fp16"]}.items():
            with self.subTest(gpu):
                reports = run_json("compare", "--model", "bert-large", "--gpu", gpu, "--batch", 16)["reports"]
                self.assertLessEqual(set(expected), {report["precision"] for report in reports})
                for absent in {"h100-sxm": ["mxfp8", "nvfp4"], "v100-sxm2-32gb": ["tf32", "bf16", "amp-bf16", "fp8"]}[gpu]:
                    self.assertNotIn(absent, {report["precision"] for report in reports})
                times = [report["step_s"] for report in reports]
                self.assertEqual(times, sorted(times))

    def test_what_is_left_out_is_said(self):
        """Every precision is a row or has a reason. Without TF32, PyTorch's default is fp32 again; asked for by name, it is there."""
        arguments = ["--model", "resnet18", "--gpu", "v100-sxm2-32gb", "--batch", 16]
        compared = run_json("compare", *arguments)
        left_out = {entry["precision"]: entry["reason"] for entry in compared["left_out"]}
        recipes = [entry for entry in run_json("precisions") if not entry.get("part")]
        listed = {entry["name"] for entry in recipes if entry.get("listed", True)}
        self.assertEqual({report["precision"] for report in compared["reports"]} | set(left_out), listed)
        everything = run_json("compare", *arguments, "--all")
        self.assertEqual(len(everything["reports"]) + len(everything["left_out"]), len(recipes))
        self.assertIn("TF32", left_out["fp32-default"])
        for name, missing in {"bf16": "bf16", "amp-bf16": "bf16", "tf32": "tf32"}.items():
            self.assertIn(f"no {missing} hardware", left_out[name])
        lines = run("compare", *arguments).stdout.split("left out: ")
        self.assertEqual(len(lines), 2)
        for name in left_out:
            self.assertIn(name, lines[1])
        asked = run_json("compare", *arguments, "--precisions", "fp32,fp32-default")
        self.assertEqual(len({report["step_s"] for report in asked["reports"]}), 1)
        self.assertEqual(asked["left_out"], [])

    def test_advice_when_nothing_fits_is_what_can_be_predicted(self):
        job = ["--model", "llama3-70b", "--gpu", "h100-sxm", "--gpus", 8, "--seq", 512]
        for more, expected in ((["--batch", 2], "a smaller batch, --recompute full or a GPU with more memory."),
                               (["--batch", 1], "help: --recompute full or a GPU with more memory."),
                               (["--batch", 1, "--recompute", "full"], "help: a GPU with more memory.")):
            verdict = run_json("compare", *job, *more, expected=(3,))["verdict"]
            self.assertTrue(verdict.endswith(expected), verdict)

    def test_the_table_says_the_same_as_the_json(self):
        arguments = ["--model", "bert-large", "--gpu", "h100-sxm", "--gpus", 8, "--batch", 32, "--price", 2]
        names = [report["precision"] for report in run_json("compare", *arguments)["reports"] if report["precision"] in PRECISION_NAMES]
        text = run("compare", *arguments).stdout
        rows = [line.split()[0] for line in text.splitlines() if line.split()[:1] and line.split()[0] in PRECISION_NAMES]
        self.assertEqual(rows[:len(names)], names)
        for heading in ["precision", "step", "/s", "mem", "$", "bound"]:
            self.assertIn(heading, text)

    def test_resnet50_on_a_v100(self):
        """fp32 against AMP, where published PyTorch rows agree with each other.

        ResNet-50 v1.5, one V100: NCHW rows have ratios of 2.06 to 2.36 (NVIDIA DeepLearningExamples READMEs of 2019 and 2020;
        Oneflow DLPerf, 367.29 against 802.9 to 827.86 images/s), AMP in channels_last against NCHW fp32 about 3.2
        (DeepLearningExamples of 2021: 367 against 1200 images/s).
        """
        arguments = ["--model", "resnet50", "--gpu", "v100-sxm2-32gb", "--batch", 256]
        reports = {report["precision"]: report for report in run_json("compare", *arguments)["reports"]}
        ratio = reports["fp32"]["step_s"] / reports["amp-fp16"]["step_s"]
        self.assertGreater(ratio, 1.75)
        self.assertLess(ratio, 3.2)
        self.assertNotIn("bf16", reports)
        self.assertNotIn("tf32", reports)
        text = run("compare", *arguments).stdout
        self.assertIn("estimate", text)
        order = re.findall(r"^(\S+) .*x .*$", text, re.M)
        self.assertLess(order.index("amp-fp16"), order.index("fp32"))

    def test_each_recipe_says_what_it_wins_or_loses(self):
        compared = run_json("compare", "--model", "gpt2", "--gpu", "h100-sxm", "--batch", 8)
        said = {report["precision"]: report["wins_or_loses"] for report in compared["reports"]}
        self.assertTrue(said[compared["reports"][0]["precision"]].startswith("the fastest; "))
        self.assertRegex(said["amp-bf16"], r"x as fast as tf32 \(products -")
        self.assertRegex(said["fp32"], r"^\+\d+% vs .*products \+.*vs tf32 ")
        # The host of eager PyTorch at batch 1: more launches, no faster.
        small = run_json("compare", "--model", "mobilenet_v2", "--gpu", "h100-sxm", "--batch", 1)
        losers = {entry["precision"]: entry["cause"] for entry in small["loses_to_plain"]}
        self.assertEqual(losers.get("amp-bf16"), "host")

    def test_advice_is_what_predict_says(self):
        job = ["--model", "resnet50", "--gpu", "a100-sxm-80gb", "--batch", 128]
        advised = run_json("compare", *job, "--precision", "amp-fp16", "--advise")
        self.assertEqual(advised["advice_for"]["precision"], "amp-fp16")
        gains = [advice["gain"] for advice in advised["advice"]]
        self.assertEqual(gains, sorted(gains, reverse=True))
        now = run_json("predict", *job, "--precision", "amp-fp16")
        self.assertIn("--memory-format channels_last", [advice["flags"] for advice in advised["advice"]])
        for advice in [*advised["advice"], advised["advice_combined"]]:
            flags = shlex.split(advice["flags"])
            report = run_json("predict", *job, *([] if "--precision" in flags else ["--precision", "amp-fp16"]), *flags)
            self.assertEqual(report["step_s"], advice["step_s"], advice["flags"])
            self.assertAlmostEqual(advice["gain"], 1 - now["samples_per_s"] / report["samples_per_s"], delta=1e-9)
        self.assertNotIn("advice", run_json("compare", *job, "--precisions", "fp32"))

    def test_only_the_precisions_asked_for(self):
        reports = run_json("compare", *every_precision(SMALL), "--precisions", "fp32,amp-bf16")["reports"]
        self.assertEqual({report["precision"] for report in reports}, {"fp32", "amp-bf16"})


if __name__ == "__main__":
    unittest.main()
