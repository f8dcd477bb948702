#!/usr/bin/env python3
"""How good is what `predict` lists for a job that does not fit? Hundreds of plans against the list: its own entries and plans at random,
every setting of the best changed in turn, then several at once: `tools/search_plans.py [--plans N] [--seed S] SET [NUMBER ...]`. Wants
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
from plan_jobs import SEEDS, jobs  # noqa: E402

PARTS = ("states", "gradients", "gathered")  # of a precision, beside its recipe
KINDS = ("same", "close", "narrow", "other")  # how far results are from the job's own: src/predict/fix_choices.h


def merged(request, patch):
    out = json.loads(json.dumps(request))
    for key, value in patch.items():
        out[key] = merged(out.get(key, {}), value) if isinstance(value, dict) else value
    return out


class Space:
    """What may be chosen of each setting; every plan trains the same samples in a step."""

    def __init__(self, request, base, mode):
        self.request, self.base = request, base
        self.gpus = request["cluster"]["gpus"]
        plan = base["request"]["plan"]
        language = bool(request.get("seq")) or base["request"].get("seq")
        name, *parts = request["precision"].split("+")
        self.rest = "".join(f"+{part}" for part in parts)  # stays as it is
        bf16 = base["peak_16bit"] == "bf16" if "peak_16bit" in base else not any(old in request["cluster"]["gpu"] for old in ("v100", "t4", "p100", "1080", "2080"))
        recipes = {name: 0}
        if name in ("fp32", "tf32"):
            recipes["amp-bf16" if bf16 else "amp-fp16"] = 1
        if bf16 and name.startswith(("fp32", "tf32", "amp-")):
            recipes.update({"bf16-master": 2, "fsdp-bf16": 2})
        if name not in ("bf16", "fp16"):
            recipes["bf16" if bf16 else "fp16"] = 3
        doubling = lambda most: [2**i for i in range(most.bit_length())]  # noqa: E731
        each = 8 * base["global_batch"] // plan["dp"]  # fewer replicas may have larger micro-batches
        self.axes = {
            "recipe": list(recipes), "states": ["", "", "+optimizer-bf16", "+optimizer-8bit"],
            "gradients": ["", "+main-gradients-bf16"] if name in ("bf16-master", "deepspeed-bf16") else [""],
            "gathered": ["", "+fp8-all-gather"] if "fp8" in self.rest else [""],
            "fsdp": ["none", "none", "zero1", "zero2", "full", "full", "hybrid"] if self.gpus > 1 else ["none"], "views": [False, True] if self.gpus > 1 else [False],
            "recompute": ["none", "none", "selective", "norm", "norm+activation", "norm+mlp", "norm+activation+core", "per-op", "full"],
            "loss": [1, 8, 64] if language else [1],
            "batch": [b for b in range(1, each + 1) if each % b == 0],
            "offload": ["none"] * 6 + ["optimizer", "states", "optimizer+parameters", "parameters", "states+parameters", "activations"], "fraction": [1, 1, 0.25, 0.5, 0.75],
            "allocator": ["caching", "expandable"], "impl": ["", "fused"],
            "tp": doubling(min(8, self.gpus)) if language else [1], "cp": doubling(min(8, self.gpus)) if language else [1], "exchange": ["ring", "all_to_all"] if language else ["ring"],
            "pp": doubling(min(16, self.gpus)) if language else [1], "ep": doubling(min(64, self.gpus)) if language and self.experts() else [1], "etp": [0, *doubling(min(8, self.gpus))] if language and self.experts() else [0],
            "mode": [mode],
            "format": ["contiguous", "channels_last"] if not language else ["contiguous"],
        }
        self.recipes = recipes
        known = Path(__file__).resolve().parents[1] / "data" / "models" / f"{request['model']}.json"
        self.depth = json.loads(known.read_text())["architecture"].get("layers", 16) if known.exists() else 16

    def experts(self):
        return any(word in str(self.request["model"]) for word in ("mixtral", "deepseek", "moe"))

    def kind(self, point):
        return max(self.recipes[point["recipe"]], 1 if any(point[axis] for axis in PARTS) else 0)

    def random(self, rng):
        point = {axis: rng.choice(values) for axis, values in self.axes.items()}
        for axis in ("tp", "cp", "pp", "ep"):  # most plans split few ways
            if rng.random() < 0.5:
                point[axis] = 1
        if rng.random() < 0.5:
            point["offload"] = "none"
        if rng.random() < 0.5:
            point["recipe"] = self.request["precision"].split("+")[0]
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
        if point["recipe"].startswith("fsdp-") and (point["fsdp"] not in ("zero2", "full", "hybrid") or dp * point["cp"] == 1):
            return None  # of FSDP: SHARD_GRAD_OP, FULL_SHARD, HYBRID_SHARD
        if point["gradients"] and point["recipe"] != self.request["precision"].split("+")[0]:
            return None
        each, rest = divmod(self.base["global_batch"], dp)
        if rest or each % point["batch"]:
            return None
        plan = {axis: point[axis] for axis in ("tp", "cp", "pp", "ep", "fsdp", "offload")}
        plan["sp"] = point["tp"] > 1
        if dp * point["cp"] == 1 and not (self.gpus == 1 and point["offload"] == "optimizer"):
            plan["fsdp"] = "none"
        for key, value, said in (("bucket_views", True, point["views"] and plan["fsdp"] == "none"), ("offload_fraction", point["fraction"], point["offload"] == "optimizer" and point["fraction"] < 1),
                                 ("cp_exchange", point["exchange"], point["cp"] > 1), ("etp", point["etp"], point["etp"] and point["ep"] > 1)):
            if said:
                plan[key] = value
        out = {"precision": point["recipe"] + self.rest + "".join(point[axis] for axis in PARTS), "plan": plan, "batch": point["batch"], "global_batch": self.base["global_batch"],
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
        parted = {axis: "".join(f"+{part}" for part in parts if f"+{part}" in self.axes[axis]) for axis in PARTS}
        out = {"recipe": recipe, **parted, "views": plan.get("bucket_views", False), "fraction": plan.get("offload_fraction", 1), "exchange": plan.get("cp_exchange", "ring"), "etp": plan.get("etp", 0), "recompute": request.get("recompute", "none"), "loss": request.get("loss_chunks", 1),
               "batch": request["batch"], "allocator": request.get("allocator", "caching"), "impl": request.get("optimizer_impl", ""), "mode": request.get("mode", "eager"),
               "format": request.get("memory_format", "contiguous"), "fsdp": plan.get("fsdp", "none"), "offload": plan.get("offload", "none"), **{axis: plan.get(axis, 1) for axis in ("tp", "cp", "pp", "ep")}}
        self.recipes.setdefault(recipe, kind_of(fix))
        return out

    def layers_of_stage(self, point):
        return -(-self.depth // point["pp"])


class Search:
    """Of plans; what is done by layers is done to as few as are enough."""

    def __init__(self, request, base, seed, mode):
        self.request, self.base, self.space, self.rng = request, base, Space(request, base, mode), random.Random(seed)
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
                self.offer({**space.point(fix), "mode": space.axes["mode"][0]})
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


def gaps(request, base, found):
    """By how far results are from the job's own: the best plan found and the list's best, in the job's own mode and in any."""
    for kind, title in enumerate(KINDS):
        plans = {mode: [one for at, one in entry.items() if int(at) <= kind] for mode, entry in found.items()}
        if kind and not any(str(kind) in entry for entry in found.values()):
            continue
        listed = [fix for fix in base["fixes"] if kind_of(fix) <= kind and "a smaller step" not in fix["note"]]
        own = min((fix["time_ratio"] for fix in listed if "--mode" not in fix["flags"]), default=math.inf), plans[request["mode"]]
        best = min((fix.get("faster_with", fix)["time_ratio"] for fix in listed), default=math.inf), sum(plans.values(), [])
        yield title, [against(ratio / base.samples_per_s, some) for ratio, some in (own, best)]


def against(time, plans):
    """The fastest plan, as (samples per second, patch), and how much longer that time is than its own."""
    fastest = max(plans, key=lambda one: one[0], default=None)
    return fastest and (fastest, time * fastest[0] - 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("set", choices=SEEDS, help="of jobs (plan_jobs.py)")
    parser.add_argument("numbers", nargs="*", type=int, metavar="NUMBER", help="of jobs in it; all, where none is given")
    parser.add_argument("--plans", type=int, default=600, help="predictions of each mode")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--typed", metavar="PRECOG", help="the program: what is listed is typed into it, and must say the same")
    parser.add_argument("--known", type=Path, help="what was found before, and where what is found is written")
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    known = json.loads(arguments.known.read_text()) if arguments.known and arguments.known.exists() else {}
    print(f"{'job':24} {'result':7} {'found':>9} {'listed':>9} {'over':>7}   {'any mode':>9} {'listed':>9} {'over':>7}   s of CPU for the list")
    overs = [], []
    typed, wrong = 0, []
    for name, request in jobs(SEEDS[arguments.set], arguments.numbers).items():
        begin = time.process_time()
        base = precog.predict(request)
        took = time.process_time() - begin
        for fix in base["fixes"] if arguments.typed else ():
            typed += 1
            if told := differs(arguments.typed, request, fix):
                wrong.append(f"{name}: {fix['flags']}: {told}")
        found = {}
        for mode in {request["mode"]: None, "compile": None}:
            key = f"{name}/{arguments.plans}/{arguments.seed}/{mode}"
            if key not in known:
                known[key] = {str(kind): list(one) for kind, one in Search(request, base, arguments.seed, mode).run(arguments.plans).items()}
                if arguments.known:
                    arguments.known.write_text(json.dumps(known, indent=1))
            found[mode] = known[key]
        for title, both in gaps(request, base, found):
            told = f"{name:24} {title:7}"
            for some, one in zip(overs, both, strict=True):
                if one is None:
                    told += " " * 30
                    continue
                (speed, _), over = one
                some.append(over)
                whole = base["global_batch"] / speed
                told += f" {whole:9.3f} {whole * (1 + over):9.3f} {100 * over:+6.1f}%  "
            print(f"{told} {took:.1f}", flush=True)
            for one in both if arguments.verbose else ():
                if one and one[1] > 0.01:
                    print(f"    {json.dumps(one[0][1])}")
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
