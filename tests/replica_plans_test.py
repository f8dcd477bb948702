"""What plans of data-parallel ranks change: groups of shards, gathers beside forward, the optimizer on the host, which layers are
recomputed; and a configuration's request, printed and predicted again."""

import json
import pathlib
import tempfile
import unittest

import program

EXAMPLES = program.ROOT / "tests" / "data" / "imports"
LLAMA = {"schema": 1, "model": {"name": "llama3-8b", "layers": 4}, "batch": 1, "seq": 1024, "cluster": {"gpu": "h100-sxm", "gpus": 32}}


def predict(precision, plan, **fields):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "job.json"
        path.write_text(json.dumps({**LLAMA, "precision": precision, "plan": plan, **fields}))
        done = program.run("predict", path, "--json")
    assert done.returncode in (0, 3), done.stderr
    return json.loads(done.stdout)


class ReplicaPlans(unittest.TestCase):
    def adds_up(self, report):
        parts = report["breakdown"]
        total = sum(value for value in parts.values() if not isinstance(value, dict)) + sum(parts["exposed_communication"].values())
        self.assertAlmostEqual(total, report["step_s"], delta=1e-3 * report["step_s"])

    def test_groups_hold_more_and_send_less_between_nodes(self):
        reports = [predict("fsdp-bf16", {"fsdp": "hybrid", "shard_size": size}) for size in (4, 8, 16, 32)]
        for smaller, larger in zip(reports, reports[1:]):
            self.assertGreater(smaller["memory"]["optimizer"], 1.9 * larger["memory"]["optimizer"])
            self.assertGreater(smaller["peak_bytes"], larger["peak_bytes"])
        for report in reports:
            self.adds_up(report)
            self.assertNotIn("replicas", report["breakdown"]["exposed_communication"])
        full = predict("fsdp-bf16", {"fsdp": "full"})
        self.assertEqual(reports[-1]["step_s"], full["step_s"])  # one group is no hybrid
        self.assertEqual(reports[1]["step_s"], predict("fsdp-bf16", {"fsdp": "hybrid"})["step_s"])  # a node by default
        self.assertEqual(reports[1]["step_s"], predict("fsdp-bf16", {"fsdp": "hybrid", "replicate": 4})["step_s"])

    def test_gathers_beside_forward_hide(self):
        for more in ({}, {"micro_batches": 4}, {"mode": "compile"}):
            before, beside = (predict("bf16-master", {"fsdp": "zero1", "overlap_gather": overlap}, **more) for overlap in (False, True))
            saved = before["step_s"] - beside["step_s"]
            gathers = before["breakdown"]["exposed_communication"]["all_gather"]
            self.assertGreater(saved, 0.2 * gathers)
            self.assertLessEqual(saved, 1.001 * gathers)
            self.adds_up(beside)

    def test_an_optimizer_on_the_host_frees_memory_and_takes_time(self):
        for fsdp in ("zero1", "zero2", "zero3"):
            gpu, host = (predict("deepspeed-bf16", {"fsdp": fsdp, "offload": where}) for where in ("none", "optimizer"))
            self.assertEqual(host["memory"]["optimizer"], 0)
            self.assertLess(host["peak_bytes"], gpu["peak_bytes"])
            self.assertGreater(host["step_s"], gpu["step_s"])
            self.assertTrue(any("host" in warning for warning in host["warnings"]))
            self.adds_up(host)

    def test_the_host_holds_what_all_stages_of_a_node_leave_there(self):
        plan = {"pp": 4, "fsdp": "zero1"}
        for precision, cluster, micro_batches in (("deepspeed-bf16", {"gpu": "h100-sxm", "gpus": 32}, 8), ("bf16-master", {"gpu": "h100-sxm", "gpus": 8}, 4)):
            gpu, host = (predict(precision, {**plan, "offload": where}, micro_batches=micro_batches, cluster=cluster) for where in ("none", "optimizer"))
            self.assertEqual(host["memory"]["optimizer"], 0)
            self.assertLess(host["peak_bytes"], gpu["peak_bytes"])
            self.assertGreater(host["step_s"], gpu["step_s"])
            self.adds_up(host)
            nodes = cluster["gpus"] // 8
            # Weights, gradients and two states in fp32, of all parameters once: the embedding's and the head's stages have most.
            self.assertGreaterEqual(host["host_bytes_per_node"], 16 * gpu["parameters"] / nodes * 0.999)
            self.assertLessEqual(host["host_bytes_per_node"], 8 * host["host_bytes"])
        self.assertAlmostEqual(host["host_bytes_per_node"], 16 * gpu["parameters"], delta=1e-3 * 16 * gpu["parameters"])  # one node has all stages

    def test_activations_of_micro_batches_in_flight_are_on_the_host(self):
        reports = {}
        for pp in (1, 2):
            for micro_batches in (1, 4):
                kept, gone = (predict("bf16", {"pp": pp, "dp": 8 // pp, "offload": where}, micro_batches=micro_batches, batch=4, optimizer="sgd", cluster={"gpu": "h100-sxm", "gpus": 8}) for where in ("none", "activations"))
                self.assertLess(gone["memory"]["activations"], kept["memory"]["activations"])
                self.assertGreaterEqual(gone["step_s"], kept["step_s"])
                reports[pp, micro_batches] = gone
        self.assertEqual(reports[1, 4]["host_bytes"], reports[1, 1]["host_bytes"])
        self.assertEqual(reports[2, 4]["host_bytes"], 2 * reports[2, 1]["host_bytes"])  # 1F1B: the first stage has two in flight
        self.assertLess(reports[2, 4]["host_bytes_per_node"], 8 * reports[2, 4]["host_bytes"])  # the last has one

    def test_experts_on_the_host_and_in_groups(self):
        experts = {"model": {"name": "mixtral-8x7b", "layers": 4}, "cluster": {"gpu": "h100-sxm", "gpus": 16}}
        for plan in ({"ep": 8, "fsdp": "zero1"}, {"ep": 8, "tp": 2, "sp": True, "etp": 1, "fsdp": "full"}, {"ep": 4, "tp": 2, "sp": True, "etp": 4, "fsdp": "zero2"}, {"ep": 4, "pp": 2, "fsdp": "zero1"}):
            gpu, host = (predict("bf16-master", {**plan, "offload": where}, micro_batches=4, **experts) for where in ("none", "optimizer"))
            self.assertEqual(host["memory"]["optimizer"], 0)
            self.assertLess(host["peak_bytes"], gpu["peak_bytes"])
            self.assertGreater(host["step_s"], gpu["step_s"])
            self.assertAlmostEqual(2 * host["host_bytes_per_node"], 16 * gpu["parameters"], delta=(0.2 if "pp" in plan else 0.01) * 16 * gpu["parameters"])
            self.adds_up(host)
        reports = [predict("fsdp-bf16", {"fsdp": "hybrid", "shard_size": size, "ep": 4}, **experts) for size in (4, 8, 16)]
        for smaller, larger in zip(reports, reports[1:]):
            self.assertGreater(smaller["memory"]["optimizer"], 1.9 * larger["memory"]["optimizer"])
            self.adds_up(larger)
        self.assertEqual(reports[-1]["step_s"], predict("fsdp-bf16", {"fsdp": "full", "ep": 4}, **experts)["step_s"])

    def test_fewer_recomputed_layers_are_faster_and_larger(self):
        for recompute in ("full", "per-op"):
            reports = [predict("fsdp-bf16", {"fsdp": "full"}, recompute="none"),
                       *(predict("fsdp-bf16", {"fsdp": "full"}, recompute=recompute, recompute_layers=count) for count in (1, 2, 4)),
                       predict("fsdp-bf16", {"fsdp": "full"}, recompute=recompute)]
            for fewer, more in zip(reports, reports[1:]):
                self.assertLessEqual(fewer["step_s"], more["step_s"])
                self.assertGreaterEqual(fewer["peak_bytes"], 0.99 * more["peak_bytes"])  # blocks fall otherwise
            self.assertEqual(reports[-1]["step_s"], reports[-2]["step_s"])
        kept = predict("fsdp-bf16", {"fsdp": "full"}, recompute="per-op")
        self.assertLess(kept["step_s"], predict("fsdp-bf16", {"fsdp": "full"}, recompute="full")["step_s"])

    def test_buckets_of_views_are_kept_once(self):
        plain, views = (predict("amp-bf16", {"bucket_views": kept}) for kept in (False, True))
        self.assertLess(views["memory"]["gradients"], 0.6 * plain["memory"]["gradients"])
        self.assertLess(views["step_s"], plain["step_s"])

    def test_gradients_after_backward_are_exposed(self):
        for plan in ({}, {"fsdp": "zero1"}, {"fsdp": "zero2"}):
            for more in ({}, {"micro_batches": 4}):
                beside, after = (predict("bf16-master", {**plan, "overlap_reduce": overlap}, **more) for overlap in (True, False))
                name = "reduce_scatter" if plan else "all_reduce"
                exposed = [report["breakdown"]["exposed_communication"][name] for report in (beside, after)]
                self.assertGreater(exposed[1], 1.2 * exposed[0])
                self.assertGreater(after["step_s"], beside["step_s"])
                self.adds_up(after)

    def test_a_bucket_size_is_the_first_ones_too(self):
        self.assertEqual(predict("amp-bf16", {"bucket_mb": 25, "first_bucket_mb": 1})["step_s"], predict("amp-bf16", {})["step_s"])
        self.assertEqual(predict("amp-bf16", {"bucket_mb": 50})["step_s"], predict("amp-bf16", {"bucket_mb": 50, "first_bucket_mb": 50})["step_s"])
        # Of 4 layers the head's gradient fills any first bucket: a size larger than it joins it with what follows.
        self.assertNotEqual(predict("amp-bf16", {"bucket_mb": 50, "first_bucket_mb": 4096})["kernels"], predict("amp-bf16", {"bucket_mb": 50})["kernels"])

    def test_what_is_gathered_together(self):
        layer, two, model, module = (predict("fsdp-bf16", {"fsdp": "full", "wrap": wrap}) for wrap in ("layer", 2, "model", "module"))
        self.assertEqual(layer["step_s"], predict("fsdp-bf16", {"fsdp": "full"})["step_s"])
        self.assertEqual(layer["step_s"], predict("fsdp-bf16", {"fsdp": "full", "wrap": 1})["step_s"])
        for fewer, more in ((model, two), (two, layer), (layer, module)):
            self.assertLess(fewer["kernels"], more["kernels"])  # messages
            self.assertGreater(fewer["peak_bytes"], more["peak_bytes"])
        for report in (two, model, module):
            self.adds_up(report)

    def test_gathers_that_nobody_asked_for_ahead_are_waited_for(self):
        ahead, late = (predict("fsdp-bf16", {"fsdp": "full", "backward_prefetch": when}) for when in ("pre", "none"))
        self.assertGreater(late["step_s"], ahead["step_s"])
        self.assertLess(late["peak_bytes"], ahead["peak_bytes"])
        self.assertEqual(ahead["kernels"], late["kernels"])

    def test_experts_beside_fully_sharded_layers(self):
        job = {"model": {"name": "mixtral-8x7b", "layers": 4}, "recompute": "full"}
        whole, shared = (predict("fsdp-bf16", {"fsdp": fsdp, "ep": 8}, **job) for fsdp in ("full", "zero2"))
        for report in (whole, shared):
            self.adds_up(report)
            self.assertIn("all_to_all", report["breakdown"]["exposed_communication"])
        self.assertLess(whole["peak_bytes"], shared["peak_bytes"])  # zero2: gathered until backward
        reports = [predict("fsdp-bf16", {"fsdp": "full", "ep": ep}, **job) for ep in (2, 4, 8)]
        for fewer, more in zip(reports, reports[1:]):  # whoever shares them, each rank keeps as much; what it gathers is less
            self.assertAlmostEqual(fewer["memory"]["optimizer"], more["memory"]["optimizer"], delta=1e-3 * fewer["memory"]["optimizer"])
            self.assertGreater(fewer["memory"]["weight_copies"], more["memory"]["weight_copies"])
        everything = predict("fsdp-bf16", {"fsdp": "full", "ep": 8}, **{**job, "cluster": {"gpu": "h100-sxm", "gpus": 8}})
        self.adds_up(everything)  # experts that no other rank has

    def test_zero_plus_plus_sends_less_between_nodes(self):
        plan = {"fsdp": "zero3", "zero3": {"persistent_elements": 0, "reuse_elements": 0}}
        changed = lambda **fields: {**plan, "zero3": {**plan["zero3"], **fields}}
        plain = predict("deepspeed-bf16", plan)
        second, narrow, gradients = (predict("deepspeed-bf16", changed(**{key: value}))
                                     for key, value in (("secondary_ranks", 8), ("quantised_weights", True), ("quantised_gradients", True)))
        for report in (second, narrow, gradients):
            self.adds_up(report)
        by_flag = program.run_json("predict", "--model", "gpt2", "--gpu", "a100-sxm-40gb", "--gpus", "16", "--batch", "8", "--precision", "deepspeed-bf16", "--fsdp", "zero3",
                           "--secondary-ranks", "8")
        self.assertEqual(by_flag["request"]["plan"]["zero3"]["secondary_ranks"], 8)
        # A second copy: two bytes of every parameter over eight ranks.
        self.assertAlmostEqual(second["memory"]["parameters"] - plain["memory"]["parameters"], 2 * plain["parameters"] / 8, delta=0.01 * plain["parameters"])
        for report in (second, narrow):
            self.assertLess(report["breakdown"]["exposed_communication"]["all_gather"], plain["breakdown"]["exposed_communication"]["all_gather"])
        self.assertIn("all_to_all", gradients["breakdown"]["exposed_communication"])
        # Only a step's first forward gathers between nodes.
        once, often = (predict("deepspeed-bf16", changed(secondary_ranks=8), micro_batches=count)["step_s"] for count in (1, 4))
        all_along = [predict("deepspeed-bf16", plan, micro_batches=count)["step_s"] for count in (1, 4)]
        self.assertGreater((all_along[1] - all_along[0]) - (often - once), 2.5 * (all_along[0] - once))

    def test_a_part_of_the_optimizer_on_the_host_is_between_all_and_nothing(self):
        reports = [predict("deepspeed-bf16", {"fsdp": "zero3", "offload": "optimizer", "offload_fraction": fraction}) for fraction in (0, 0.25, 0.5, 1)]
        self.assertEqual(reports[0]["step_s"], predict("deepspeed-bf16", {"fsdp": "zero3"})["step_s"])
        for less, more in zip(reports, reports[1:]):
            self.assertLess(less["step_s"], more["step_s"])
            self.assertGreater(less["peak_bytes"], more["peak_bytes"])
        half = 0.5 * (12 * reports[0]["parameters"] / 32)  # two moments and a master copy, fp32, of 32 ranks
        self.assertAlmostEqual(reports[0]["memory"]["optimizer"] - reports[2]["memory"]["optimizer"], half, delta=0.02 * half)

    def test_shared_checkpoints_take_less_memory_and_more_time(self):
        whole, shared = (predict("bf16", {"tp": 4, **more}, recompute="full", batch=8) for more in ({}, {"share_checkpoints": True}))
        kept = 4 * 8 * 1024 * 4096 * 2  # what four layers begin with
        self.assertAlmostEqual(whole["peak_bytes"] - shared["peak_bytes"], 0.75 * kept, delta=0.3 * kept)
        self.assertGreater(shared["step_s"], whole["step_s"])
        self.adds_up(shared)

    def test_lamb_with_states_shared_out(self):
        alone, shared = (predict("bf16-master", plan, optimizer="lamb") for plan in ({}, {"fsdp": "zero1"}))
        self.assertLess(shared["memory"]["optimizer"], 0.1 * alone["memory"]["optimizer"])
        self.adds_up(predict("bf16-master", {"tp": 4}, optimizer="lamb"))

class Imports(unittest.TestCase):
    FLAGS = {"deepspeed_zero2.json": ["--model", "gpt2", "--gpus", "8"], "deepspeed_offload.json": ["--model", "gpt2", "--gpus", "8"],
             "megatron_gpt.sh": ["--layers", "2"], "megatron_llama.yaml": ["--gpus", "16"], "torchtitan_llama3.toml": ["--layers", "2"],
             "accelerate_fsdp.yaml": ["--model", "gpt2", "--batch", "2"], "accelerate_deepspeed.yaml": ["--model", "gpt2"],
             "trainer_arguments.json": ["--gpus", "8", "--layers", "2"], "lightning.yaml": ["--model", "resnet50"]}

    def test_every_example_has_flags(self):
        self.assertEqual(set(self.FLAGS), {path.name for path in EXAMPLES.iterdir()})

    def test_a_printed_request_predicts_the_same(self):
        for name, flags in self.FLAGS.items():
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                given = ["--from", EXAMPLES / name, "--gpu", "h100-sxm", *flags]
                printed = program.run("predict", *given, "--print-request")
                self.assertEqual(printed.returncode, 0, printed.stderr)
                job = pathlib.Path(folder) / "job.json"
                job.write_text(printed.stdout)
                self.assertEqual(program.run("predict", job, "--json").stdout, program.run("predict", *given, "--json").stdout)

    def test_inspect_takes_one_too(self):
        done = program.run("inspect", "--from", EXAMPLES / "torchtitan_llama3.toml", "--layers", "1", "--batch", "1", "--seq", "256")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("llama3-8b in fsdp-bf16-fp32reduce", done.stdout)


if __name__ == "__main__":
    unittest.main()
