"""What makes a job fit: every suggestion is what it says, none has a change too many, and none that is as simple is cheaper."""

import copy
import itertools
import json
import os
import sys
import unittest

from program import BINARY, ROOT, run, run_json

os.environ["PRECOG"] = str(BINARY)
sys.path[:0] = [str(ROOT / "python" / "tests")]
import package_support  # noqa: E402, F401: finds the package and its library; many jobs are predicted faster in one process
import precog  # noqa: E402


def job(model, gpu, gpus, batch, precision, **more):
    return {"schema": 1, "model": model, "batch": batch, "precision": precision, "cluster": {"gpu": gpu, "gpus": gpus}, **more}


JOBS = {
    "8B on 40 GB": job("llama3-8b", "a100-sxm-40gb", 8, 4, "amp-bf16", seq=8192),
    "8B on 80 GB": job("llama3-8b", "h100-sxm", 8, 2, "amp-bf16", seq=4096),
    "gpt2-medium": job("gpt2-medium", "rtx-4090", 1, 8, "fp32"),
    "70B on one card": job("llama3-70b", "l4", 1, 1, "bf16", seq=4096),
    "without bf16": job("bert-large", "v100-sxm2-16gb", 1, 64, "amp-fp16", seq=512),
    "convolutions": job("resnet50", "t4", 1, 512, "amp-fp16"),
    "images": job("vit-l", "a30", 1, 256, "amp-bf16"),
    "70B on 64": job("llama3-70b", "h100-sxm", 64, 1, "amp-bf16", seq=8192),
    "masters": job("llama2-13b", "a100-sxm-80gb", 16, 2, "bf16-master", seq=4096, global_batch=256),
    "compiled": job("gpt2-large", "a100-sxm-40gb", 1, 32, "amp-bf16", mode="compile"),
    "split already": job("llama2-70b", "a100-sxm-80gb", 64, 4, "bf16-master", seq=4096, global_batch=256, plan={"tp": 8, "sp": True, "dp": 8}),
    "encoder and decoder": job("t5-base", "t4", 1, 64, "amp-fp16", seq=512),
    "by micro-batches": job("gpt2-xl", "rtx-3090", 1, 4, "bf16", micro_batches=4),
    "a batch of thousands": job("resnet50", "v100-sxm2-16gb", 1, 4096, "amp-fp16"),
    "layers split, norms not": job("llama3-8b", "a100-sxm-80gb", 8, 8, "bf16", seq=8192, plan={"tp": 8}),
    "all forwards first": job("llama3-8b", "h100-sxm", 16, 1, "bf16", global_batch=64, plan={"tp": 2, "pp": 2, "schedule": "gpipe"}),
    "states on the host already": job("llama3-8b", "a100-sxm-40gb", 1, 1, "bf16", seq=2048, plan={"offload": "optimizer"}),
    "experts": job("mixtral-8x7b", "h100-sxm", 8, 1, "bf16", seq=4096),
    "8B on one card": job("llama3-8b", "a100-sxm-40gb", 1, 1, "bf16", seq=2048),
    "experts in stages": job("deepseek-v3", "h100-sxm", 256, 1, "bf16", global_batch=1024, plan={"pp": 8, "ep": 32}),
    "long sequences": job("llama3-8b", "h100-sxm", 8, 1, "bf16", seq=131072, plan={"fsdp": "full"}),
    "attention written out": job("gpt2-medium", "rtx-4090", 1, 8, "amp-bf16", attention="eager"),
    "activations on the host": job("llama3-8b", "h100-sxm", 8, 8, "bf16", seq=8192, plan={"fsdp": "full", "offload": "activations"}),
    "a prime batch": job("vit-l", "a30", 1, 127, "amp-bf16"),
    "compiled in fp32": job("vit-l", "a100-sxm-40gb", 1, 512, "fp32", mode="compile"),
    "405B on 16384": job("llama3-405b", "h100-sxm", 16384, 1, "amp-bf16", seq=8192),
    "405B at 131072": job("llama3-405b", "h100-sxm", 512, 1, "bf16-master", seq=131072),
    "recomputes already": job("llama3-8b", "h100-sxm", 8, 2, "amp-bf16", seq=8192, recompute="full"),
    "some layers already": job("llama2-13b", "a100-sxm-80gb", 8, 4, "bf16", seq=4096, recompute="full", recompute_layers=10),
    "13B with states on the host": job("llama2-13b", "a100-sxm-80gb", 4, 1, "amp-bf16", seq=4096, plan={"offload": "optimizer", "fsdp": "zero2"}),
    "convolutions in fp32": job("resnet50", "rtx-3070", 1, 257, "fp32"),
    "before tensor cores": job("mobilenet_v2", "gtx-1080-ti", 1, 511, "fp32"),
    "long on a small card": job("qwen2.5-0.5b", "rtx-5060-ti", 1, 1, "bf16", seq=32768),
}
SEARCHED = ["gpt2-medium", "8B on 80 GB", "without bf16"]  # by brute force


def merged(request, patch):
    out = copy.deepcopy(request)
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = merged(out.get(key, {}), value) if isinstance(value, dict) else value
    return out


def predicted(request):
    try:
        return precog.predict({**request, "fixes": False})
    except precog.PrecogError:
        return None


def less(request, patch):
    """The suggestion without one of its changes, each in turn."""
    plan = patch.get("plan", {})
    split = {key for key in ("tp", "sp", "cp", "cp_exchange", "pp", "ep", "etp", "dp", "schedule", "vpp") if key in plan}
    for group in ({"fsdp"}, {"bucket_views"}, {"offload", "offload_layers", "offload_fraction"}, split):
        if group == {"fsdp"} and (patch.get("precision", "").startswith("fsdp-") or request["cluster"]["gpus"] == 1 or plan.get("fsdp") == "none"):
            continue  # the recipe's own, ZeRO 3's way of updating on the host, or taken back where nobody is left to share with: it is nothing without
        if group & set(plan):
            rest = {key: value for key, value in plan.items() if key not in group}
            yield group, merged(request, {**patch, "plan": rest})
    counted = {"batch", "global_batch", "micro_batches"} if not split else {"batch"}
    for group in ({"recompute", "recompute_layers"}, {"loss_chunks"}, {"allocator"}, {"mode"}, {"optimizer_impl"}, {"memory_format"}, counted):
        if group & set(patch) and not (group == counted and "batch" not in patch):
            if group == counted and split:
                continue  # how many micro-batches then is another question
            yield group, merged(request, {key: value for key, value in patch.items() if key not in group})
    if "precision" in patch:
        before, after = request["precision"].split("+"), patch["precision"].split("+")
        if after[0] != before[0]:
            yield {"recipe"}, merged(request, {**patch, "precision": "+".join([before[0], *after[1:]])})
        if after[1:] != before[1:]:
            yield {"states"}, merged(request, {**patch, "precision": "+".join([after[0], *before[1:]])})


class Suggestions(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.reports = {name: precog.predict(request) for name, request in JOBS.items()}

    def test_there_are_some(self):
        for name, report in self.reports.items():
            with self.subTest(name):
                self.assertFalse(report.fits)
                self.assertTrue(1 <= len(report["fixes"]) <= 8)

    def test_each_is_what_it_says(self):
        for name, report in self.reports.items():
            for fix in report["fixes"]:
                with self.subTest(name, flags=fix["flags"]):
                    changed = precog.predict(merged(JOBS[name], fix["request"]))
                    self.assertTrue(changed.fits)
                    self.assertEqual(changed.step_s, fix["step_s"])
                    self.assertEqual(changed["device_bytes"], fix["device_bytes"])
                    self.assertEqual(changed["global_batch"] == report["global_batch"], "a smaller step" not in fix["note"])
                    self.assertAlmostEqual(fix["time_ratio"], report.samples_per_s / changed.samples_per_s, places=9)
                    self.assertEqual(changed.get("host_bytes_per_node"), fix.get("host_bytes_per_node"))
                    self.assertEqual(merged(JOBS[name], fix["request"]).get("plan", {}).get("offload", "none") != "none", "host_bytes_per_node" in fix)

    def test_faster_is_what_it_says(self):
        seen = 0
        for name, report in self.reports.items():
            for fix in report["fixes"]:
                with self.subTest(name, flags=fix["flags"]):
                    more = fix.get("faster_with")
                    if more is None:
                        continue
                    seen += 1
                    changed = precog.predict(merged(JOBS[name], more["request"]))
                    self.assertTrue(changed.fits)
                    self.assertEqual((changed.step_s, changed["device_bytes"]), (more["step_s"], more["device_bytes"]))
                    self.assertLess(more["time_ratio"], 0.98 * fix["time_ratio"])
                    self.assertEqual(merged(fix["request"], {key: value for key, value in more["request"].items() if key in ("mode", "memory_format", "optimizer_impl")}), more["request"])
        self.assertGreater(seen, 0)

    def test_flags_ask_for_the_same(self):
        for name in ("gpt2-medium", "8B on 80 GB"):
            request = JOBS[name]
            flags = ["--model", request["model"], "--gpu", request["cluster"]["gpu"], "--gpus", request["cluster"]["gpus"], "--batch", request["batch"], "--precision", request["precision"]]
            flags += ["--seq", request["seq"]] if "seq" in request else []
            for fix in self.reports[name]["fixes"]:
                with self.subTest(name, flags=fix["flags"]):
                    self.assertEqual(run_json("predict", *flags, *fix["flags"].split())["step_s"], fix["step_s"])  # later flags win

    def test_cheapest_first_and_none_twice(self):
        for name, report in self.reports.items():
            with self.subTest(name):
                ratios = [fix["time_ratio"] for fix in report["fixes"]]
                self.assertEqual(ratios, sorted(ratios))
                self.assertEqual(len({json.dumps(fix["request"], sort_keys=True) for fix in report["fixes"]}), len(ratios))

    def test_no_change_too_many(self):
        for name, report in self.reports.items():
            for fix in report["fixes"]:
                for group, request in less(JOBS[name], fix["request"]):
                    with self.subTest(name, flags=fix["flags"], without=group):
                        changed = predicted(request)
                        if changed is not None and changed.fits:  # it may still pay for itself
                            self.assertFalse(group & {"allocator", "optimizer_impl"} and "--offload states" not in fix["flags"])  # which has a way with fused kernels
                            self.assertGreater(fix["samples_per_s"], changed.samples_per_s)

    def test_other_numbers_are_marked(self):
        for name, report in self.reports.items():
            for fix in report["fixes"]:
                with self.subTest(name, flags=fix["flags"]):
                    self.assertEqual("--precision" in fix["flags"] or "a smaller step" in fix["note"], bool(fix["numerics"]))

    def test_nothing_warns_of_one_rank(self):
        request = job("llama3-8b", "a100-sxm-80gb", 8, 8, "bf16", seq=8192, plan={"fsdp": "full"})
        for fix in precog.predict(request)["fixes"]:
            with self.subTest(flags=fix["flags"]):
                changed = predicted(merged(request, fix["request"]))
                self.assertFalse([text for text in changed["warnings"] if "one rank has nothing to share out" in text])

    def test_compiled_where_it_is_faster(self):
        # Of what is not compiled itself and may be.
        for name in ("a prime batch", "gpt2-medium", "70B on one card"):
            for fix in self.reports[name]["fixes"]:
                if "mode" in fix["request"] or "activations" in fix["flags"]:
                    continue
                with self.subTest(name, flags=fix["flags"]):
                    changed = predicted(merged(merged(JOBS[name], fix["request"]), {"mode": "compile"}))
                    if changed.fits and changed.samples_per_s > 1.04 * fix["samples_per_s"]:
                        self.assertIn("faster_with", fix)

    def test_none_says_what_another_says(self):
        def gist(fix):
            out = copy.deepcopy(fix["request"])
            for key in ("recompute_layers", "loss_chunks", "allocator", "optimizer_impl"):
                out.pop(key, None)
            out.get("plan", {}).pop("offload_layers", None)
            return json.dumps(out, sort_keys=True)
        for name, report in self.reports.items():
            for first, second in itertools.combinations(report["fixes"], 2):
                if gist(first) == gist(second):
                    with self.subTest(name, first=first["flags"], second=second["flags"]):
                        self.assertTrue(second["time_ratio"] > 1.02 * first["time_ratio"] or "faster_with" in second or "faster_with" in first)

    def test_sharded_in_its_own_types(self):
        # What autocast keeps copies of, FSDP's own mixed precision does not: nothing listed for 8 B parameters on 8 cards is much dearer.
        request, fixes = JOBS["8B on 40 GB"], self.reports["8B on 40 GB"]["fixes"]
        sharded = predicted(merged(request, {"precision": "fsdp-bf16+optimizer-8bit", "plan": {"fsdp": "full"}, "recompute": "full", "batch": 1, "global_batch": 32}))
        self.assertTrue(sharded.fits)
        narrow = [fix for fix in fixes if "every operator in bf16" in fix["numerics"]]
        self.assertTrue(narrow)
        self.assertLess(min(fix["step_s"] for fix in narrow), 0.9 * sharded.step_s)

    def test_what_the_host_cannot_hold_is_not_offered(self):
        request = {**JOBS["70B on 64"], "cluster": "dgx-1-v100", "precision": "fp16"}  # 8 cards, 512 GB
        report = precog.predict(request)
        for fix in report["fixes"]:
            if "host_bytes_per_node" in fix:
                self.assertLessEqual(fix["host_bytes_per_node"], 512e9)


class OneFlagIsEnough(unittest.TestCase):
    """Found by hand once: what the list has first, or among what it has, must not be dearer."""

    def test_it_is_listed(self):
        for name, flags, most in (("8B on one card", "--", 1.2), ("experts in stages", "--recompute", 0.11), ("long sequences", "--cp 8", 0.1), ("attention written out", "--attention sdpa", 0.0),
                                  ("activations on the host", "--offload none", -0.6), ("compiled in fp32", "--precision amp-bf16", 0.0), ("a prime batch", "--batch", 0.1), ("a batch of thousands", "--batch 256", 0.04), ("layers split, norms not", "--sp", -0.2), ("all forwards first", "--schedule 1f1b", 0.01),
                                  ("states on the host already", "--offload", -0.1), ("experts", "--ep 8", -0.4),
                                  ("405B at 131072", "--cp", 1.0), ("recomputes already", "--recompute none", -0.1), ("13B with states on the host", "--offload none", -0.2),
                                  ("convolutions in fp32", "--memory-format channels_last", -0.5), ("before tensor cores", "--memory-format channels_last", -0.4)):
            with self.subTest(name):
                fixes = [fix for fix in precog.predict(JOBS[name])["fixes"] if flags in fix["flags"]]
                self.assertTrue(fixes)
                self.assertLess(min(fix["time_ratio"] for fix in fixes) - 1, most)


class FoundByHand(unittest.TestCase):
    """Plans that somebody found by hand for jobs on many GPUs: nothing listed may be dearer by more than 3%."""

    PLANS = (
        (job("deepseek-v3", "h100-sxm", 64, 1, "bf16", seq=4096), {"precision": "bf16+optimizer-8bit", "plan": {"ep": 8, "pp": 8, "fsdp": "zero2"}, "recompute": "full", "mode": "compile", "global_batch": 64}),
        (job("llama3-70b", "h100-sxm", 64, 1, "bf16-master", seq=8192), {"plan": {"fsdp": "full", "tp": 2, "sp": True, "cp": 2}, "mode": "compile", "global_batch": 64}),
        (job("llama3-8b", "h100-sxm", 8, 1, "fsdp-bf16", seq=131072, plan={"fsdp": "full"}), {"plan": {"cp": 8}, "mode": "compile", "recompute": "norm+mlp", "loss_chunks": 8, "global_batch": 8}),
        (job("gpt-neox-20b", "a100-sxm-80gb", 8, 1, "amp-bf16"), {"plan": {"fsdp": "full"}, "mode": "compile", "recompute": "per-op", "recompute_layers": 15}),
    )

    def test_nothing_much_cheaper(self):
        for request, patch in self.PLANS:
            with self.subTest(request["model"]):
                best = predicted(merged(request, patch))
                self.assertTrue(best.fits)
                listed = []
                for fix in precog.predict(request)["fixes"]:
                    listed += [fix["step_s"], fix.get("faster_with", fix)["step_s"]]
                self.assertLess(min(listed), 1.03 * best.step_s)


class AsSimple(unittest.TestCase):
    """Every change, and every two, tried."""

    def ways(self, request):
        language, many = request["model"] != "resnet50", request["cluster"]["gpus"] > 1
        recipe = request["precision"]
        bf16 = "v100" not in request["cluster"]["gpu"]
        yield "states", {"precision": recipe + "+optimizer-bf16"}, True
        yield "states", {"precision": recipe + "+optimizer-8bit"}, True
        yield "recipe", {"precision": "bf16" if bf16 else "fp16"}, True
        if recipe == "fp32":
            yield "recipe", {"precision": "amp-bf16"}, True
        yield "mode", {"mode": "compile"}, False
        yield "optimizer", {"optimizer_impl": "fused"}, False
        yield "allocator", {"allocator": "expandable"}, False
        if language:
            yield "loss", {"loss_chunks": 8}, False
        for kind in ("selective", "full", "norm+activation"):
            yield "recompute", {"recompute": kind}, False
        batch = request["batch"]
        while batch > 1:
            batch //= 2
            yield "batch", {"batch": batch, "global_batch": request["batch"] * request["cluster"]["gpus"]}, False
        for kind in ("zero1", "zero2", "full") if many else ():
            yield "sharding", {"plan": {"fsdp": kind}}, False
        yield "offload", {"plan": {"offload": "optimizer"}}, False
        yield "offload", {"plan": {"offload": "activations"}}, False
        if many:
            yield "split", {"plan": {"tp": 2, "sp": True}, "global_batch": request["batch"] * request["cluster"]["gpus"]}, False

    def test_none_of_one_or_two_is_cheaper(self):
        for name in SEARCHED:
            request = JOBS[name]
            report = precog.predict(request)
            ways = list(self.ways(request))
            alone = [predicted(merged(request, patch)) for _, patch, _ in ways]
            fitting = [(one.samples_per_s, numerics, patch) for one, (_, patch, numerics) in zip(alone, ways, strict=True) if one is not None and one.fits]
            for (i, first), (j, second) in itertools.combinations(enumerate(ways), 2):
                if first[0] == second[0] or any(alone[k] is not None and alone[k].fits for k in (i, j)):
                    continue
                patch = merged(first[1], second[1])
                if {first[0], second[0]} == {"states", "recipe"}:
                    patch["precision"] = (first if first[0] == "recipe" else second)[1]["precision"] + (second if second[0] == "states" else first)[1]["precision"][len(request["precision"]):]
                both = predicted(merged(request, patch))
                if both is not None and both.fits:
                    fitting.append((both.samples_per_s, first[2] or second[2], patch))
            for numerics in (False, True):
                known = [one for one in fitting if not one[1] or numerics]
                listed = [1 / fix["time_ratio"] * report.samples_per_s for fix in report["fixes"] if numerics or not fix["numerics"]]
                if not known:
                    continue
                best = max(known, key=lambda one: one[0])
                with self.subTest(name, numerics=numerics, best=best[2]):
                    self.assertTrue(listed)
                    self.assertGreaterEqual(max(listed), 0.998 * best[0])


class Said(unittest.TestCase):
    JOB = ["predict", "--model", "llama3-70b", "--gpu", "l4", "--batch", 1, "--seq", 4096, "--precision", "bf16"]

    def test_in_words_that_are_whole(self):
        done = run(*self.JOB)
        self.assertEqual(done.returncode, 3)
        said = done.stdout[done.stdout.index("What would make it fit"):done.stdout.index("Where the numbers")]
        self.assertNotIn("..", said)
        self.assertIn("more than machines with so many", " ".join(said.split()))
        self.assertTrue(all(len(line) <= 80 for line in said.splitlines()))

    def test_a_batch_that_is_not_used(self):
        done = run("predict", "--model", "gpt2", "--gpu", "t4", "--precision", "amp-fp16", "--batch", 4, "--max-batch")
        self.assertIn("batch 4 is not used", done.stdout)

    def test_not_asked_for(self):
        told = run("predict", "-", stdin=json.dumps({**JOBS["gpt2-medium"], "fixes": False}))
        self.assertEqual(told.returncode, 3)
        self.assertNotIn("would make it fit", told.stdout)

    def test_nothing_twice(self):
        for flags in (["--offload", "optimizer+optimizer"], ["--recompute", "norm+norm"]):
            done = run("predict", "--model", "gpt2", "--gpu", "t4", "--precision", "amp-fp16", "--batch", 4, *flags)
            self.assertEqual(done.returncode, 2)
            self.assertRegex(done.stderr, "twice|once")

    def test_one_step(self):
        done = run("predict", "--model", "gpt2", "--gpu", "h100-sxm", "--precision", "amp-bf16", "--batch", 4, "--steps", 1)
        self.assertIn("for 1 step", done.stdout)
        self.assertNotIn("1 steps", done.stdout)

    def test_casts_of_weights_are_no_activations(self):
        memory = run_json("predict", "--model", "llama3-8b", "--gpu", "h100-sxm", "--gpus", 8, "--batch", 1, "--seq", 2048, "--precision", "amp-bf16", "--fsdp", "full", expected=(0, 3))["memory"]
        self.assertGreater(memory["weight_copies"], 14e9)
        self.assertEqual(memory["weight_copies"], memory["by_category"]["weight_casts"] + memory["by_category"]["gathered_parameters"])


if __name__ == "__main__":
    unittest.main()
