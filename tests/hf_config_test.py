"""Hugging Face configurations: parameters as transformers counts them, ways to name a file, wrong files. Freezing."""

import json
import os
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from program import ROOT, run  # noqa: E402

CONFIGS = json.loads((ROOT / "tests" / "data" / "hf_configs.json").read_text())
JOB = ["--gpu", "h200-sxm", "--batch", "1", "--precision", "bf16"]
SMALL = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
         "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 500}


def report(*arguments, cwd=ROOT):
    done = run("predict", *arguments, "--json", cwd=cwd)
    assert done.returncode in (0, 3), done.stderr
    return json.loads(done.stdout)


class Configurations(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)

    def write(self, config, name="config.json"):
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(config if isinstance(config, str) else json.dumps(config))
        return path

    def refused(self, *arguments, says):
        done = run("predict", *arguments, cwd=self.path)
        self.assertEqual(done.returncode, 2, done.stderr + done.stdout[:200])
        for part in [says] if isinstance(says, str) else says:
            self.assertIn(part, done.stderr)

    def test_parameters_are_transformers_own(self):
        self.assertGreaterEqual(len({entry["config"]["model_type"] for entry in CONFIGS}), 20)
        for entry in CONFIGS:
            with self.subTest(entry["name"]):
                self.assertGreater(entry["parameters"], 0)
                path = self.write(entry["config"])
                seq = [] if entry["config"]["model_type"] == "vit" else ["--seq", "8"]
                self.assertEqual(report("--model", path, *JOB, *seq)["parameters"], entry["parameters"])

    def test_a_configuration_of_a_zoo_model_predicts_the_same(self):
        known = {entry["name"]: entry["config"] for entry in CONFIGS}
        for name, zoo in (("Qwen/Qwen2.5-0.5B", "qwen2.5-0.5b"), ("openai-community/gpt2", "gpt2"),
                ("google-t5/t5-base", "t5-base"),
                          ("google-bert/bert-base-uncased", "bert-base"), ("mistralai/Mixtral-8x7B-v0.1",
                              "mixtral-8x7b"),
                          ("deepseek-ai/DeepSeek-V3", "deepseek-v3"), ("mistralai/Mistral-7B-v0.1", "mistral-7b")):
            for precision in ("fp32", "amp-bf16"):
                with self.subTest(zoo, precision=precision):
                    path = self.write(known[name])
                    flags = ["--gpu", "h200-sxm", "--batch", "2", "--seq", "256", "--layers", "2", "--precision",
                            precision]
                    ours, theirs = report("--model", path, *flags), report("--model", zoo, *flags)
                    for field in ("step_s", "peak_bytes", "kernels", "parameters"):
                        self.assertEqual(ours[field], theirs[field], field)

    def test_ways_to_name_it(self):
        self.write(SMALL, "llm/config.json")
        self.write(SMALL, "own.json")
        self.write({"schema": 1, "model": {"hf_config": "../llm/config.json"}, "seq": 32}, "jobs/job.json")
        self.write({"schema": 1, "model": {"hf_config": SMALL}, "seq": 32}, "inline.json")
        seq = ["--seq", "32"]
        first = report("--model", "llm", *JOB, *seq, cwd=self.path)
        self.assertEqual(first["model"], "llm")
        self.assertEqual(first["request"]["model"], {"hf_config": "llm"})
        for arguments in (["--model", "llm/config.json", *seq], ["--model", self.path / "own.json", *seq],
                ["jobs/job.json"], ["inline.json"],
                          ["jobs/job.json", "--model", "own.json"]):
            self.assertEqual(report(*arguments, *JOB, cwd=self.path)["step_s"], first["step_s"], arguments)

    def test_the_echoed_request_is_a_request(self):
        self.write(SMALL, "llm/config.json")
        first = report("--model", "llm", *JOB, "--seq", "32", "--layers", "3", "--frozen", "*embed*", cwd=self.path)
        self.write(first["request"], "again.json")
        self.assertEqual(report("again.json", cwd=self.path), first)

    def test_a_zoo_name_wins(self):
        self.write(SMALL, "gpt2/config.json")
        self.assertEqual(report("--model", "gpt2", *JOB, cwd=self.path)["parameters"], 124439808)

    def test_a_runs_file_finds_its_configuration(self):
        self.write(SMALL, "runs/llm/config.json")
        request = {"model": {"hf_config": "llm/config.json"}, "batch": 1, "seq": 32, "precision": "bf16",
                "cluster": {"gpu": "h200-sxm"}}
        self.write({"id": "a", "source": "a test", "request": request, "measured": {"step_s": 0.01}}, "runs/runs.jsonl")
        done = run("validate", "runs/runs.jsonl", "--json", cwd=self.path)
        self.assertEqual(json.loads(done.stdout)["overall"]["predicted"], 1, done.stdout + done.stderr)

    def test_wrong_files(self):
        for config, says in (
            ("{", "config.json"),
            ("[]", "config.json"),
            ("{}", "model_type"),
            ({"model_type": 5}, "model_type"),
            ({"model_type": "mamba"}, ["'mamba'", "llama", "deepseek_v3", "captured"]),
            ({**SMALL, "hidden_size": "64"}, ["config.json: hidden_size", "number"]),
            ({**SMALL, "hidden_size": 1e30}, "hidden_size"),
            ({**SMALL, "num_hidden_layers": 0, "vocab_size": -1}, ["num_hidden_layers", "vocab_size"]),
            ({**SMALL, "num_key_value_heads": 3}, ["num_key_value_heads", "divide"]),
            ({**SMALL, "hidden_act": "wavelet"}, ["hidden_act", "gelu_new"]),
            ({**SMALL, "architectures": ["LlamaForTokenClassification"]}, ["architectures", "ForCausalLM",
                "ForSequenceClassification"]),
            ({**SMALL, "architectures": "LlamaForCausalLM"}, "architectures"),
            ({**SMALL, "architectures": ["LlamaForSequenceClassification"], "num_labels": 1}, "num_labels"),
            ({**SMALL, "rope_scaling": 5}, "rope_scaling"),
            ({**SMALL, "attention_dropout": 2}, "attention_dropout"),
            ({"model_type": "mixtral", "num_local_experts": 4096, "hidden_size": 262144, "intermediate_size": 1048576},
                "parameters"),
            ({"model_type": "mixtral", "router_jitter_noise": 0.1}, "router_jitter_noise"),
            ({"model_type": "mixtral", "num_experts_per_tok": 9}, "num_experts_per_tok"),
            ({"model_type": "qwen2", "num_hidden_layers": 2, "layer_types": ["full_attention"]}, "layer_types"),
            ({"model_type": "qwen2", "num_hidden_layers": 1, "layer_types": ["linear_attention"]}, ["layer_types",
                "linear_attention"]),
            ({"model_type": "gemma2", "sliding_window": None}, "sliding_window"),
            ({"model_type": "phi", "partial_rotary_factor": 0.01}, "partial_rotary_factor"),
            ({"model_type": "bert", "is_decoder": True}, "is_decoder"),
            ({"model_type": "opt", "layerdrop": 0.5}, "layerdrop"),
            ({"model_type": "t5", "feed_forward_proj": "gated-wavelet"}, "feed_forward_proj"),
            ({"model_type": "deepseek_v3", "n_group": 7}, "n_group"),
            ({"model_type": "vit", "image_size": [224, 200]}, "image_size"),
            ({"model_type": "vit", "patch_size": 500}, "patch_size"),
        ):
            with self.subTest(str(config)[:80]):
                self.write(config)
                self.refused("--model", "./config.json", *JOB, says=says)

    def test_wrong_names(self):
        self.refused("--model", "none.onnx", *JOB, says=["none.onnx", "no such file", "*.precog.json.zst",
                "precog models"])
        self.refused("--model", "none/config.json", *JOB, says=["no such file", "config.json"])
        os.mkdir(self.path / "empty")
        self.refused("--model", "empty", *JOB, says=["folder", "config.json"])
        self.write({"schema": 1}, "other.json")
        self.refused("--model", "other.json", *JOB, says="model_type")
        self.write("", "weights.bin")
        self.refused("--model", "./weights.bin", *JOB, says="*.onnx")
        self.write({"schema": 1, "model": {"hf_config": "a.json", "onnx": "b.onnx"}}, "two.json")
        self.refused("two.json", *JOB, says="exclude each other")

    def test_a_bare_model_gets_its_usual_head_and_a_warning(self):
        self.write({**SMALL, "architectures": ["LlamaModel"]})
        with_head = report("--model", self.path, *JOB, "--seq", "32")
        self.assertTrue(any("ForCausalLM" in warning for warning in with_head["warnings"]), with_head["warnings"])
        self.write(SMALL)
        named = report("--model", self.path, *JOB, "--seq", "32")
        self.assertEqual(with_head["step_s"], named["step_s"])
        self.assertFalse(any("ForCausalLM" in warning for warning in named["warnings"]))

    def test_positions_that_are_learned_end(self):
        for config, longest in (({"model_type": "opt", "max_position_embeddings": 64}, 64), ({"model_type": "roberta",
                "max_position_embeddings": 66}, 64)):
            path = self.write(config)
            report("--model", path, *JOB, "--seq", longest)
            self.refused("--model", path, *JOB, "--seq", longest + 1, says="seq")


class Frozen(unittest.TestCase):
    BERT = ["--model", "bert-base", "--layers", "2", "--gpu", "h200-sxm", "--batch", "4", "--seq", "64", "--precision",
            "amp-bf16"]

    def test_less_is_done_and_kept(self):
        whole, part = report(*self.BERT), report(*self.BERT, "--frozen", "bert.embeddings.*", "--frozen",
                "bert.encoder.layer.0.*")
        self.assertEqual(whole["parameters"], part["parameters"])
        self.assertLess(part["kernels"], whole["kernels"])
        self.assertLess(part["memory"]["optimizer"], whole["memory"]["optimizer"])
        self.assertEqual(part["request"]["frozen"], ["bert.embeddings.*", "bert.encoder.layer.0.*"])

    def test_backward_stops_where_nothing_is_trained(self):
        done = run("predict", *self.BERT, "--frozen", "bert.embeddings.*", "--frozen", "bert.encoder.layer.0.*",
                "--dump-after", "training")
        backward = done.stdout.split("== backward", 1)[1]
        self.assertIn("bert.encoder.layer.1.attention", backward)
        self.assertNotIn("bert.encoder.layer.0.", backward)
        self.assertNotIn("embedding_backward", backward)

    def test_wrong_patterns(self):
        for patterns, says in ((["nothing*"], "matches no parameter"), (["*"], "nothing is left to train"), ([""],
                "empty")):
            done = run("predict", *self.BERT, *[part for pattern in patterns for part in ("--frozen", pattern)])
            self.assertEqual(done.returncode, 2)
            self.assertIn(says, done.stderr)


if __name__ == "__main__":
    unittest.main()
