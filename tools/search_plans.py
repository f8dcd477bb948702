#!/usr/bin/env python3
"""How good is what `predict` lists for a job that does not fit? Hundreds of plans against the list: its own entries and plans at random,
every setting of the best changed in turn, then several at once: `tools/search_plans.py [--plans N] [--seed S] [JOB ...]`. Wants
libprecog.so (PRECOG_LIBRARY)."""

import argparse
import json
import math
import random
import subprocess
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "python")]
import precog  # noqa: E402

KINDS = ("same", "close", "narrow", "other")  # how far results are from the job's own: src/predict/fix_choices.h


def job(model, gpu, gpus, batch, precision, **more):
    return {"schema": 1, "model": model, "batch": batch, "precision": precision, "cluster": {"gpu": gpu, "gpus": gpus}, **more}


JOBS = {
    "deepseek-v3-64": job("deepseek-v3", "h100-sxm", 64, 1, "bf16", seq=4096),
    "llama3-70b-64": job("llama3-70b", "h100-sxm", 64, 1, "bf16-master", seq=8192),
    "llama3-8b-long": job("llama3-8b", "h100-sxm", 8, 1, "fsdp-bf16", seq=131072, plan={"fsdp": "full"}),
    "gpt-neox-20b-8": job("gpt-neox-20b", "a100-sxm-80gb", 8, 1, "amp-bf16"),
    "gpt2-large-1": job("gpt2-large", "rtx-3090", 1, 13, "amp-bf16"),
    "resnet50-1": job("resnet50", "t4", 1, 512, "amp-fp16"),
    "resnet152-8": job("resnet152", "v100-sxm2-16gb", 8, 192, "amp-fp16"),
    "mixtral-16": job("mixtral-8x7b", "a100-sxm-80gb", 16, 2, "bf16-master", seq=4096),
    "llama3-405b-1024": job("llama3-405b", "h100-sxm", 1024, 1, "bf16", seq=8192),
    "llama2-13b-4": job("llama2-13b", "a100-sxm-40gb", 4, 2, "amp-bf16", seq=4096),
    "bert-large-1": job("bert-large", "v100-sxm2-16gb", 1, 64, "amp-fp16", seq=512),
    "vit-l-2": job("vit-l", "rtx-4090", 2, 128, "fp32"),
    "t5-base-4": job("t5-base", "t4", 4, 64, "amp-fp16", seq=512),
    "llama3-8b-1": job("llama3-8b", "a100-sxm-40gb", 1, 1, "bf16", seq=2048),
    "llama3-70b-256": job("llama3-70b", "h200", 256, 4, "amp-bf16", seq=8192),
    "qwen2-32": job("qwen2.5-32b", "a100-sxm-80gb", 32, 2, "bf16-master", seq=16384),
}
# Never looked at while the search was written.
UNSEEN = {
    "resnet101-1": job("resnet101", "rtx-3070", 1, 128, "fp32"),
    "resnet34-1": job("resnet34", "gtx-1080-ti", 1, 1024, "fp32"),
    "mobilenet-1": job("mobilenet_v2", "rtx-4090", 1, 640, "amp-bf16"),
    "vgg16-4": job("vgg16", "v100-sxm2-16gb", 4, 256, "fp32"),
    "resnet152-2": job("resnet152", "rtx-2080-ti", 2, 120, "fp32"),
    "vit-b-1": job("vit-b", "rtx-3070", 1, 96, "fp32"),
    "vit-l-8": job("vit-l", "a100-sxm-40gb", 8, 384, "amp-bf16"),
    "bert-base-1": job("bert-base", "rtx-3070", 1, 64, "fp32", seq=512),
    "bert-large-4": job("bert-large", "t4", 4, 32, "amp-fp16", seq=512),
    "gpt2-1": job("gpt2", "rtx-3090", 1, 48, "amp-bf16"),
    "qwen2-0.5b-1": job("qwen2.5-0.5b", "rtx-4090", 1, 8, "amp-bf16", seq=4096),
    "qwen2-1.5b-2": job("qwen2.5-1.5b", "rtx-4090", 2, 4, "bf16-master", seq=8192),
    "llama2-7b-8": job("llama2-7b", "a100-sxm-40gb", 8, 4, "bf16-master", seq=4096),
    "mistral-7b-16": job("mistral-7b", "h200-sxm", 16, 8, "amp-bf16", seq=16384, recompute="full"),
    "qwen2-7b-4": job("qwen2.5-7b", "l40s", 4, 1, "amp-bf16", seq=4096, plan={"fsdp": "zero2", "offload": "optimizer"}),
    "qwen2-14b-16": job("qwen2.5-14b", "h100-sxm", 16, 2, "fsdp-bf16", seq=16384, plan={"fsdp": "full"}),
    "mpt-30b-32": job("mpt-30b", "a100-sxm-40gb", 32, 1, "bf16-master", seq=2048),
    "qwen2-72b-64": job("qwen2.5-72b", "h200-sxm", 64, 2, "bf16-master", seq=8192),
    "llama2-70b-32": job("llama2-70b", "a100-sxm-80gb", 32, 1, "amp-bf16", seq=4096),
    "mpt-7b-long": job("mpt-7b", "h100-sxm", 64, 1, "bf16-master", seq=65536),
}


def merged(request, patch):
    out = json.loads(json.dumps(request))
    for key, value in patch.items():
        out[key] = merged(out.get(key, {}), value) if isinstance(value, dict) else value
    return out


class Space:
    """What may be chosen of each setting; every plan trains the same samples in a step."""

    def __init__(self, request, base, any_mode=False):
        self.request, self.base = request, base
        self.gpus = request["cluster"]["gpus"]
        plan = base["request"]["plan"]
        language = bool(request.get("seq")) or base["request"].get("seq")
        name = request["precision"]
        bf16 = base["peak_16bit"] == "bf16" if "peak_16bit" in base else not any(old in request["cluster"]["gpu"] for old in ("v100", "t4", "p100", "1080", "2080"))
        recipes = {name: 0}
        if name == "fp32":
            recipes["amp-bf16" if bf16 else "amp-fp16"] = 1
        if bf16 and (name == "fp32" or name.startswith("amp-")):
            recipes.update({"bf16-master": 2, "fsdp-bf16": 2})
        if name not in ("bf16", "fp16"):
            recipes["bf16" if bf16 else "fp16"] = 3
        doubling = lambda most: [2**i for i in range(most.bit_length())]  # noqa: E731
        each = base["global_batch"] // plan["dp"]
        self.axes = {
            "recipe": list(recipes), "states": ["", "", "+optimizer-bf16", "+optimizer-8bit"],
            "fsdp": ["none", "zero1", "zero2", "full", "full"] if self.gpus > 1 else ["none"],
            "recompute": ["none", "none", "selective", "norm", "norm+activation", "norm+mlp", "norm+activation+core", "per-op", "full"],
            "loss": [1, 8, 64] if language else [1],
            "batch": [b for b in range(1, each + 1) if each % b == 0],
            "offload": ["none"] * 6 + ["optimizer", "states", "optimizer+parameters", "parameters", "activations"],
            "allocator": ["caching", "expandable"], "impl": ["", "fused"],
            "tp": doubling(min(8, self.gpus)) if language else [1], "cp": doubling(min(8, self.gpus)) if language else [1],
            "pp": doubling(min(16, self.gpus)) if language else [1], "ep": doubling(min(64, self.gpus)) if language and self.experts() else [1],
            "mode": ["eager", "eager", "compile"] if any_mode else [request.get("mode", "eager")],
            "format": ["contiguous", "channels_last"] if not language else ["contiguous"],
        }
        self.recipes = recipes
        architecture = json.loads((Path(__file__).resolve().parents[1] / "data" / "models" / f"{request['model']}.json").read_text())["architecture"]
        self.depth = max(1, architecture.get("layers", 16))

    def experts(self):
        return any(word in self.request["model"] for word in ("mixtral", "deepseek", "moe"))

    def kind(self, point):
        return max(self.recipes[point["recipe"]], 1 if point["states"] else 0)

    def random(self, rng):
        point = {axis: rng.choice(values) for axis, values in self.axes.items()}
        for axis in ("tp", "cp", "pp", "ep"):  # most plans split few ways
            if rng.random() < 0.5:
                point[axis] = 1
        if rng.random() < 0.5:
            point["offload"] = "none"
        if rng.random() < 0.5:
            point["recipe"] = self.request["precision"]
        return point

    def changed(self, point, rng):
        out = dict(point)
        for axis in rng.sample(sorted(self.axes), rng.choice((2, 2, 3, 4))):
            out[axis] = rng.choice(self.axes[axis])
        return out

    def patch(self, point, layers):
        if self.gpus % (point["tp"] * point["cp"] * point["pp"]):
            return None
        dp = self.gpus // (point["tp"] * point["cp"] * point["pp"])
        each, rest = divmod(self.base["global_batch"], dp)
        if rest or each % point["batch"]:
            return None
        plan = {axis: point[axis] for axis in ("tp", "cp", "pp", "ep", "fsdp", "offload")}
        plan["sp"] = point["tp"] > 1
        if dp * point["cp"] == 1 and not (self.gpus == 1 and point["offload"] == "optimizer"):
            plan["fsdp"] = "none"
        out = {"precision": point["recipe"] + point["states"], "plan": plan, "batch": point["batch"], "global_batch": self.base["global_batch"],
               "recompute": point["recompute"], "allocator": point["allocator"], "mode": point["mode"]}
        for key, value in (("optimizer_impl", point["impl"]), ("loss_chunks", point["loss"] if point["loss"] > 1 else None), ("memory_format", point["format"] if point["format"] != "contiguous" else None)):
            if value:
                out[key] = value
        if layers and point["recompute"] != "none":
            out["recompute_layers"] = layers
        if layers and point["offload"] == "activations":
            plan["offload_layers"] = layers
        return out

    def point(self, fix):
        """Of an entry of the list."""
        request = merged(self.request, {key: value for key, value in fix["request"].items() if value is not None})
        plan = {**self.base["request"]["plan"], **request.get("plan", {})}
        recipe, *parts = request["precision"].split("+")
        out = {"recipe": recipe, "states": "".join(f"+{part}" for part in parts), "recompute": request.get("recompute", "none"), "loss": request.get("loss_chunks", 1),
               "batch": request["batch"], "allocator": request.get("allocator", "caching"), "impl": request.get("optimizer_impl", ""), "mode": request.get("mode", "eager"),
               "format": request.get("memory_format", "contiguous"), "fsdp": plan.get("fsdp", "none"), "offload": plan.get("offload", "none"), **{axis: plan.get(axis, 1) for axis in ("tp", "cp", "pp", "ep")}}
        self.recipes.setdefault(recipe, kind_of(fix))
        return out

    def layers_of_stage(self, point):
        return -(-self.depth // point["pp"])


class Search:
    """Of plans; what is done by layers is done to as few as are enough."""

    def __init__(self, request, base, seed, any_mode):
        self.request, self.base, self.space, self.rng = request, base, Space(request, base, any_mode), random.Random(seed)
        self.best, self.seen, self.tried = {}, set(), 0  # by kind: the cheapest few, as (samples per second, point, patch)

    def predicted(self, point, layers=0):
        patch = self.space.patch(point, layers)
        if patch is None:
            return None
        own = {key: value for key, value in self.request.items() if key not in ("recompute", "recompute_layers", "micro_batches", "plan")}
        self.tried += 1
        try:
            report = precog.predict(merged(own, {**patch, "fixes": False}))
        except precog.PrecogError:
            return None
        return (report, patch) if report["global_batch"] == self.base["global_batch"] else None

    def offer(self, point):
        """Whether it is the cheapest of its kind."""
        key = json.dumps(point, sort_keys=True)
        if key in self.seen:
            return False
        self.seen.add(key)
        at = self.best.setdefault(self.space.kind(point), [])
        made = self.fewest_layers(point, at[-1][0] if len(at) > 3 else 0)
        if made is None or not made[0].fits:
            return False
        first = not at or made[0].samples_per_s > at[0][0]
        at.append((made[0].samples_per_s, point, made[1]))
        at.sort(key=lambda one: -one[0])
        del at[6:]
        return first

    def fewest_layers(self, point, least_speed):
        moved = point["offload"] == "activations"
        if point["recompute"] == "none" and not moved:
            return self.predicted(point)
        none = self.predicted({**point, "recompute": "none", "offload": "none" if moved else point["offload"]})
        if none is None or none[0].fits or none[0].samples_per_s <= least_speed:
            return None
        best = self.predicted(point)
        if best is None or not best[0].fits:
            return None
        low, high, needs, has, most = 0, self.space.layers_of_stage(point), none[0]["device_bytes"], best[0]["device_bytes"], self.base["capacity_bytes"]
        for _ in range(5):
            if high - low < 2:
                break
            middle = low + math.ceil((high - low) * (needs - most) / (needs - has)) if needs > has else (low + high) // 2
            middle = min(max(middle, low + 1), high - 1)
            now = self.predicted(point, middle)
            if now is None:
                break
            if now[0].fits:
                high, has = middle, now[0]["device_bytes"]
                best = max(best, now, key=lambda one: one[0].samples_per_s)
            else:
                low, needs = middle, now[0]["device_bytes"]
        return best

    def run(self, plans):
        space, looked = self.space, set()
        for fix in self.base["fixes"]:
            if "a smaller step" not in fix["note"]:
                point = space.point(fix)
                self.offer(point if len(space.axes["mode"]) > 1 else {**point, "mode": space.axes["mode"][0]})
        attempts = 0
        while self.tried < plans and attempts < 40 * plans:
            anchors = [at[0][1] for at in self.best.values() if at and json.dumps(at[0][1], sort_keys=True) not in looked]
            for point in anchors:  # every setting in turn
                looked.add(json.dumps(point, sort_keys=True))
                for axis, values in space.axes.items():
                    for value in values:
                        if value != point[axis] and self.tried < plans:
                            self.offer({**point, axis: value})
            attempts += 1
            kinds = [kind for kind, at in self.best.items() if at]
            if not kinds or self.rng.random() < 0.25:
                self.offer(space.random(self.rng))
            elif not anchors:
                self.offer(space.changed(self.rng.choice(self.best[self.rng.choice(kinds)])[1], self.rng))
        return {kind: (at[0][0], at[0][2]) for kind, at in self.best.items() if at}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"of {', '.join([*JOBS, *UNSEEN])}; 'unseen': those that nobody looked at while the search was written")
    parser.add_argument("--plans", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mode", help="of the whole job: eager, compile")
    parser.add_argument("--any-mode", action="store_true", help="plans may be compiled, too")
    parser.add_argument("--typed", metavar="PRECOG", help="the program: what is listed is typed into it, and must say the same")
    parser.add_argument("--known", type=Path, help="what was found before, and where what is found is written")
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    known = json.loads(arguments.known.read_text()) if arguments.known and arguments.known.exists() else {}
    print(f"{'job':18} {'result':7} {'found':>9} {'listed':>9} {'over':>7} {'any mode':>9} {'over':>7}   s of CPU for the list")
    overs = [[], []]
    typed, wrong = 0, []
    for name in [one for given in arguments.jobs or JOBS for one in (UNSEEN if given == "unseen" else [given])]:
        request = {**{**JOBS, **UNSEEN}[name], **({"mode": arguments.mode} if arguments.mode else {})}
        begin = time.process_time()
        base = precog.predict(request)
        took = time.process_time() - begin
        if base.fits:
            print(f"{name:18} fits as it is")
            continue
        for fix in base["fixes"] if arguments.typed else ():
            typed += 1
            if told := differs(arguments.typed, request, fix):
                wrong.append(f"{name}: {fix['flags']}: {told}")
        key = f"{name}/{arguments.plans}/{arguments.seed}/{'any' if arguments.any_mode else arguments.mode}"
        entry = known.get(key)
        if entry is None:
            entry = {str(kind): list(one) for kind, one in Search(request, base, arguments.seed, arguments.any_mode).run(arguments.plans).items()}
            known[key] = entry
            if arguments.known:
                arguments.known.write_text(json.dumps(known, indent=1))
        for kind, title in enumerate(KINDS):
            fitting = [fix for fix in base["fixes"] if kind_of(fix) <= kind and "a smaller step" not in fix["note"]]
            found = [one for at, one in entry.items() if int(at) <= kind]
            if not found or (kind and str(kind) not in entry):
                continue
            speed, patch = max(found, key=lambda one: one[0])
            # In the job's own mode, as the plans are, and with what is listed as faster.
            ratios = [fix["time_ratio"] for fix in fitting if "--mode" not in fix["flags"]], [fix.get("faster_with", fix)["time_ratio"] for fix in fitting]
            times = [min(some, default=float("inf")) / base.samples_per_s for some in ratios]
            over = [time * speed - 1 for time in times]
            for some, one in zip(overs, over, strict=True):
                some.append(one)
            whole = base["global_batch"]
            print(f"{name:18} {title:7} {whole / speed:9.3f} {times[0] * whole:9.3f} {100 * over[0]:+6.1f}% {times[1] * whole:9.3f} {100 * over[1]:+6.1f}%   {took:.1f}", flush=True)
            if arguments.verbose and over[0] > 0.01:
                print(f"    {json.dumps(patch)}")
    if arguments.typed:
        print("\n".join([*wrong, f"typed into the program: {typed}, of which {len(wrong)} differ"]))
    for title, some in zip(("in the job's own mode", "in any mode"), overs, strict=True):
        if some:
            print(f"{title}: {sum(one > 0.03 for one in some)} of {len(some)} listed are more than 3% over the best plan found, the worst by {100 * max(some):.0f}%")


FLAGS = {"seq": "seq", "mode": "mode", "recompute": "recompute", "global_batch": "global-batch", "recompute_layers": "recompute-layers"}


def differs(program, request, fix):
    """What the program says of the job with the change's flags behind it, where that is not what was listed."""
    words = ["--model", request["model"], "--gpu", request["cluster"]["gpu"], "--gpus", request["cluster"]["gpus"], "--batch", request["batch"], "--precision", request["precision"]]
    for key, flag in FLAGS.items():
        words += [f"--{flag}", request[key]] if key in request else []
    for key, value in request.get("plan", {}).items():
        words += [f"--{key}"] if value is True else [f"--{key}", value]
    done = subprocess.run([program, "predict", "--json", *map(str, words), *fix["flags"].split()], capture_output=True, text=True)
    if done.returncode not in (0, 3):
        return done.stderr.strip()
    report = json.loads(done.stdout)
    if not report["fits"]:
        return "does not fit"
    one_rank = [text for text in report["warnings"] if "nothing to share out" in text]
    return (one_rank or [None])[0] if abs(report["step_s"] / fix["step_s"] - 1) < 1e-9 else f"{report['step_s']} s, not {fix['step_s']}"


def kind_of(fix):
    numerics = fix["numerics"]
    if "weights themselves" in numerics or "weights in fp16" in numerics:
        return 3
    if "every operator" in numerics:
        return 2
    return 1 if numerics else 0


if __name__ == "__main__":
    main()
