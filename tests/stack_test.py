"""Whose kernels run a step (`stack`, `attention`), architectures given in the request, exchanges that overlap: what each must change."""

import json
import subprocess
import tempfile
import unittest

from program import BINARY, ROOT

GPT = {"family": "gpt2", "architecture": {"hidden": 2048, "layers": 4, "heads": 16, "vocab": 51200, "max_positions": 1024, "activation": "gelu", "dropout": 0.1}}
LLAMA = {"family": "llama", "architecture": {"hidden": 4096, "layers": 2, "heads": 32, "kv_heads": 8, "intermediate": 14336, "vocab": 128256, "max_positions": 8192,
                                             "fused_projections": True}}


def run(request):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"schema": 1, "batch": 4, "precision": "bf16-master", "cluster": {"gpu": "h100-sxm", "gpus": 1}, **request}, file)
        file.flush()
        return subprocess.run([str(BINARY), "predict", file.name, "--json", "--data", str(ROOT / "data")], capture_output=True, text=True)


def predict(**request):
    done = run(request)
    assert done.returncode in (0, 3), done.stderr
    return json.loads(done.stdout)


class Stack(unittest.TestCase):
    def test_fused_kernels_are_fewer_and_faster(self):
        plain, megatron = predict(model=GPT, attention="eager"), predict(model=GPT, attention="eager", stack="megatron")
        self.assertLess(megatron["kernels"], 0.82 * plain["kernels"])  # norms and biases are still added to main gradients one by one; the loss is PyTorch's
        self.assertLess(megatron["gpu_busy_s"], plain["gpu_busy_s"])
        self.assertEqual(megatron["request"]["stack"], "megatron")

    def test_the_fused_softmax_wants_a_multiple_of_four_heads(self):
        """megatron/model/fused_softmax.py: heads of the whole micro-batch on a rank; else scale, mask and softmax are operators."""
        kernels = {heads: predict(model={**GPT, "architecture": {**GPT["architecture"], "hidden": 128 * heads, "heads": heads}}, batch=1, attention="eager",
                                  stack="megatron")["kernels"] for heads in (8, 6)}
        self.assertGreater(kernels[6], kernels[8])

    def test_fused_kernels_cost_the_host_less_than_their_operators(self):
        self.assertLess(predict(model=GPT, stack="megatron")["host_s"], predict(model=GPT)["host_s"])

    def test_attention_written_out_keeps_its_scores(self):
        fused, eager = predict(model=GPT), predict(model=GPT, attention="eager")
        self.assertGreater(eager["memory"]["activations"], fused["memory"]["activations"])
        self.assertGreater(eager["gpu_busy_s"], fused["gpu_busy_s"])

    def test_a_compiler_writes_its_own_kernels(self):
        done = run({"model": GPT, "stack": "te", "mode": "compile"})
        self.assertEqual(done.returncode, 2)
        self.assertIn("stack", done.stderr)


class Exchange(unittest.TestCase):
    CLUSTER = {"gpu": "h100-sxm", "gpus": 8}

    def step(self, precision="bf16-master", **plan):
        return predict(model=LLAMA, seq=8192, batch=1, stack="te", precision=precision, cluster=self.CLUSTER, plan={"tp": 8, "sp": True, **plan})

    def test_overlap_hides_part_of_the_exchange(self):
        apart, together = self.step(), self.step(tp_overlap=True)
        exposed = [sum(report["breakdown"]["exposed_communication"].values()) for report in (apart, together)]
        self.assertLess(together["step_s"], apart["step_s"])
        self.assertGreater(exposed[1], 0.1 * exposed[0])

    def test_what_is_converted_travels_converted(self):
        gathered = [self.step(precision)["breakdown"]["exposed_communication"]["all_gather"] for precision in ("bf16-master", "bf16-master+te-fp8-delayed")]
        self.assertLess(gathered[1], 0.9 * gathered[0])

    def test_summands_in_fp8_are_half_the_message(self):
        fp8 = "bf16-master+te-fp8-delayed"
        scattered = [self.step(fp8, tp_overlap=True, **more)["breakdown"]["exposed_communication"]["reduce_scatter"] for more in ({}, {"tp_scatter_fp8": True})]
        self.assertLess(scattered[1], 0.9 * scattered[0])
        done = run({"model": LLAMA, "stack": "te", "cluster": self.CLUSTER, "plan": {"tp": 8, "sp": True, "tp_scatter_fp8": True}})
        self.assertEqual(done.returncode, 2)
        self.assertIn("tp_scatter_fp8", done.stderr)

    def test_overlap_needs_sequence_parallelism(self):
        done = run({"model": LLAMA, "stack": "te", "cluster": self.CLUSTER, "plan": {"tp": 8, "tp_overlap": True}})
        self.assertEqual(done.returncode, 2)
        self.assertIn("tp_overlap", done.stderr)


class Family(unittest.TestCase):
    def test_is_the_zoo_model_of_its_sizes(self):
        zoo = json.loads((ROOT / "data" / "models" / "llama3-8b.json").read_text())
        inline = {"family": zoo["family"], "architecture": zoo["architecture"]}
        self.assertEqual(predict(model=inline, seq=1024)["step_s"], predict(model="llama3-8b", seq=1024)["step_s"])

    def test_an_mlp_without_a_gate_has_fewer_parameters(self):
        ungated = {"family": "llama", "architecture": {**LLAMA["architecture"], "gated": False, "layer_norm": True, "activation": "relu2"}}
        self.assertLess(predict(model=ungated, seq=1024)["step_s"], predict(model=LLAMA, seq=1024)["step_s"])

    def test_wrong_words_are_named(self):
        for model, word in (({"family": "nonesuch", "architecture": {}}, "nonesuch"), ({"family": "gpt2", "architecture": {"hidden": 8}}, "layers"),
                            ({"family": "gpt2"}, "architecture"), ({**GPT, "name": "gpt2"}, "exclude")):
            done = run({"model": model})
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(word, done.stderr)


if __name__ == "__main__":
    unittest.main()
