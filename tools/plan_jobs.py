"""Jobs that do not fit, for tools/search_plans.py: what was looked at while the search for changes was written, and what was not."""

from pathlib import Path


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

CAPTURED, IMPORTS = (str(Path(__file__).resolve().parents[1] / "tests" / "data" / folder) for folder in ("captured", "imports"))


def imported(file, gpu, gpus, **more):
    return {"schema": 1, "from": f"{IMPORTS}/{file}", "cluster": {"gpu": gpu, "gpus": gpus}, **more}


# Drawn up together, none of them looked at before. The first half was looked at while the search was written anew, and the second
# was predicted once, at its end.
DEVELOPED = {
    "dev-resnet50": job("resnet50", "rtx-4090", 1, 384, "fp32", mode="compile"),
    "dev-bert-large": job("bert-large", "a100-sxm-40gb", 4, 96, "fp32", seq=512),
    "dev-gpt2-xl": job("gpt2-xl", "h100-sxm", 1, 16, "amp-bf16"),
    "dev-lora": job(f"{CAPTURED}/llama3.2-1b-lora.precog.json.zst", "l4", 1, 16, "bf16", seq=2048),
    "dev-frozen": job("llama2-7b", "l4", 2, 4, "bf16", seq=2048, frozen=["model.layers.*"]),
    "dev-mixtral": job("mixtral-8x7b", "h100-sxm", 32, 4, "amp-bf16", seq=8192),
    "dev-deepseek": job("deepseek-v3", "h200-sxm", 512, 2, "bf16", seq=4096, global_batch=4096, plan={"pp": 8, "ep": 16}),
    "dev-qwen-72b": job("qwen2.5-72b", "a100-sxm-80gb", 128, 2, "bf16-master", seq=4096, plan={"tp": 4, "sp": True}),
    "dev-long": job("llama3-8b", "b200-sxm", 16, 1, "bf16-master", seq=262144, plan={"fsdp": "full"}),
    "dev-405b": job("llama3-405b", "h100-sxm", 1024, 1, "bf16-master", seq=8192, global_batch=1024, mode="compile", plan={"tp": 8, "sp": True, "pp": 4}),
    "dev-deepspeed": imported("deepspeed_zero2.json", "a100-sxm-40gb", 8, model="mpt-7b"),
    "dev-vit-l": job("vit-l", "h100-sxm", 8, 512, "fp32"),
    "dev-qwen-3b": job("qwen2.5-3b", "rtx-4090", 8, 2, "amp-bf16", seq=4096, mode="compile"),
    "dev-vgg16": job("vgg16", "l4", 2, 512, "amp-bf16"),
}
JUDGED = {
    "judge-resnet152": job("resnet152", "l4", 1, 512, "amp-bf16"),
    "judge-bert-base": job("bert-base", "rtx-4090", 2, 256, "amp-bf16", seq=512, mode="compile"),
    "judge-gpt2-large": job("gpt2-large", "a100-sxm-40gb", 2, 24, "fp32"),
    "judge-phi-2": job(f"{CAPTURED}/phi-2.precog.json.zst", "a100-sxm-40gb", 4, 24, "amp-bf16", seq=2048),
    "judge-frozen": job("mistral-7b", "rtx-4090", 4, 2, "bf16-master", seq=8192, frozen=["model.embed_tokens.*", "model.layers.1*"]),
    "judge-mixtral": job("mixtral-8x7b", "b200-sxm", 8, 2, "bf16-master", seq=16384),
    "judge-deepseek": job("deepseek-v3", "b200-sxm", 128, 1, "bf16-master", seq=4096),
    "judge-70b": job("llama3-70b", "h100-sxm", 128, 2, "amp-bf16", seq=16384, plan={"tp": 8, "sp": True}),
    "judge-long": job("mistral-7b", "h100-sxm", 32, 1, "bf16-master", seq=131072),
    "judge-405b": job("llama3-405b", "b200-sxm", 512, 2, "amp-bf16", seq=8192),
    "judge-trainer": imported("trainer_arguments.json", "a100-sxm-40gb", 8, model="llama2-13b", batch=16),
    "judge-t5": job("t5-base", "l4", 8, 64, "fp32", seq=512),
    "judge-qwen-14b": job("qwen2.5-14b", "l40s", 16, 1, "bf16-master", seq=8192, mode="compile"),
    "judge-pipeline": job("llama2-70b", "a100-sxm-40gb", 64, 1, "bf16-master", seq=4096, global_batch=256, plan={"pp": 8, "tp": 2, "sp": True}),
}
SETS = {"looked-at": JOBS, "unseen": UNSEEN, "developed": DEVELOPED, "judged": JUDGED}
