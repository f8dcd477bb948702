"""What must hold whatever the coefficients are."""

import os
import pathlib
import subprocess
import unittest

import program
from contract import SMALL
from program import run_json


class Properties(unittest.TestCase):
    def test_a_larger_batch_is_never_a_faster_step(self):
        for model, gpu, precision in [("resnet50", "v100-sxm2-32gb", "amp-fp16"), ("bert-base", "h100-sxm", "amp-bf16"), ("gpt2", "t4", "fp32")]:
            reports = [run_json("predict", "--model", model, "--gpu", gpu, "--precision", precision, "--batch", batch, expected=(0, 3))
                       for batch in (1, 2, 8, 32, 128)]
            for field in ("step_s", "peak_bytes"):
                values = [report[field] for report in reports]
                rounding = 0.99 if field == "peak_bytes" else 1  # the allocator's blocks: small batches may differ by their rests
                self.assertTrue(all(b >= a * rounding for a, b in zip(values, values[1:])), f"{model} {field} {values}")
            # The last steps fill the GPU: throughput does not fall either.
            self.assertGreater(reports[-1]["samples_per_s"], reports[0]["samples_per_s"], model)

    def test_more_parameters_never_need_less(self):
        for family in (["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"], ["qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-7b"], ["llama2-7b", "llama2-13b"],
                       ["resnet18", "resnet50", "resnet152"]):
            reports = [run_json("predict", "--model", model, "--gpu", "h200-sxm", "--batch", 1, "--precision", "bf16", expected=(0, 3))
                       for model in family]
            for field in ("parameters", "peak_bytes", "step_s"):
                values = [report[field] for report in reports]
                self.assertEqual(values, sorted(values), f"{family} {field}")

    def test_one_gpu_has_no_communication(self):
        report = run_json("predict", *SMALL, "--gpus", 1)
        self.assertEqual(sum(report["breakdown"]["exposed_communication"].values()), 0)
        two = run_json("predict", *SMALL)
        self.assertGreater(sum(two["breakdown"]["exposed_communication"].values()), 0)
        self.assertGreaterEqual(two["step_s"], report["step_s"])

    def test_where_nccl_takes_another_protocol_a_step_hardly_gains(self):
        # Its own model of them is not the truth, so that a step may; but not by more than what it believes to lose.
        job = ["predict", "--model", "bert-large", "--gpu", "v100-sxm2-32gb", "--batch", 4, "--precision", "amp-fp16", "--fsdp", "full"]
        steps = [run_json(*job, "--gpus", gpus)["step_s"] for gpus in (16, 32, 64, 128)]
        self.assertTrue(all(b >= 0.96 * a for a, b in zip(steps, steps[1:])), steps)

    def test_a_profile_of_another_gpu_is_a_warning(self):
        profile = str(pathlib.Path(os.environ.get("PRECOG_DATA", pathlib.Path(__file__).parent.parent / "data")) / "profiles" / "h200-sxm.json")
        job = ["predict", "--model", "bert-base", "--batch", 4, "--precision", "bf16", "--profile", profile]
        self.assertTrue(any("was fitted on h200-sxm" in one for one in run_json(*job, "--gpu", "h100-sxm")["warnings"]))
        self.assertFalse(any("was fitted on" in one for one in run_json(*job, "--gpu", "h200-sxm")["warnings"]))

    def test_more_nodes_are_never_a_faster_step(self):
        steps = [run_json("predict", *SMALL, "--gpus", gpus)["step_s"] for gpus in (1, 2, 8, 16, 64, 1024)]
        self.assertEqual(steps, sorted(steps))

    def test_16_bit_models_need_less_than_32_bit_ones(self):
        peaks = {p: run_json("predict", "--model", "gpt2", "--gpu", "h100-sxm", "--batch", 8, "--precision", p)["peak_bytes"] for p in ("fp32", "bf16")}
        self.assertLess(peaks["bf16"], peaks["fp32"])

    def test_recompute_trades_time_for_memory(self):
        job = ["--model", "gpt2", "--gpu", "h100-sxm", "--batch", 32, "--precision", "amp-bf16"]
        kept, redone = run_json("predict", *job), run_json("predict", *job, "--recompute", "full")
        self.assertLess(redone["memory"]["activations"], kept["memory"]["activations"])
        self.assertLess(redone["peak_bytes"], kept["peak_bytes"])
        self.assertGreater(redone["step_s"], kept["step_s"])
        self.assertLess(redone["mfu"], kept["mfu"])  # the same model FLOPs in a longer step

    def test_tf32_is_not_slower_than_fp32(self):
        """The libraries pick the fastest kernel they may use, and allowing TF32 takes none away."""
        for gpu in ("h100-sxm", "a100-sxm-80gb", "b200-sxm", "l4", "a10", "rtx-3090", "rtx-4090"):
            for model, batch in (("bert-base", 16), ("resnet50", 64)):
                with self.subTest(f"{model} on {gpu}"):
                    reports = run_json("compare", "--model", model, "--gpu", gpu, "--batch", batch, "--precisions", "fp32,tf32,fp32-default")["reports"]
                    steps = {report["precision"]: report["step_s"] for report in reports}
                    self.assertLess(steps["tf32"], 1.02 * steps["fp32"])
                    self.assertLess(steps["fp32-default"], 1.02 * steps["fp32"])

    def test_the_largest_job_is_small(self):
        """llama3-405b on 16,384 GPUs: under 200 MB. Under the sanitizers, which keep a shadow of it all, five times that."""
        sanitized = b"__asan_init" in program.BINARY.read_bytes()
        command = [str(program.BINARY), "predict", "--model", "llama3-405b", "--gpu", "h100-sxm", "--gpus", "16384", "--batch", "1",
                   "--precision", "bf16", "--json"]
        with open(os.devnull, "wb") as nowhere:
            child = subprocess.Popen(command, stdout=nowhere, cwd=program.ROOT)
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(child.returncode, 3)
        self.assertLess(used.ru_maxrss / 1024, 1000 if sanitized else 200)

    def test_a_faster_gpu_is_faster(self):
        job = ["--model", "bert-large", "--batch", 32, "--precision", "amp-fp16"]
        steps = [run_json("predict", *job, "--gpu", gpu, expected=(0, 3))["step_s"] for gpu in ("h100-sxm", "a100-sxm-80gb", "v100-sxm2-32gb", "t4")]
        self.assertEqual(steps, sorted(steps))


if __name__ == "__main__":
    unittest.main()
