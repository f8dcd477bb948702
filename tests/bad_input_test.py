"""Wrong input of every kind: one clear message on stderr that names the place, exit 2, nothing on stdout, nothing half-written."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import program

GOOD = {"schema": 1, "model": "bert-base", "batch": 4, "seq": 64, "precision": "amp-bf16", "cluster": {"gpu": "h100-sxm", "gpus": 2}}
FLAGS = ["predict", "--model", "bert-base", "--batch", "4", "--precision", "bf16", "--gpu", "h100-sxm"]
COMPARED = ["--model", "bert-base", "--batch", "4", "--gpu", "h100-sxm"]


def good(**changes):
    """The good job with other fields; None takes a field out."""
    job = {**GOOD, **changes}
    return {key: value for key, value in job.items() if value is not None}


# What is wrong, and what the message must contain.
JOBS = [
    ({}, "model"),
    ([], "wants an object"),
    ("bert-base", "wants an object"),
    (None, "wants an object"),
    (17, "wants an object"),
    (good(schema=2), "schema"),
    (good(schema="1"), "schema"),
    (good(model=None), "model"),
    (good(model=7), "model"),
    (good(model=["bert-base"]), "model"),
    (good(model=""), "model"),
    (good(model="bert-bsae"), "bert-base"),
    (good(model="x" * 100_000), "unknown model"),
    (good(model={}), "model.name"),
    (good(model={"name": "bert-base", "layers": 0}), "model.layers"),
    (good(model={"name": "bert-base", "layers": 1e9}), "model.layers"),
    (good(model={"name": "bert-base", "depth": 3}), "depth"),
    (good(model={"name": "resnet50", "layers": 3}, seq=None), "layers"),  # its depth is no single number
    (good(model={"name": 5}), "model.name"),
    (good(model="llama3-8b", batch=1_000_000, seq=1_000_000), "smaller"),  # more elements than can be counted
    (good(model="llama3-405b", batch=1000, seq=131072), "days"),  # longer than the simulated clock
    (good(model={"onnx": "model.onnx"}), "onnx"),
    (good(model={"hf_config": 5}), "hf_config"),
    (good(mode="compile", precision="fp32", cluster={"gpu": "p100"}), "compute capability 7.0"),  # torch.compile refuses it, too
    (good(batch=None), "batch"),
    (good(batch=0), "batch"),
    (good(batch=-4), "batch"),
    (good(batch=1.5), "whole number"),
    (good(batch="4"), "batch"),
    (good(batch="NaN"), "batch"),
    (good(batch=True), "batch"),
    (good(batch=[4]), "batch"),
    (good(batch={"value": 4}), "batch"),
    (good(batch=1e300), "batch"),
    (good(batch=10**40), "batch"),
    (good(batch=2_000_000_000), "batch"),
    (good(seq=0), "seq"),
    (good(seq=-1), "seq"),
    (good(seq=513), "seq"),  # bert-base has 512 positions
    (good(seq="long"), "seq"),
    (good(seq=1e300), "seq"),
    (good(src_seq=64), "src_seq"),
    (good(model="resnet50", seq=64), "takes images"),
    (good(model="vit-b", seq=None, run={"tokens": 1e9}), "tokens"),
    (good(global_batch=9), "global_batch"),
    (good(global_batch=0), "global_batch"),
    (good(global_batch="8"), "global_batch"),
    (good(batch=None, global_batch=7), "batch"),
    (good(precision=None), "precision"),
    (good(precision=16), "precision"),
    (good(precision="amp-bf17"), "amp-bf16"),
    (good(precision="nvfp5"), "nearest known"),
    (good(precision={}), "precision"),
    (good(precision={"name": "mine", "weights": "fp13"}), "precision"),
    (good(precision=[]), "precision"),
    (good(precision={"extends": "amp-bf61"}), "nearest known: amp-bf16"),
    (good(precision={"extends": "amp-bf16", "fp8": {"all_gather": True}}), "fp8.scaling"),
    (good(precision="amp-bf16+fp8-all-gather"), "no fp8 layers"),
    (good(precision="amp-bf16+"), "precision"),
    (good(overrides=["cls.*=fp8"]), "has no fp8 layers"),
    (good(overrides=["nobody=fp32"]), "matches no module"),
    (good(overrides=["op:nothing=fp32"]), "matches no operator"),
    (good(overrides="cls.*=fp32"), "wants a list"),
    (good(overrides=[{"modules": "cls.*"}]), "what the rule changes"),
    (good(overrides=[7]), "overrides"),
    (good(clip_grad_norm=0), "clip_grad_norm"),
    (good(mode="fast"), "mode"),
    (good(mode=1), "mode"),
    (good(optimizer="adamm"), "optimizer"),
    (good(optimizer={"name": "adam"}), "optimizer"),
    (good(optimizer_impl="slow"), "optimizer_impl"),
    (good(recompute="some"), "recompute"),
    (good(recompute=True), "recompute"),
    (good(attention="magic"), "attention"),
    (good(memory_format="NHWC"), "memory_format"),
    (good(host="toaster"), "host"),
    (good(allow_emulated="yes"), "allow_emulated"),
    (good(cluster=None), "cluster"),
    (good(cluster=8), "cluster"),
    (good(cluster=[]), "cluster"),
    (good(cluster={}), "gpu"),
    (good(cluster="dgx-h1000"), "dgx-h100"),
    (good(cluster="dgx-h100:"), "dgx-h100:8"),
    (good(cluster="dgx-h100:-1"), "number of nodes"),
    (good(cluster="dgx-h100:8x"), "number of nodes"),
    (good(cluster="dgx-h100:99999999999999999999"), "number of nodes"),
    (good(cluster="dgx-h100:1000000"), "cluster"),
    (good(cluster={"name": "dgx-h100:2", "gpus": 4}), "2 nodes of 8"),
    (good(cluster={"gpu": "h1000-sxm"}), "h100-sxm"),
    (good(cluster={"gpu": 100}), "cluster.gpu"),
    (good(cluster={"gpu": "h100-sxm", "gpus": 0}), "cluster.gpus"),
    (good(cluster={"gpu": "h100-sxm", "gpus": -8}), "cluster.gpus"),
    (good(cluster={"gpu": "h100-sxm", "gpus": 2.5}), "cluster.gpus"),
    (good(cluster={"gpu": "h100-sxm", "gpus": "8"}), "cluster.gpus"),
    (good(cluster={"gpu": "h100-sxm", "gpus": 1e12}), "cluster.gpus"),
    (good(cluster={"gpu": "h100-sxm", "gpus": 12}), "whole nodes"),
    (good(cluster={"gpu": "h100-sxm", "gpus_per_node": 0}), "gpus_per_node"),
    (good(cluster={"gpu": "h100-sxm", "network": "carrier-pigeon"}), "network"),
    (good(cluster={"gpu": "h100-sxm", "nodes": 2}), "nodes"),
    (good(cluster={"gpu": "v100-sxm2-32gb"}), "amp-fp16"),  # amp-bf16 there
    (good(plan=[]), "plan"),
    (good(plan={"dp": 3}), "multiply"),
    (good(plan={"dp": 0}), "plan.dp"),
    (good(plan={"dp": "two"}), "plan.dp"),
    (good(plan={"tp": 4}), "plan.tp"),
    (good(plan={"tp": -2}), "plan.tp"),
    (good(plan={"tp": 2}, cluster={"gpu": "h100-sxm", "gpus": 7}), "plan.tp"),
    (good(plan={"tp": 5}, cluster={"gpu": "h100-sxm", "gpus": 5}), "cannot be shared out to 5 ranks"),
    (good(plan={"tp": 2, "tp_plan": {"*.dense": "diagonal"}}, cluster={"gpu": "h100-sxm", "gpus": 2}), "column, row, whole"),
    (good(plan={"sp": True}), "plan.sp"),
    (good(plan={"cp": 3}, cluster={"gpu": "h100-sxm", "gpus": 3}), "plan.cp"),
    (good(plan={"cp": 2, "cp_exchange": "pigeon"}, cluster={"gpu": "h100-sxm", "gpus": 2}), "plan.cp_exchange"),
    (good(plan={"ep": 2}, cluster={"gpu": "h100-sxm", "gpus": 2}), "no experts"),
    (good(plan={"ep": 3}, model="mixtral-8x7b", cluster={"gpu": "h100-sxm", "gpus": 8}), "plan.ep"),
    (good(plan={"expert_imbalance": 0.5}), "expert_imbalance"),
    (good(plan={"ep": 2, "expert_imbalance": 3}), "the busiest of ep = 2 ranks"),
    (good(plan={"expert_overlap": True}), "ep of at least 2"),
    (good(plan={"ep": 2, "expert_dispatch": "pigeon"}, model="mixtral-8x7b", cluster={"gpu": "h100-sxm", "gpus": 2}), "deepep"),
    (good(plan={"ep": 2, "tp": 2, "etp": 4}, model="mixtral-8x7b", cluster={"gpu": "h100-sxm", "gpus": 8}), "sequences must be shared out"),
    (good(plan={"ep": 2, "tp": 4, "sp": True, "etp": 3}, model="mixtral-8x7b", cluster={"gpu": "h100-sxm", "gpus": 8}), "plan.etp: is 3; each expert is shared by so many of a stage's tp x cp x dp = 8 ranks"),
    (good(plan={"ep": 4, "etp": 4}, model="mixtral-8x7b", cluster={"gpu": "h100-sxm", "gpus": 8}), "4 for each expert (etp), so it must divide 2"),
    (good(plan={"fsdp": "hybrid", "shard_size": 2, "ep": 4}, model="mixtral-8x7b", cluster={"gpu": "h100-sxm", "gpus": 8}), "a group must have whole sets of them"),
    (good(plan={"pp": 2, "offload": "activations", "offload_layers": 2}), "cpu_offloading_num_layers refuses it, too"),
    (good(plan={"tp": 4, "ep": 2, "etp": 1, "dp": 1, "offload": "optimizer"}, model="mixtral-8x7b", cluster={"gpu": "h100-sxm", "gpus": 4}), "fsdp zero1"),
    (good(plan={"cp": 2}, model="gpt2", attention="eager"), "cannot go round a ring"),
    (good(plan={"cp": 2, "cp_exchange": "all_to_all"}, model="t5-base", attention="eager", src_seq=64), "mask of its own"),
    (good(plan={"ep": 8, "tp": 2}, model="mixtral-8x7b", cluster={"gpu": "h100-sxm", "gpus": 8}), "it must divide 4"),
    (good(plan={"pp": 1e18}), "plan.pp"),
    (good(plan={"fsdp": "zero9"}), "zero3"),
    (good(plan={"fsdp": "hybrid", "shard_size": 3}), "must divide dp"),
    (good(plan={"fsdp": "hybrid", "shard_size": 2, "replicate": 2}), "together they must make dp"),
    (good(plan={"shard_size": 2}), "needs fsdp hybrid"),
    (good(plan={"fsdp": "full", "bucket_mb": 10}), "DistributedDataParallel"),
    (good(plan={"offload": "optimizer"}), "fsdp zero1"),
    (good(plan={"offload": "parameters", "fsdp": "zero2"}), "needs them to be shared out"),
    (good(plan={"offload": "master", "fsdp": "zero2"}), "has none"),
    (good(plan={"offload": "optimizer", "fsdp": "zero2"}, optimizer="sgd"), "adam"),
    (good(plan={"tp": 2, "sp": True, "etp": 1}), "plan.etp: is 1, but this model has no experts"),
    (good(recompute="per-layer"), "per-op"),
    (good(recompute_layers=2), "recompute_layers"),
    (good(recompute="full", recompute_every=0), "recompute_every"),
    (good(**{"from": 5}), "from"),
    (good(**{"from": []}), "from"),
    (good(**{"from": ["nowhere.json"]}), "nowhere.json"),
    (good(**{"from_kind": "deepspeed"}), "from"),
    (good(precision="fsdp-bf16", plan={"fsdp": "zero1"}, cluster={"gpu": "h100-sxm", "gpus": 8}), "plan.fsdp"),
    (good(plan={"fsdp": True}), "plan.fsdp"),
    (good(plan={"sp": "yes"}), "plan.sp"),
    (good(plan={"xp": 2}), "xp"),
    (good(run={"tokens": -1}), "run.tokens"),
    (good(run={"tokens": 1e300}), "run.tokens"),
    (good(run={"tokens": "1e12"}), "run.tokens"),
    (good(run={"samples": 0}), "run.samples"),
    (good(run={"epochs": 3}), "dataset_samples"),
    (good(run={"tokens": 1e9, "samples": 5}), "exclude"),
    (good(run={"years": 1}), "years"),
    (good(run=12), "run"),
    (good(price_usd_per_gpu_hour=-1), "price_usd_per_gpu_hour"),
    (good(price_usd_per_gpu_hour="2.5"), "price_usd_per_gpu_hour"),
    (good(price_usd_per_gpu_hour=1e300), "price_usd_per_gpu_hour"),
    (good(bacth=4), "batch"),
    (good(zzz={"a": [{"b": None}]}), "zzz"),
    (good(software="cuda-99"), "precog software"),
    (good(batch=2_000_000_000), "from 1 to 1000000000"),
    (good(recompute="full", recompute_layers=13), "has 12 layers"),
    (good(recompute="full", recompute_every=13), "has 12 layers"),
    (good(plan={"offload": "activations", "offload_layers": 13}), "has 12 layers"),
    (good(plan={"etp": 2}, cluster={"gpu": "h100-sxm", "gpus": 2}), "plan.etp: is 2, but this model has no experts"),
    (good(micro_batches=6, plan={"pp": 4, "schedule": "dualpipe"}, cluster={"gpu": "h100-sxm", "gpus": 4}), "micro_batches: is 6; dualpipe"),
    (good(global_batch=24, plan={"pp": 4, "schedule": "dualpipe"}, cluster={"gpu": "h100-sxm", "gpus": 4}), "global_batch: is 24"),
    (good(frozen=["*"]), "frozen"),
    (good(plan={"fsdp": "full", "wrap": "blob"}), "layer (or a number of layers"),
    (good(plan={"fsdp": "full", "wrap": 0}), "plan.wrap"),
    (good(plan={"fsdp": "full", "wrap": 13}), "has 12 layers"),
    (good(plan={"wrap": 2}), "fsdp full or hybrid"),
    (good(plan={"fsdp": "full", "backward_prefetch": "early"}), "backward_prefetch"),
    (good(plan={"fsdp": "full", "limit_all_gathers": "no"}), "limit_all_gathers"),
    (good(plan={"fsdp": "zero3", "zero3": {}, "forward_prefetch": True}), "leave one out"),
    (good(plan={"fsdp": "full", "first_bucket_mb": 10}), "DistributedDataParallel"),
    (good(plan={"fsdp": "zero3", "zero3": {"secondary_ranks": 3}}, cluster={"gpu": "h100-sxm", "gpus": 8}), "must divide 8 ranks"),
    (good(plan={"fsdp": "zero3", "tp": 2, "zero3": {"quantised_weights": True}}, cluster={"gpu": "h100-sxm", "gpus": 8}), "tp, cp and pp of 1"),
    (good(plan={"fsdp": "hybrid", "shard_size": 4, "zero3": {"secondary_ranks": 4}}, cluster={"gpu": "h100-sxm", "gpus": 8}), "leave one out"),
    (good(plan={"offload_fraction": 0.5}), "needs offload optimizer"),
    (good(plan={"fsdp": "zero3", "offload": "optimizer", "offload_fraction": 2}), "offload_fraction"),
    (good(plan={"share_checkpoints": True}, recompute="full"), "tp of at least 2"),
    (good(plan={"tp": 2, "sp": True, "share_checkpoints": True}, recompute="full", cluster={"gpu": "h100-sxm", "gpus": 2}), "sp exclude each other"),
    (good(plan={"tp": 2, "share_checkpoints": True}, cluster={"gpu": "h100-sxm", "gpus": 2}), "needs recompute full"),
    (good(optimizer="lamb", plan={"fsdp": "full"}, cluster={"gpu": "h100-sxm", "gpus": 8}), "DistributedFusedLAMB"),
    (good(plan={"first_bucket_mb": 0}), "first_bucket_mb"),
    (good(plan={"fsdp": "full", "overlap_reduce": False}), "zero1 or zero2"),
    (good(plan={"fsdp": "zero1", "overlap_reduce": False, "overlap_gather": True}), "--overlap-grad-reduce"),
    (good(plan={"fsdp": "zero3", "zero3": {}, "ep": 2}, model="mixtral-8x7b"), "at stage 3"),
    (good(plan={"pp": 2, "stage_layers": [12]}), "plan.stage_layers"),
    (good(micro_batches=4, plan={"pp": 2, "stage_layers": [-1, 13]}), "plan.stage_layers"),
    (good(micro_batches=4, plan={"pp": 2, "stage_layers": []}), "plan.stage_layers"),
]

# File contents that are no JSON job, and what the message must contain beside the file's name.
CONTENTS = {
    "empty": (b"", "not valid JSON"),
    "spaces": (b"  \n\t ", "not valid JSON"),
    "truncated": (json.dumps(GOOD).encode()[:40], "not valid JSON"),
    "a quote never closed": (b'{"model": "bert', "not valid JSON"),
    "two documents": (b"{} {}", "not valid JSON"),
    "binary": (bytes(range(256)) * 20, "not valid JSON"),
    "zeros": (b"\0" * 1000, "not valid JSON"),
    "broken UTF-8": (b'{"model": "\xff\xfe"}', "not valid JSON"),
    "NaN": (b'{"model": "bert-base", "batch": NaN}', "not valid JSON"),
    "a number beyond all": (b'{"model": "bert-base", "batch": 1e999}', "number"),
    "deep lists": (b"[" * 100_000, ""),
    "deep lists, closed": (b"[" * 5000 + b"]" * 5000, "nested"),
    "deep objects": (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, "nested"),
    "deep in a field": (json.dumps(GOOD).encode()[:-1] + b', "run": ' + b"[" * 3000 + b"]" * 3000 + b"}", "nested"),
    "a field said twice": (b'{"model": "bert-base", "batch": 4, "batch": 8}', "says 'batch' twice"),
    "a field inside said twice": (b'{"model": "bert-base", "cluster": {"gpu": "l4", "gpus": 1, "gpu": "l40s"}}', "says 'gpu' twice"),
    "a page": (b"<html><body>404</body></html>", "not valid JSON"),
    "a million fields": (b"{" + b",".join(b'"f%d": 1' % i for i in range(20_000)) + b"}", "f1"),
}

# Arguments, and what the message must contain.
COMMAND_LINES = [
    ([], "command"),
    (["predcit"], "predict"),
    (["--batch", "4"], "--batch"),
    (["predict"], "model"),
    (["predict", "compare", "--model", "bert-base"], "compare"),
    ([*FLAGS, "--bacth", "4"], "--batch"),
    ([*FLAGS, "--gpu"], "--gpu"),
    ([*FLAGS, "--batch", ""], "--batch"),
    ([*FLAGS, "--batch", "four"], "--batch"),
    ([*FLAGS, "--batch", "nan"], "--batch"),
    ([*FLAGS, "--batch", "inf"], "--batch"),
    ([*FLAGS, "--batch", "0"], "--batch"),
    ([*FLAGS, "--batch", "-1"], "--batch"),
    ([*FLAGS, "--batch", "4.5"], "--batch"),
    ([*FLAGS, "--batch", "1e300"], "--batch"),
    ([*FLAGS, "--batch", "99999999999999999999999"], "--batch"),
    ([*FLAGS, "--batch", "0x10"], "--batch"),
    ([*FLAGS, "--model", ""], "--model"),
    ([*FLAGS, "--model", "llama4"], "--model"),
    ([*FLAGS, "--model", "../../etc/passwd"], "--model"),
    ([*FLAGS, "--gpu", "h100-smx"], "h100-sxm"),
    ([*FLAGS, "--gpus", "0"], "--gpus"),
    ([*FLAGS, "--gpus", "9"], "whole nodes"),
    ([*FLAGS, "--precision", "fp31"], "fp32"),
    ([*FLAGS, "--gpu", "p100", "--precision", "amp-bf16"], "supported"),
    ([*FLAGS, "--layers", "0"], "--layers"),
    ([*FLAGS, "--seq", "100000"], "seq"),
    ([*FLAGS, "--dp", "7"], "--dp"),
    ([*FLAGS, "--tp", "2"], "--tp"),
    ([*FLAGS, "--fsdp", "zero7"], "--fsdp"),
    ([*FLAGS, "--schedule", "gpipe"], "--schedule"),
    ([*FLAGS, "--global-batch", "7"], "--global-batch"),
    ([*FLAGS, "--mode", "compiled"], "--mode"),
    ([*FLAGS, "--optimizer", "lion9"], "--optimizer"),
    ([*FLAGS, "--recompute", "all"], "--recompute"),
    ([*FLAGS, "--epochs", "3"], "dataset"),
    ([*FLAGS, "--tokens", "1e9", "--samples", "5"], "exclude"),
    ([*FLAGS, "--tokens", "many"], "--tokens"),
    ([*FLAGS, "--price", "-2"], "--price"),
    ([*FLAGS, "--price", "free"], "--price"),
    ([*FLAGS, "--price", "nan"], "--price"),
    ([*FLAGS, "--host", "mainframe"], "--host"),
    ([*FLAGS, "--network", "string"], "--network"),
    ([*FLAGS, "--cluster", "dgx-h100:two"], "--cluster"),
    ([*FLAGS, "--cluster", "dgx-h100:2", "--gpus", "3"], "2 nodes"),
    ([*FLAGS, "--dump-after", "frontent"], "frontend"),
    ([*FLAGS, "--dump-after", ""], "--dump-after"),
    ([*FLAGS, "--dump-after", "sim", "--json"], "--dump-after"),
    ([*FLAGS, "--html", ""], "--html"),
    ([*FLAGS, "--trace", ""], "--trace"),
    ([*FLAGS, "--trace", "same", "--html", "same"], "same"),
    ([*FLAGS, "--trace", "same", "--html", "./same"], "same"),
    (["compare", *FLAGS[1:]], "--precisions"),
    (["compare", *COMPARED, "--precision=bf16"], "--precisions"),
    (["compare", *COMPARED, "--precisions", ","], "--precisions"),
    (["gpus", ""], "NAME"),
    ([*FLAGS, "--from", "config.json"], "config.json"),
    ([*FLAGS, "--from", "."], "is a folder"),
    ([*FLAGS, "--from-kind", "deepspeed"], "from"),
    (["search", "--model", "gpt2"], "search: this version"),
    (["calibrate", "x.jsonl"], "--gpu: is missing"),
    (["serve"], "does not have it yet"),
    ([*FLAGS, "--color", "pink"], "--color"),
    ([*FLAGS, "--data", "/no/such/folder"], "/no/such/folder"),
    ([*FLAGS, "extra.json", "more.json"], "more.json"),
    (["compare", *COMPARED, "--precisions", "fp32,fp33"], "fp33"),
    (["compare", *COMPARED, "--precisions", "fp32,optimizer-8bit"], "--precisions: 'optimizer-8bit' is only a part of a recipe"),
    (["compare", *COMPARED, "--precisions", "fp32,amp-bf16+nothing"], "nothing"),
    (["compare", *COMPARED, "--advise", "--precision", "fp33"], "--precision"),
    ([*FLAGS, "--advise"], "belongs to compare"),
    ([*FLAGS, "--override", "lm_head"], "PATTERN=TYPE"),
    ([*FLAGS, "--override", "lm_head=fp7"], "fp7"),
    ([*FLAGS, "--pad-vocabulary", "0"], "--pad-vocabulary"),
    (["predict", "--model", "resnet18", "--gpu", "t4", "--batch", "1", "--precision", "fp16", "--pad-vocabulary", "64"], "no table of tokens"),
    (["compare", *COMPARED, "--precisions", ""], "--precisions"),
    (["compare", *COMPARED, "--gpu", "v100-sxm2-32gb", "--precisions", "bf16"], "bf16"),
    (["compare", "--model", "resnet50", "--seq", "5", "--batch", "4", "--gpu", "t4"], "takes images"),
    (["compare", "--gpu", "t4"], "model"),
    (["inspect"], "GRAPH"),
    (["inspect", "bert-base"], "precision"),
    (["inspect", "bert-bass", "--precision", "fp32"], "bert-base"),
    (["inspect", "bert-base", "--precision", "fp99"], "fp99"),
    (["inspect", "bert-base", "--precision", "fp32", "--gpu", "h1000"], "--gpu"),
    (["inspect", "bert-base", "--diff", "fp32"], "--diff"),
    (["inspect", "bert-base", "--diff", "fp32", "fp77"], "fp77"),
    (["gpus", "h1000"], "h100"),
    (["models", "lama3-8b"], "llama3-8b"),
    (["clusters", "dgx-x"], "dgx-"),
    (["precisions", "fp64"], "fp64"),
    (["completion"], "SHELL"),
    (["completion", "powershell"], "bash"),
    (["validate"], "RUNS"),
    (["validate", "/no/such/runs.jsonl"], "no such file"),
    (["validate", "."], "folder"),
    (["predict"], "--model: is missing"),
    (["predict"], "--gpu: is missing"),
    (["predict"], "--batch: is missing"),
    (["compare"], "--gpu: is missing"),
    (["predict", "bert-base"], "--model bert-base"),
    (["predict", "--layers", "3", *FLAGS[3:]], "--model: is missing"),
    (["predict", "--model", "bert-bsae", "--layers", "3", *FLAGS[3:]], "--model: unknown"),
    ([*FLAGS, "--input-seconds", "-1"], "--input-seconds: is -1"),
    ([*FLAGS, "--input-seconds", "1"], "--input-workers: is missing"),
    ([*FLAGS, "--checkpoint", "5"], "--checkpoint: needs --mtbf"),
    ([*FLAGS, "--epochs", "2"], "--dataset-samples: is missing"),
    ([*FLAGS, "--gpus", "9"], "--gpu, --gpus: has 9 GPUs"),
    ([*FLAGS, "--gpus", "8", "--tp", "3"], "--tp: makes one replica of tp x cp x pp = 3 GPUs"),
    ([*FLAGS, "--gpu", "h1000"], "nearest known: h100-sxm"),
    (["gpus", "h1000"], "nearest known: h100-sxm"),
    ([*FLAGS, "--nodes", "2"], "--cluster NAME:NODES"),
    ([*FLAGS, "--sequence-length", "64"], "here it is --seq "),
    ([*FLAGS, "--dtype", "bf16"], "here it is --precision "),
    (["gpus", "--dtype", "bf16"], "nearest known"),
    ([*FLAGS, "--sp=maybe"], "--sp: takes no value"),
    ([*FLAGS, "--tokens", "1T"], "such as 0.5 or 1e12"),
    ([*FLAGS, "--batch", "8k"], "such as 8 or 1e6"),
    ([*FLAGS, "--override", "gelu=fp32"], "the operator is op:gelu"),
    ([*FLAGS, "--html", "nowhere/out.html"], "there is no folder nowhere"),
    (["predict", "--model", "resnet50", "--src-seq", "5", *FLAGS[3:]], "--src-seq: does not apply: resnet50 takes images"),
    (["inspect", "bert-base", "--precision", "bf16", "--frozen", "nothing"], "--frozen: 'nothing'"),
]

# Runs files in which nothing is a run.
RUNS = {
    "empty.jsonl": (b"", "no measured runs"),
    "empty.csv": (b"", "no measured runs"),
    "header_only.csv": (b"id,model,batch,precision,gpu,step_s\n", "no measured runs"),
    "garbage.jsonl": (b"hello\nworld\n", "line 1"),
    "binary.jsonl": (bytes(range(256)) * 50, "line 1"),
    "binary.csv": (bytes(range(256)) * 50, "binary.csv"),
    "lists.jsonl": (b"[1, 2]\n[3]\n", "line 1"),
    "no_request.jsonl": (b'{"id": "r1", "measured": {"step_s": 1}}\n', "request"),
    "no_measured.jsonl": (b'{"id": "r1", "request": {}}\n', "measured"),
    "text_time.jsonl": (b'{"id": "r1", "request": {}, "measured": {"step_s": "fast"}}\n', "measured.step_s"),
    "no_time.jsonl": (b'{"id": "r1", "request": {}, "measured": {}}\n', "step_s"),
    "text_kernels.jsonl": (b'{"id": "r1", "request": {}, "measured": {"step_s": 1, "kernels": "many"}}\n', "measured.kernels"),
    "negative_time.jsonl": (b'{"id": "r1", "request": {}, "measured": {"step_s": -1}}\n', "measured.step_s"),
    "quote.csv": (b'id,model,step_s\n"r1,bert-base,1\n', "quote"),
    "short_row.csv": (b"id,model,step_s\nr1,bert-base\n", "fields"),
    "truncated.jsonl": (b'{"id": "r1", "request": {"model": "bert-b', "line 1"),
    "deep.jsonl": (b"[" * 3000 + b"]" * 3000 + b"\n", "nested"),
}


class BadInput(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def refused(self, arguments, *fragments, name=""):
        with self.subTest(name or " ".join(map(str, arguments))[-120:]):
            done = subprocess.run([str(program.BINARY), *map(str, arguments)], cwd=self.folder, capture_output=True, timeout=20)
            said = done.stderr.decode(errors="replace")
            self.assertEqual(done.returncode, 2, f"said: {said[-300:]}")
            self.assertEqual(done.stdout, b"")
            for fragment in fragments:
                self.assertIn(fragment, said)
            self.assertNotIn("this is a bug", said)
            self.assertIn("precog: error: ", said)
            self.assertLess(len(said), 20_000)

    def file(self, name, content):
        path = self.folder / name
        path.write_bytes(content)
        return path

    def test_the_good_job_is_good(self):
        """Else everything below would be refused for another reason."""
        path = self.file("job.json", json.dumps(GOOD).encode())
        for arguments in (["predict", path], FLAGS):
            done = program.run(*arguments)
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_jobs(self):
        for index, (job, fragment) in enumerate(JOBS):
            path = self.file("job.json", json.dumps(job).encode())
            self.refused(["predict", path], fragment, "job.json", name=f"{index}: {json.dumps(job)[:160]}")

    def test_contents(self):
        for name, (content, fragment) in CONTENTS.items():
            path = self.file("job.json", content)
            self.refused(["predict", path], fragment, "job.json", name=name)

    def test_command_lines(self):
        for arguments, fragment in COMMAND_LINES:
            self.refused(arguments, fragment)

    def test_runs_files(self):
        for name, (content, fragment) in RUNS.items():
            path = self.file(name, content)
            self.refused(["validate", path], fragment, name, name=name)

    def test_groups_that_are_no_fields(self):
        line = {"id": "a", "request": GOOD, "measured": {"step_s": 1}}
        path = self.file("runs.jsonl", json.dumps(line).encode())
        self.assertEqual(program.run("validate", path).returncode, 0)
        self.refused(["validate", path, "--by", "precision;gpu"], "--by")

    def test_control_characters_are_not_echoed(self):
        path = self.file("job.json", json.dumps(good(model="a\x1b[31m\x9b2J\nprecog: error: fake", optimizer="\x07")).encode())
        self.refused(["predict", path], "a\\x1B[31m\\xC2\\x9B2J\\x0Aprecog", "\\x07")
        said = program.run("predict", path).stderr
        self.assertEqual([character for character in said if ord(character) < 32 and character != "\n"], [])
        self.assertNotIn("\nprecog: error: fake", said)
        line = {"id": "\x1b]0;title\x07", "request": good(model="\x1b[2J"), "measured": {"step_s": 1}}
        runs = self.file("runs.jsonl", json.dumps(line).encode())
        self.assertNotRegex(program.run("validate", runs).stdout, "[\x1b\x07]")

    def test_all_problems_at_once(self):
        path = self.file("job.json", json.dumps(good(batch=-1, mode="fast", seq="x")).encode())
        self.refused(["predict", path], "batch", "mode", "seq")

    def test_files_that_are_none(self):
        self.refused(["predict", self.folder / "absent.json"], "no such file")
        self.refused(["predict", self.folder], "folder")
        self.refused(["predict", "/dev/zero"], "not a regular file")
        os.mkfifo(self.folder / "pipe.json")
        self.refused(["predict", self.folder / "pipe.json"], "not a regular file")
        (self.folder / "loop.json").symlink_to("loop.json")
        self.refused(["predict", self.folder / "loop.json"], "loop.json")
        self.refused(["predict", "x" * 5000], "no such file")

    def test_a_request_may_come_through_standard_input(self):
        plain = program.run("predict", self.file("job.json", json.dumps(GOOD).encode()), "--batch", "8")
        piped = program.run("predict", "-", "--batch", "8", stdin=json.dumps(GOOD))
        self.assertEqual((piped.returncode, piped.stdout), (0, plain.stdout))
        for text, said in (("", "is empty"), ("hello", "not valid JSON"), ("[]", "wants an object"), (json.dumps(good(batch=0)), "standard input: batch: is 0")):
            done = program.run("predict", "-", stdin=text)
            self.assertEqual((done.returncode, done.stdout), (2, ""), text)
            self.assertIn(said, done.stderr)
            self.assertIn("standard input", done.stderr)

    def test_names_of_choices_are_folded(self):
        for flag, value, field in (("--optimizer", "AdamW", "adamw"), ("--mode", "Eager", "eager"), ("--memory-format", "channels-last", "channels_last")):
            done = program.run(*FLAGS, flag, value, "--print-request")
            self.assertEqual(json.loads(done.stdout)[flag[2:].replace("-", "_")], field)

    def test_files_that_are_no_captured_graph(self):
        for content, said in ((b"", "is empty"), (bytes(range(1, 200)), "not compressed with Zstandard"), (b"\x28\xb5\x2f\xfd" + bytes(50), "m.precog.json.zst")):
            self.refused([*FLAGS, "--model", self.file("m.precog.json.zst", content)], "--model", said)

    def test_sizes_left_to_the_launcher(self):
        path = self.file("ds.json", b'{"train_micro_batch_size_per_gpu": "auto", "train_batch_size": "auto", "bf16": {"enabled": true}}')
        self.refused(["predict", "--model", "gpt2", "--gpu", "h100-sxm", "--from", path], "--batch: is missing", 'train_micro_batch_size_per_gpu ("auto") of')

    def test_huge_files(self):
        path = self.folder / "huge.json"
        with open(path, "wb") as out:
            os.truncate(out.fileno(), 300 << 20)
        self.refused(["predict", path], "largest accepted")
        self.refused(["validate", path], "largest accepted")

    def test_a_catalog_with_a_broken_file(self):
        data = self.folder / "data"
        (data / "gpus").mkdir(parents=True)
        (data / "gpus" / "mine.json").write_text('{"schema": 1, "name": "mine"')
        self.refused([*FLAGS, "--data", data], "data")

    def test_nothing_half_written(self):
        locked = self.folder / "locked"
        locked.mkdir()
        before = set(os.listdir(self.folder))
        for target in (self.folder / "absent" / "out", locked):
            for flag in ("--html", "--trace"):
                self.refused([*FLAGS, flag, target], target.name)
            self.refused(["compare", *COMPARED, "--html", target], target.name)
        self.assertEqual(set(os.listdir(self.folder)), before)
        self.assertEqual(os.listdir(locked), [])
        # Wrong input: the file of before stays as it was.
        kept = self.file("kept.html", b"before")
        self.refused([*FLAGS, "--batch", "0", "--html", kept], "--batch")
        self.assertEqual(kept.read_bytes(), b"before")
        # The second of two cannot be written: no first without it, and no report.
        self.refused([*FLAGS, "--trace", self.folder / "trace.json", "--html", self.folder / "absent" / "out.html"], "absent")
        self.assertFalse((self.folder / "trace.json").exists())
        self.refused([*FLAGS, "--trace", self.folder / "trace.json", "--html", locked], "locked")
        self.assertEqual(sorted(os.listdir(self.folder)), ["kept.html", "locked"])


if __name__ == "__main__":
    unittest.main()
