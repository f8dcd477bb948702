#!/usr/bin/env python3
"""Published training runs of language models against the predicted step.

  PRECOG_REFERENCE_DATA=DIR tools/published_llm.py [--write] [--list] [--json FILE] [--vtrain] [--megatron]

DIR holds published/published_llm.csv.gz, published_llm_pairs.csv and vtrain_single_node_a100.csv. --write puts the tables into
docs/published_llm.md (between its two marks), --list prints every run; --vtrain and --megatron do those points alone.
PRECOG names the program (build/release/precog by default).

A row with an architecture, a plan, a batch and a time becomes a request. What its source leaves blank takes the default that
data/frameworks.json gives for its framework; what cannot be predicted is listed with the reason. Nothing is fitted to these rows.
"""
import argparse
import collections
import csv
import gzip
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
DEFAULTS = ROOT / "data" / "frameworks.json"
PAGE = ROOT / "docs" / "published_llm.md"
PROGRAM = os.environ.get("PRECOG", str(ROOT / "build" / "release" / "precog"))

from published_speedups import best_constant, quantile, spearman  # noqa: E402  (beside this file)

SIZES = ("layers", "hidden", "heads", "seq_len", "num_gpus", "tp", "pp", "dp", "micro_batch", "global_batch")
NUMBERS = SIZES + ("ffn_hidden", "kv_heads", "vocab", "moe_experts", "moe_topk", "gpus_per_node", "gpu_mem_gb", "vp", "cp", "ep")
GPUS = {"H100-SXM": "h100-sxm", "H100": "h100-sxm", "H200-SXM": "h200-sxm", "GB200": "gb200", "GB300": "gb300", "B200": "b200-sxm", "B300": "b300",
        "RTX 5090": "rtx-5090", "RTX 5060 Ti": "rtx-5060-ti-16gb", "RTX 4090": "rtx-4090", "RTX PRO 6000": "rtx-pro-6000", "L40S": "l40s", "A100-SXM 40": "a100-sxm-40gb",
        "A100-SXM 80": "a100-sxm-80gb", "V100-SXM2 16": "v100-sxm2-16gb", "V100-SXM2 32": "v100-sxm2-32gb", "V100-SXM3 (DGX-2H) 32": "v100-sxm2-32gb"}
# What the link between nodes is called: network, ports per node.
NETWORKS = {"1600 Gbps RoCE per node": ("roce-200g", 8), "4x Omni-Path (OPA) per node": ("omni-path-100", 4), "Omni-Path 100 Gb/s links": ("omni-path-100", 4),
            "8x HDR InfiniBand per node (Selene)": ("ib-hdr", 8), "HDR InfiniBand (Selene)": ("ib-hdr", 8), "400 Gbps per node": ("efa-100g", 4),
            "800 Gbps per node": ("roce-100g", 8), "3.2 Tbps RoCE per node": ("roce-400g", 8)}
NVL72 = {"gb200", "gb300"}
SYSTEMS = {"V100-SXM3 (DGX-2H)": "dgx-2"}  # where a GPU's usual system is not what the table names


def reference(name):
    folder = os.environ.get("PRECOG_REFERENCE_DATA", "")
    path = pathlib.Path(folder) / "published" / name
    return path if folder and path.is_file() else None


def read_rows():
    rows = []
    with gzip.open(reference("published_llm.csv.gz"), "rt", newline="") as file:
        for row in csv.DictReader(file):
            for key in NUMBERS:
                row[key] = int(float(row[key])) if row[key] else None
            row["measured"] = float(row["iteration_time_s"]) if row["iteration_time_s"] else None
            row["source"] = row["source_repo_or_paper"]
            rows.append(row)
    return rows


def frameworks():
    table = json.loads(DEFAULTS.read_text())["frameworks"]
    return {name: entry for entry in table for name in entry["names"]}


def is_full(row):
    """The row says what is needed: architecture, plan, batch, time."""
    return bool(row["measured"] and row["precision"] and all(row[key] for key in SIZES))


def architecture(row, defaults):
    """The model as a request names it."""
    name, seq, heads = row["model"], row["seq_len"], row["heads"]
    sizes = {"hidden": row["hidden"], "layers": row["layers"], "heads": heads, "vocab": row["vocab"] or 51200, "max_positions": max(seq, 1024)}
    intermediate = row["ffn_hidden"] or 4 * row["hidden"]
    decoder = {**sizes, "kv_heads": row["kv_heads"] or heads, "head_dim": max(2, row["hidden"] // heads), "intermediate": intermediate}
    fused = {"fused_projections": defaults["fused_projections"]}
    if name.startswith("Transformer-XL"):
        return {"graph": str(ROOT / "tests" / "data" / "published" / "transformer-xl-base.precog.json.zst")}
    if name.startswith("BERT"):
        return {"family": "bert", "architecture": {**sizes, "intermediate": intermediate, "max_positions": 512, "token_types": 2,
                                                   "dropout": defaults["dropout"], "next_sentence": True}}
    if name.startswith("DeepSeek-V3"):
        # Multi-token prediction is one more layer; its second head is left out.
        layers = row["layers"] + (0 if "w/o MTP" in row["notes"] else 1)
        return {"family": "deepseek_v3", "architecture": {
            **sizes, "layers": layers, "intermediate": intermediate, "dense_layers": 3, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64, "v_head_dim": 128, "experts": 256, "shared_experts": 1, "experts_per_token": 8, "expert_groups": 8,
            "groups_per_token": 4, "expert_intermediate": 2048, "weigh_inside": True}}
    if row["moe_experts"]:
        experts = {"experts": row["moe_experts"], "experts_per_token": row["moe_topk"], "expert_intermediate": intermediate, "weigh_inside": True}
        if name.startswith("Llama-4"):  # every other layer has experts, and one that all tokens pass
            experts |= {"sparse_step": 2, "shared_intermediate": 8192, "expert_intermediate": 8192, "intermediate": 16384, "head_dim": 128}
        elif name.startswith("Grok"):
            experts |= {"activation": "gelu", "head_dim": 128}
        elif name.startswith("GPT-OSS"):
            experts |= {"head_dim": 64, "qkv_bias": True}
        elif name.startswith("Qwen3"):
            experts |= {"head_dim": 128, "qk_norm": True}
        return {"family": "mixtral", "architecture": {**decoder, **fused, **experts}}
    if name.startswith(("Llama", "LLaMA")):
        return {"family": "llama", "architecture": {**decoder, **fused}}
    if name.startswith("Qwen2.5"):
        tied = name.endswith(("-0.5B", "-1.5B", "-3B"))
        return {"family": "llama", "architecture": {**decoder, **fused, "qkv_bias": True, "tie_embeddings": tied}}
    if name.startswith("Nemotron"):
        return {"family": "llama", "architecture": {**decoder, **fused, "gated": False, "layer_norm": True, "activation": "relu2"}}
    if name.startswith("MPT"):
        return {"family": "mpt", "architecture": {**sizes, "intermediate": intermediate}}
    if name.startswith("GPT"):
        dropout = 0 if "nanogpt" in row["source"] else defaults["dropout"]
        return {"family": "gpt2", "architecture": {**sizes, "intermediate": intermediate, "activation": "gelu", "dropout": dropout}}
    return f"no architecture: {name}"


def cluster(row):
    name = GPUS.get(row["gpu"]) or GPUS.get(f"{row['gpu']} {row['gpu_mem_gb']}")
    if name is None:
        return f"no GPU: {row['gpu']}"
    gpus, node = row["num_gpus"], row["gpus_per_node"] or 8
    if name in NVL72:  # the table's node is a tray; what NVLink reaches is a rack, of which powers of two use 64
        node = gpus if gpus <= 72 else 64 if gpus % 64 == 0 else 72 if gpus % 72 == 0 else node
    made = {"gpu": name, "gpus": gpus, "gpus_per_node": min(node, gpus)}
    if row["gpu"] in SYSTEMS:
        made["name"] = SYSTEMS[row["gpu"]]
    if row["inter_link"] in NETWORKS and gpus > node:
        made["network"], made["nics_per_node"] = NETWORKS[row["inter_link"]]
    return made


def noted(row):
    """The day that a chronicle's line gives, as 02-25; nothing where there is none."""
    day = re.search(r"noted (\d\d-\d\d)", row["notes"])
    return day[1] if day else ""


def precision(row, defaults):
    detail, key = row["precision_detail"], row["precision"]
    for day, meant in defaults.get("unstated_precision_before", {}).items():
        if detail.startswith("not stated") and "" < noted(row) < day:
            key = meant
    if key == "fp8" and "current" in detail:
        key = "fp8 current"
    elif "128x128" in detail and row["gpu"].startswith("H"):
        key = "fp8 blockwise"
    elif key == "bf16" and "mixed_precision=PURE" in detail:
        key = "bf16 pure"
    table = defaults["precision"]
    return table.get(key) or table.get(key.split()[0])


def sharding(row, defaults):
    said = row["zero_or_fsdp"]
    if row["dp"] == 1 and (row["cp"] or 1) == 1:
        return "none"
    if "shard-weights" in said or said.startswith(("ZeRO-3", "FSDP FULL", "FSDP", "HSDP", "Megatron-FSDP")) and "GRAD_OP" not in said:
        return "full"
    if "GRAD_OP" in said or "shard-gradients" in said:
        return "zero2"
    if said.startswith(("ZeRO-1", "DDP + distributed optimizer")):
        return "zero1"
    return "none" if said.startswith("ZeRO-0") else defaults["sharding"]


def stages(layers, pp, vpp):
    """Layers of each chunk where embedding and head count as a layer each; nothing where the even split is right."""
    chunks = pp * vpp
    if layers % chunks == 0 or (layers + 2) % chunks != 0:
        return None
    each = (layers + 2) // chunks
    return [each - 1] + [each] * (chunks - 2) + [each - 1] if each > 1 else None


def expert_plan(row, defaults):
    """How the framework's own configurations send tokens to experts."""
    out = {}
    if defaults.get("whole_experts") and row["tp"] > 1 and row["model"] not in defaults["split_experts_of"]:
        out["etp"] = 1
    release = re.match(r"NeMo [0-9.]+", row["date_or_version"])
    for one in defaults.get("expert_plans", []):
        same = row["model"] == one["model"] and row["gpu"] in one["gpus"] and all(row[key] == value for key, value in one.get("where", {}).items())
        if same and "NeMo" in row["source"] and (release[0] if release else "") >= one.get("from", ""):
            out |= one["plan"]
    return out


def settings(row, framework):
    """The framework's defaults, with what its rules say of this model and GPU."""
    made = dict(framework)
    fsdp = row["zero_or_fsdp"].startswith("Megatron-FSDP")
    for rule in framework.get("rules", []):
        here = row["model"] == rule["model"] and all(row[key] in rule[key] for key in ("gpu", "precision", "source") if key in rule)
        if here and row["date_or_version"].startswith(tuple(rule.get("releases", [""]))) and (fsdp or not rule.get("fsdp")):
            made.update({key: {**made[key], **value} if isinstance(value, dict) else value for key, value in rule["set"].items()})
    return made


def flags_of(row, defaults):
    """What a row of llm.q was run with: stated, or behind the mark that its model has in the table."""
    stated = " ".join(f"--{flag}" for key in ("recompute", "zero_or_fsdp", "optimizer") for flag in re.findall(r"(?:recompute|shard|offload)-[a-z-]+", row[key]))
    mark = re.search(r"footnote flags on \S*?([¹²³⁴⁵⁶⁷⁸⁹])", row["notes"])
    marked = defaults["footnotes"].get(row["gpu"], {}).get(mark[1], "") if mark else ""
    other = re.search(r"other flags: ([^;]*)", row["notes"])
    return set(f"{stated} {marked} {other[1] if other else ''}".split())


RECOMPUTED = {"--recompute-norm": "norm", "--recompute-swiglu": "activation", "--recompute-ffn": "mlp", "--recompute-qkv": "qkv", "--recompute-att": "attention"}


def with_flags(request, flags):
    """llm.q's switches as the request has them; or why not."""
    if "--offload-residual" in flags and "--recompute-block" not in flags:
        return "llm.q's --offload-residual beside other kept activations is not modelled"
    if "--offload-quants" in flags:
        return "weights kept on the host in fp8 (llm.q's --offload-quants) are not modelled"
    plan = request["plan"]
    if "--recompute-block" in flags:
        request["recompute"] = "full"
    elif flags & set(RECOMPUTED):
        request["recompute"] = "+".join(part for flag, part in RECOMPUTED.items() if flag in flags)
    if plan["dp"] > 1:
        plan["fsdp"] = "full" if "--shard-weights" in flags else "zero2" if "--shard-gradients" in flags else plan["fsdp"]
    offload = ["states"] if "--offload-opt-m" in flags else []
    if "--offload-master" in flags:  # weights that are shared out have no copy of their own on the GPU
        offload.append("parameters" if "--shard-weights" in flags else "master")
    if "--offload-residual" in flags:
        offload.append("activations")
    if offload:
        plan["offload"] = "+".join(offload)
    for flag in flags:
        if flag.startswith("--lmhead-chunks="):
            request["loss_chunks"] = int(flag.split("=")[1])
    return request


def micro_batch(row, defaults):
    """Printed; where that and accumulation do not make the global batch, what follows from accumulation, if anything does, else the configuration's."""
    if "does not equal GBS" not in row["notes"]:
        return row["micro_batch"]
    steps = int(float(row["grad_accum"])) if row["grad_accum"] else 0
    each, left = divmod(row["global_batch"], row["dp"] * steps) if steps else (0, 0)
    return each if left == 0 and 0 < each < row["micro_batch"] else defaults.get("micro_batch", row["micro_batch"])


def request_of(row, table):
    """The request, or the reason why there is none."""
    if row["framework"] not in table:
        return f"no defaults for the framework {row['framework']}"
    defaults = settings(row, table[row["framework"]])
    model, where, recipe = architecture(row, defaults), cluster(row), precision(row, defaults)
    for reason in (model, where):
        if isinstance(reason, str):
            return reason
    if recipe is None:
        return f"no recipe for {row['precision']} of {row['framework']}"
    said = row["recompute"] or defaults["recompute"]
    if said.startswith("selective (every"):
        return "which share of the blocks is recomputed is not stated"
    if "LoRA" in row["notes"]:
        return "LoRA: which layers is not stated"
    recompute = "selective" if said.startswith("selective") else "none" if said.startswith("recompute-") else said
    tp, pp, cp, ep, vpp = row["tp"], row["pp"], row["cp"] or 1, row["ep"] or 1, row["vp"] or 1
    plan = {"dp": row["dp"], "tp": tp, "pp": pp, "cp": cp, "fsdp": sharding(row, defaults)}
    if plan["fsdp"] == "full" and defaults.get("shard_size", plan["dp"]) < plan["dp"]:
        plan |= {"fsdp": "hybrid", "shard_size": defaults["shard_size"]}
    if plan["fsdp"] == "full" and "zero3" in defaults:
        plan["zero3"] = defaults["zero3"]
    if tp > 1 and (defaults["sequence_parallel"] or "sequence parallel" in said):
        plan["sp"] = True
        if defaults.get("tp_overlap") and row["precision"] not in defaults.get("no_tp_overlap_in", []):
            plan["tp_overlap"] = True
            if defaults.get("tp_scatter_fp8") and row["precision"] == "fp8":
                plan["tp_scatter_fp8"] = True
    if ep > 1:
        plan |= {"ep": ep, **expert_plan(row, defaults)}
    if pp > 1 and vpp > 1:
        if row["layers"] + 2 == pp * vpp:  # a chunk would hold the embedding alone; ours hold a layer each
            vpp //= 2
        plan["vpp"] = vpp
    uneven = stages(row["layers"], pp, vpp) if pp > 1 else None
    if uneven:
        plan["stage_layers"] = uneven
    if "offload_layers" in defaults:
        plan |= {"offload": "activations", "offload_layers": defaults["offload_layers"]}
    request = {"schema": 1, "model": model, "batch": micro_batch(row, defaults), "seq": row["seq_len"], "global_batch": row["global_batch"], "precision": recipe,
               "optimizer": defaults["optimizer"], "optimizer_impl": defaults["optimizer_impl"], "recompute": recompute,
               "clip_grad_norm": defaults["clip_grad_norm"], "cluster": where, "plan": plan}
    for key in ("allocator", "loss_chunks", "reads_each_loss", "softmax_by_heads"):
        if key in defaults:
            request[key] = defaults[key]
    impl = row["attention_impl"]
    attention = "sdpa" if "flash" in impl.lower() and defaults["attention"] == "eager" else "eager" if impl == "naive" else defaults["attention"]
    if "graph" in model:
        request.pop("seq")
    elif attention != "sdpa" and not (attention.startswith("flash") and row["gpu"].startswith("V100")):
        request["attention"] = attention
    mode = defaults.get("mode") or ("compile" if row["compile"] == "yes" else "eager")
    if mode != "eager":
        request["mode"] = mode
        if attention == "sdpa" and "graph" not in model:  # none of these models is transformers' code, which builds masks where it is traced
            request["attention"] = "sdpa-causal"
    elif defaults["stack"] != "pytorch":
        request["stack"] = defaults["stack"]
    if "host" in defaults:
        request["host"] = defaults["host"]
    elif where["gpu"] in NVL72:
        request["host"] = "grace"
    return with_flags(request, flags_of(row, defaults)) if "footnotes" in defaults else request


def validated(requests, data=None):
    """What one call of `precog validate` says of the requests; their ids are their places."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "runs.jsonl"
        with open(path, "w") as file:
            for index, request in enumerate(requests):
                file.write(json.dumps({"id": str(index), "source": "published", "request": request, "measured": {"step_s": 1.0}}) + "\n")
        done = subprocess.run([PROGRAM, "validate", str(path), "--json", *(["--data", str(data)] if data else [])], cwd=ROOT, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stderr)
    return json.loads(done.stdout)


def predict(requests, data=None):
    """Seconds by place, and the reasons where there are none."""
    return answers(validated(requests, data))


def answers(result):
    seconds = {int(run["id"]): run["predicted_s"] for run in result["runs"] if run.get("predicted_s")}
    return seconds, {int(entry["id"]): entry["reason"] for entry in result["unpredicted"]}


def predicted_rows(rows):
    """Each row gets "predicted" and "error", or "reason"; equal requests are asked once."""
    table, asked, places = frameworks(), [], {}
    for row in rows:
        made = request_of(row, table)
        if isinstance(made, str):
            row["reason"] = made
            continue
        text = json.dumps(made, sort_keys=True)
        if text not in places:
            places[text] = len(asked)
            asked.append(made)
        row["request"], row["place"] = made, places[text]
    result = validated(asked)
    seconds, reasons = answers(result)
    fits = {int(run["id"]): run["predicted_fits"] for run in result["runs"]}
    peaks = {int(run["id"]): run["predicted_peak_bytes"] for run in result["runs"]}
    for row in rows:
        if "place" not in row:
            continue
        if row["place"] in seconds:
            row["predicted"] = seconds[row["place"]]
            row["fits"], row["peak"] = fits[row["place"]], peaks[row["place"]]
            row["error"] = row["predicted"] / row["measured"] - 1
        else:
            row["reason"] = "refused: " + re.sub(r"^[^:]*runs\.jsonl[^:]*(:\d+)?: ", "", reasons[row["place"]].splitlines()[0])
    return rows


def mend_heads(rows):
    """What a source says elsewhere of the heads of a day's runs."""
    table = frameworks()
    for row in rows:
        row["heads"] = table.get(row["framework"], {}).get("heads_noted", {}).get(noted(row), row["heads"])
    return rows


def fill_chunks(rows):
    """A source that gives a model's chunks per stage in one table and leaves them out in another means the same (fine-tuning apart)."""
    known = {(row["source"], row["model"], row["tp"], row["pp"]): row["vp"] for row in rows if row["vp"]}
    for row in rows:
        if not row["vp"] and "SFT" not in row["notes"]:
            row["vp"] = known.get((row["source"], row["model"], row["tp"], row["pp"]))
    return rows


def evaluate():
    return predicted_rows(mend_heads(fill_chunks([row for row in read_rows() if is_full(row)])))


def figures(rows):
    done = [row["error"] for row in rows if "error" in row]
    if not done:
        return None
    return {"rows": len(done), "mape": 100 * statistics.mean(map(abs, done)), "median": 100 * statistics.median(map(abs, done)),
            "p90": 100 * quantile([abs(error) for error in done], 0.9), "bias": 100 * statistics.mean(done)}


def stated(row):
    """A100 and H100 rows whose source says whether activations are recomputed."""
    return bool(row["recompute"]) and row["gpu"].startswith(("A100", "H100"))


def size_of(row):
    billions = float(row["params_b"]) if row["params_b"] else 0
    for limit, name in ((1, "below 1 B"), (10, "1 to 10 B"), (100, "10 to 100 B")):
        if 0 < billions < limit:
            return name
    return "100 B and more" if billions else "not stated"


def precision_pairs(rows):
    """Strict pairs: the same job at two precisions."""
    by_id = {row["id"]: row for row in rows if "predicted" in row}
    pairs = []
    with open(reference("published_llm_pairs.csv"), newline="") as file:
        for pair in csv.DictReader(file):
            if pair["kind"] != "strict":
                continue
            sides = [[by_id[one]["predicted"] for one in pair[ids].split() if one in by_id] for ids in ("ids_a", "ids_b")]
            if not all(sides):
                continue
            predicted, measured = statistics.median(sides[0]) / statistics.median(sides[1]), float(pair["speedup_b_over_a"])
            pairs.append({"pair": f"{pair['precision_a']} to {pair['precision_b']}", "source": pair["source"], "model": pair["model"], "gpu": pair["gpu"],
                          "predicted": predicted, "measured": measured, "error": predicted / measured - 1})
    return pairs


def pair_figures(pairs):
    if not pairs:
        return None
    by = collections.defaultdict(list)
    for pair in pairs:
        by[pair["pair"]].append(pair["measured"])
    constant = {name: best_constant(values) for name, values in by.items()}
    errors = [abs(pair["error"]) for pair in pairs]
    plain = [abs(constant[pair["pair"]] / pair["measured"] - 1) for pair in pairs]
    return {"pairs": len(pairs), "median": 100 * statistics.median(errors), "p90": 100 * quantile(errors, 0.9),
            "bias": 100 * statistics.median(pair["error"] for pair in pairs), "constant": 100 * statistics.median(plain),
            "spearman": spearman([pair["predicted"] for pair in pairs], [pair["measured"] for pair in pairs])}


def kendall(left, right, noise=0.0):
    """Of the pairs whose right values lie further apart than the noise."""
    agree = total = 0
    for i in range(len(left)):
        for j in range(i):
            if left[i] != left[j] and max(right[i], right[j]) > (1 + noise) * min(right[i], right[j]):
                total += 1
                agree += (left[i] < left[j]) == (right[i] < right[j])
    return (2 * agree - total) / total if total else None


def spread_of_repeats(rows):
    """How far two runs of one request lie apart at most."""
    groups = collections.defaultdict(list)
    for row in rows:
        groups[row["place"]].append(row["measured"])
    return max(max(times) / min(times) - 1 for times in groups.values())


def sweeps(rows):
    """BigScience: plans for one model on one cluster, ordered by time per sample; days that the source says not to compare are apart."""
    groups, table = collections.defaultdict(list), frameworks()
    for row in rows:
        if "predicted" in row and "bigscience" in row["source"]:
            changes = table[row["framework"]].get("compare_apart_since", [])
            groups[row["model"], row["hidden"], row["heads"], row["num_gpus"], sum(noted(row) >= day for day in changes)].append(row)
    found = []
    for (model, hidden, heads, gpus, _), members in sorted(groups.items()):
        if len({json.dumps(row["request"]["plan"]) + str(row["micro_batch"]) for row in members}) < 4:
            continue
        pace = [[row[key] / row["global_batch"] for row in members] for key in ("predicted", "measured")]
        noise = spread_of_repeats(members)
        found.append({"sweep": f"{model}, hidden {hidden}, {heads} heads, {gpus} GPUs", "plans": len(members), "tau": kendall(*pace), "noise": noise,
                      "pairs": len(members) * (len(members) - 1) // 2,
                      "tau_beyond_noise": kendall(*pace, noise)})
    return found


# Korthikanti et al. 2022 (arXiv 2205.05198), table 5: seconds per iteration with full recomputation, and with sequence
# parallelism and selective recomputation. Configurations: table 3.
MEGATRON = [("22B", 48, 6144, 64, 8, 1, 1, 4, 4, 1.42, 1.10), ("175B", 96, 12288, 96, 64, 8, 3, 1, 64, 18.13, 13.75),
            ("530B", 105, 20480, 128, 280, 35, 3, 1, 280, 49.05, 37.83), ("1T", 128, 25600, 160, 512, 64, 1, 1, 512, 94.42, 71.49)]


def megatron_points():
    defaults, points = frameworks()["Megatron-LM"], []
    for name, layers, hidden, heads, gpus, pp, vpp, batch, global_batch, full, selective in MEGATRON:
        for recompute, measured in (("full", full), ("selective", selective)):
            plan = {"tp": 8, "pp": pp, "dp": 1}
            if recompute == "selective":
                plan["sp"] = True
            if vpp > 1:
                plan["vpp"] = vpp
            sizes = {"hidden": hidden, "layers": layers, "heads": heads, "vocab": 51200, "max_positions": 2048, "activation": "gelu", "dropout": 0.1}
            points.append({"model": name, "recompute": recompute, "measured": measured, "request": {
                "schema": 1, "model": {"family": "gpt2", "architecture": sizes}, "batch": batch, "seq": 2048, "global_batch": global_batch,
                "precision": "fp16-master", "optimizer": "adam", "clip_grad_norm": 1.0, "stack": defaults["stack"], "attention": defaults["attention"],
                "recompute": recompute, "cluster": {"gpu": "a100-sxm-80gb", "gpus": gpus, "gpus_per_node": 8, "network": "ib-hdr"}, "plan": plan}})
    seconds, reasons = predict([point["request"] for point in points])
    for index, point in enumerate(points):
        if index in seconds:
            point["predicted"], point["error"] = seconds[index], seconds[index] / point["measured"] - 1
        else:
            point["reason"] = reasons[index]
    return points


# vTrain (github.com/VIA-Research/vTrain): src/config.py; its rows come from microsoft/Megatron-DeepSpeed (data/README.md there), without gradient buckets.
VTRAIN_VOCABULARY = 50257


def vtrain_rows():
    defaults, rows = frameworks()["Megatron-DeepSpeed"], []
    with open(reference("vtrain_single_node_a100.csv"), newline="") as file:
        for row in csv.DictReader(file):
            size = {key: int(row[key]) for key in ("gpus", "global_batch", "micro_batch", "hidden", "heads", "layers", "seq", "tp", "dp", "pp")}
            sizes = {"hidden": size["hidden"], "layers": size["layers"], "heads": size["heads"], "vocab": VTRAIN_VOCABULARY, "max_positions": size["seq"], "activation": "gelu",
                     "dropout": defaults["dropout"]}
            request = {"schema": 1, "model": {"family": "gpt2", "architecture": sizes}, "batch": size["micro_batch"], "seq": size["seq"],
                       "global_batch": size["global_batch"], "precision": defaults["precision"]["fp16"], "optimizer": defaults["optimizer"],
                       "optimizer_impl": defaults["optimizer_impl"], "clip_grad_norm": defaults["clip_grad_norm"], "recompute": defaults["recompute"],
                       "reads_each_loss": defaults["reads_each_loss"], "stack": defaults["stack"], "attention": defaults["attention"], "pad_vocabulary": 128 * size["tp"],
                       "cluster": {"gpu": "a100-sxm-80gb", "gpus": size["gpus"], "gpus_per_node": size["gpus"]},
                       "plan": {"tp": size["tp"], "pp": size["pp"], "dp": size["dp"]}}
            rows.append({**size, "measured": float(row["iteration_ms"]) / 1e3, "request": request})
    return rows


def with_errors(rows, seconds, reasons):
    for index, row in enumerate(rows):
        if index in seconds:
            row["predicted"], row["error"] = seconds[index], seconds[index] / row["measured"] - 1
        else:
            row["reason"] = reasons[index]
    return rows


def scaled_host(scale, folder):
    """A copy of data/ whose hosts take `scale` times as long for everything."""
    data = ROOT / "data"
    copy = pathlib.Path(folder) / f"data-{scale:g}"
    if copy.exists():
        return copy
    (copy / "hosts").mkdir(parents=True)
    for path in data.iterdir():
        if path.name != "hosts":
            (copy / path.name).symlink_to(path)
    for path in (data / "hosts").glob("*.json"):
        text = re.sub(r'"([0-9.]+) (us|ms|ns|s)"', lambda m: f'"{float(m[1]) * scale:.6g} {m[2]}"', path.read_text())
        (copy / "hosts" / path.name).write_text(text)
    return copy


def vtrain():
    """All rows with the default host; and with one scalar on its times that 20 rows chose (the same 20 each time)."""
    rows = vtrain_rows()
    plain = with_errors(rows, *predict([row["request"] for row in rows]))
    result = {"rows": plain, "plain": figures(plain)}
    sample = random.Random(20).sample([row for row in rows if "error" in row], 20)
    with tempfile.TemporaryDirectory() as folder:
        def error(scale):
            seconds, _ = predict([row["request"] for row in sample], scaled_host(scale, folder))
            return statistics.mean(abs(seconds[i] / row["measured"] - 1) for i, row in enumerate(sample))
        scale = min([0.5 * 1.15 ** power for power in range(14)], key=error)
        scale = min([scale * 1.15 ** (step / 6) for step in range(-5, 6)], key=error)  # the first says between which two
    with tempfile.TemporaryDirectory() as folder:
        again = with_errors([dict(row) for row in rows], *predict([row["request"] for row in rows], scaled_host(scale, folder)))
    result |= {"scale": scale, "scaled_rows": again, "scaled": figures(again)}
    return result


BEGIN, END = "<!-- tables: tools/published_llm.py --write -->", "<!-- end of tables -->"
HEAD = ["| | rows | MAPE | median | 90th percentile | bias |", "|---|---|---|---|---|---|"]


def line(name, f):
    return f"| {name} | {f['rows']} | {f['mape']:.1f}% | {f['median']:.1f}% | {f['p90']:.1f}% | {f['bias']:+.1f}% |"


def by_group(rows, key):
    groups = collections.defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return [line(name, figures(members)) for name, members in sorted(groups.items()) if figures(members)]


def single_node_tables(found):
    lines = ["## vTrain's 714 iterations on one node of A100", ""] + HEAD + [line("default host", found["plain"])]
    if "scaled" in found:
        lines.append(line(f"host's times x {found['scale']:g}, chosen by 20 rows", found["scaled"]))
    last = found.get("scaled_rows", found["rows"])
    for name, key in (("tensor parallel", lambda r: f"tp {r['tp']}"), ("pipeline", lambda r: f"pp {r['pp']}"), ("data parallel", lambda r: f"dp {r['dp']}"),
                      ("width", lambda r: f"hidden {r['hidden']}"), ("micro-batch", lambda r: f"micro-batch {r['micro_batch']}")):
        lines += ["", f"By {name}:", ""] + HEAD + by_group(last, key)
    return lines


def tables(rows, megatron=None, single_node=None):
    done = sum("predicted" in row for row in rows)
    lines = [f"{len(rows)} rows say their architecture, plan, batch and time; {done} of them ({100 * done / len(rows):.0f}%) are predicted.", ""]
    lines += [f"All of them ran, so they fit in memory; {sum(row.get('fits', False) for row in rows)} of the {done} are predicted to.", ""]
    lines += HEAD + [line("all", figures(rows))]
    told = figures([row for row in rows if stated(row)])
    if told:
        lines.append(line("A100 and H100, recomputation stated", told))
    for name, key in (("source", lambda r: r["source"]), ("framework", lambda r: r["framework"]), ("GPU", lambda r: r["gpu"]),
                      ("precision", lambda r: r["precision"]), ("size", size_of)):
        lines += ["", f"By {name}:", ""] + HEAD + by_group(rows, key)
    lines += ["", "## Plans that ran and are predicted not to fit", "", "| source | rows | of |", "|---|---|---|"]
    for source in sorted({row["source"] for row in rows}):
        ran = [row for row in rows if row["source"] == source and "fits" in row]
        if not all(row["fits"] for row in ran):
            lines.append(f"| {source} | {sum(not row['fits'] for row in ran)} | {len(ran)} |")
    left = [row for row in rows if not row.get("fits", True)]
    if left:
        lines += ["", "| row | model | GPUs | precision | plan | micro-batch | predicted peak |", "|---|---|---|---|---|---|---|"]
    for row in left:
        plan = row["request"]["plan"]
        said = ", ".join(f"{key} {plan[key]}" for key in ("dp", "fsdp", "shard_size", "tp", "pp", "vpp", "ep", "offload", "offload_layers") if plan.get(key, 1) not in (1, "none"))
        lines.append(f"| {row['id']} | {row['model']} | {row['num_gpus']} x {row['gpu']} | {row['precision']} | {said or 'one GPU'} | {row['request']['batch']} | {row['peak'] / 1e9:.1f} GB |")
    pairs = precision_pairs(rows)
    if pairs:
        lines += ["", "## Two precisions of one job", "", "| | pairs | median error | 90th percentile | bias | best constant | Spearman |", "|---|---|---|---|---|---|---|"]
        names = sorted({pair["pair"] for pair in pairs})
        for name, members in [("all", pairs)] + [(name, [p for p in pairs if p["pair"] == name]) for name in names]:
            f = pair_figures(members)
            rank = "" if f["spearman"] is None else f"{f['spearman']:.2f}"
            lines.append(f"| {name} | {f['pairs']} | {f['median']:.1f}% | {f['p90']:.1f}% | {f['bias']:+.1f}% | {f['constant']:.1f}% | {rank} |")
    found = [sweep for sweep in sweeps(rows) if sweep["tau"] is not None]
    if found:
        lines += ["", "## Order of plans", "", "| sweep of BigScience's | runs | Kendall's tau | repeats lie apart by | tau of pairs further apart |", "|---|---|---|---|---|"]
        lines += [f"| {sweep['sweep']} | {sweep['plans']} | {sweep['tau']:.2f} | {100 * sweep['noise']:.1f}% | {sweep['tau_beyond_noise']:.2f} |" for sweep in found]
        together = sum(sweep["tau"] * sweep["pairs"] for sweep in found) / sum(sweep["pairs"] for sweep in found)
        lines += ["", f"All pairs of runs inside a sweep together: {together:.2f}."]
    if megatron:
        lines += ["", "## Megatron's eight points", "", "| model | recomputation | measured | predicted | error |", "|---|---|---|---|---|"]
        for point in megatron:
            said = f"{point['predicted']:.2f} s | {100 * point['error']:+.1f}%" if "error" in point else f"| {point['reason']}"
            lines.append(f"| {point['model']} | {point['recompute']} | {point['measured']:.2f} s | {said} |")
        known = [abs(point["error"]) for point in megatron if "error" in point]
        if known:
            lines += ["", f"Mean error {100 * statistics.mean(known):.1f}%."]
    if single_node:
        lines += [""] + single_node_tables(single_node)
    reasons = collections.Counter(row["reason"] for row in rows if "reason" in row)
    if reasons:
        lines += ["", "## Not predicted", "", "| reason | rows |", "|---|---|"] + [f"| {reason} | {count} |" for reason, count in reasons.most_common()]
    return lines


def described(row):
    said = row.get("reason") or f"{row['predicted']:9.3f} ({100 * row['error']:+.0f}%)"
    return (f"{row['id']} {row['source'][:14]:14} {row['model'][:16]:16} L{row['layers']:<3} s{row['seq_len']:<6} {row['gpu'][:10]:10} x{row['num_gpus']:<5} {row['precision']:6} "
            f"tp{row['tp']} pp{row['pp']} v{row['vp'] or 1} cp{row['cp'] or 1} ep{row['ep'] or 1} dp{row['dp']:<4} mb{row['micro_batch']:<3} gb{row['global_batch']:<5} "
            f"{row['recompute'][:6]:6} {row['measured']:9.3f} {said}{'' if row.get('fits', True) else ' does not fit'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--vtrain", action="store_true")
    parser.add_argument("--megatron", action="store_true")
    arguments = parser.parse_args()
    if not pathlib.Path(PROGRAM).is_file():
        sys.exit(f"{PROGRAM} is not there: build it, or let PRECOG name it")
    if arguments.megatron:
        for point in megatron_points():
            said = point.get("reason") or f"{point['predicted']:.2f} s ({100 * point['error']:+.1f}%)"
            print(f"{point['model']:5} {point['recompute']:10} {point['measured']:.2f} s  {said}")
        return
    if reference("published_llm.csv.gz") is None:
        sys.exit("PRECOG_REFERENCE_DATA is not set, or holds no published/published_llm.csv.gz")
    if arguments.vtrain:
        found = vtrain()
        if arguments.json:
            arguments.json.write_text(json.dumps(found, indent=1))
        print("\n".join(single_node_tables(found)))
        return
    rows = evaluate()
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))
    if arguments.list:
        for row in rows:
            print(described(row))
    made = "\n".join(tables(rows, megatron_points(), vtrain()) if arguments.write else tables(rows))
    if arguments.write:
        before, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{made}\n\n{END}{rest.split(END)[1]}")
    else:
        print(made)


if __name__ == "__main__":
    main()
