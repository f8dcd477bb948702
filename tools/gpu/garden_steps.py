#!/usr/bin/env python3
"""End-to-end truth: training steps of the garden's models at six precisions and two sizes.

  python3 tools/gpu/garden_steps.py --half eleventh --host h200-vm-clean --out RAW --budget 560 --places 1-8     eight models a call
  python3 tools/gpu/garden_steps.py --half looking --out /tmp/dry --dry-run     tiny models on the CPU, same code, no meaning

The split is the lists below, chosen by family before anything of them had been timed; those from the ninth on are drawn by lot. `looking` may be looked
at while the program is written; the others are measured once each, after the program and the coefficients that they judge have been
committed.
`unopened` and `third` to `tenth` have been looked at since; the next takes their place, under the same rule.

A process per model (turns.py): all of them build and run every small row once, side by side; then each in its turn, alone on the machine,
times its rows, those in which the host counts again and again. When all have, each has a second turn, in which these rows are timed some times more, minutes later (two moments of
an unsteady machine instead of one), and only then all are profiled: the profiler slows the host down for as
long as a process lives. Large rows, and all of large models, take their first step in the first turn, where nobody else needs memory: cuDNN remembers a
kernel that it chose because it was refused some (`setup.refused` of a row: how often memory was). A model's turns are its share of the time left, so that
every model gets some.

  timed.jsonl              every row as soon as it is timed
  host.json                the host's speed over the sitting, by the stacks of `precog host`
  host_readings.jsonl      what it was made of: join_calls.py makes one of several calls
  steps.jsonl              measured runs; the model of a run is its captured graph (graphs/NAME.precog.json.zst, made by
                           tools/capture_garden.py), so `precog validate` reads the file as it is
  steps_kernels.jsonl.gz   {"id", "kernels": [[name, launches, microseconds in one step]]}
"""
import argparse
import json
import os
import statistics
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(ROOT, "python")]
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch  # noqa: E402

import common  # noqa: E402
import host_speed  # noqa: E402
import turns  # noqa: E402

import garden  # noqa: E402
from precog.gpu import steps, trainer  # noqa: E402

PRECISIONS = ("amp-bf16", "tf32", "amp-fp16", "fp32", "bf16", "fp16")  # the last two cast the model for good
# entry: two (batch, seq). The first is small enough for the host to matter, the second fills the GPU.
LOOKING = {
    "efficientnet_b0": ((32, None), (160, None)),
    "roberta-base": ((8, 128), (32, 256)),
    "llama3.2-1b": ((1, 512), (2, 1024)),
    "swin_t": ((16, None), (96, None)),
    "densenet121": ((16, None), (96, None)),
    "opt-125m": ((4, 256), (8, 1024)),
    "whisper-small": ((2, 64), (8, 128)),
    "convnext_tiny": ((16, None), (96, None)),
    "lstm-language-model": ((20, 35), (64, 128)),
    "deberta-v3-base": ((8, 128), (24, 256)),
    "regnet_y_8gf": ((16, None), (96, None)),
    "bart-base": ((4, 128), (16, 256)),
    "diffusion-unet-ddpm": ((16, None), (64, None)),
    "mixer_b16_224": ((16, None), (96, None)),
    "pythia-410m": ((2, 256), (6, 1024)),
    "clip-vit-b-32": ((16, 77), (128, 77)),
    "deeplabv3_resnet50": ((4, None), (12, None)),
    "wav2vec2-base": ((2, 20), (8, 20)),
    "distilbert-base": ((8, 128), (48, 256)),
    "dlrm": ((2048, None), (16384, None)),
    "deit_base_patch16_224": ((8, None), (64, None)),
}
UNOPENED = {
    "mobilenet_v3_large": ((32, None), (192, None)),
    "electra-base": ((8, 128), (32, 256)),
    "qwen3-0.6b": ((1, 512), (3, 1024)),
    "resnext50_32x4d": ((16, None), (96, None)),
    "beit_base_patch16_224": ((16, None), (64, None)),
    "bloom-560m": ((2, 256), (4, 1024)),
    "inception_v3": ((16, None), (96, None)),
    "swin-tiny-hf": ((16, None), (96, None)),
    "marian-en-de": ((8, 64), (32, 128)),
    "albert-base-v2": ((8, 128), (32, 256)),
    "seresnet50": ((16, None), (128, None)),
    "stablelm2-1.6b": ((1, 512), (2, 1024)),
    "dit-b2": ((8, None), (64, None)),
    "efficientnet_v2_s": ((16, None), (96, None)),
    "hubert-base": ((2, 20), (8, 20)),
    "modernbert-base": ((4, 256), (8, 512)),
    "fcn_resnet50": ((4, None), (12, None)),
    "pvt_v2_b1": ((16, None), (96, None)),
    "siglip-base": ((8, 64), (48, 64)),
    "unet3d": ((1, None), (4, None)),
    "gru-language-model": ((20, 35), (64, 128)),
}
THIRD = {  # the last four are of the list above, which did not reach them
    "twins_svt_small": ((16, None), (128, None)),
    "mpnet-base": ((8, 128), (48, 256)),
    "shufflenet_v2_x1_0": ((32, None), (256, None)),
    "gpt-neo-1.3b": ((1, 512), (3, 1024)),
    "detr-resnet50": ((2, None), (12, None)),
    "pegasus-large": ((4, 128), (16, 256)),
    "r3d_18": ((4, None), (24, None)),
    "ast-base": ((2, None), (16, None)),
    "dinov2-base": ((8, None), (64, None)),
    "segformer-b0": ((4, None), (24, None)),
    "granite-moe-1b": ((1, 512), (2, 1024)),
    "res2net50_26w_4s": ((16, None), (128, None)),
    "two-towers": ((1024, None), (16384, None)),
    "esm2-150m": ((8, 128), (32, 512)),
    "convnextv2_tiny": ((16, None), (128, None)),
    "gemma3-1b": ((1, 512), (3, 1024)),
    "mamba2-130m": ((1, 256), (2, 256)),
    "diffusion-unet-latent": ((2, None), (8, None)),
    "pvt_v2_b1": ((16, None), (96, None)),
    "siglip-base": ((8, 64), (48, 64)),
    "unet3d": ((1, None), (4, None)),
    "gru-language-model": ((20, 35), (64, 128)),
}
FOURTH = {  # chosen before anything of them had been timed here, in an order of kinds: where time ends early, all kinds have been reached
    "hrnet_w18": ((8, None), (64, None)),
    "roformer-base": ((8, 128), (24, 256)),
    "wide_resnet50_2": ((8, None), (48, None)),
    "mmdit-b2": ((4, None), (32, None)),
    "m2m100-418m": ((4, 128), (12, 256)),
    "mobilenetv4_conv_medium": ((32, None), (192, None)),
    "deep-speech-2": ((8, None), (32, None)),
    "yolos-small": ((2, None), (16, None)),
    "dcn-v2": ((1024, None), (65536, None)),
    "wavlm-base": ((2, 20), (8, 20)),
    "focalnet_tiny_srf": ((16, None), (96, None)),
    "lfm2-350m": ((1, 512), (2, 1024)),
    "gin": ((256, None), (4096, None)),
    "deeplabv3_mobilenet_v3_large": ((4, None), (16, None)),
    "convbert-base": ((8, 128), (32, 128)),
    "qwen1.5-moe-short": ((1, 512), (2, 1024)),
    "hiera_tiny_224": ((16, None), (128, None)),
    "speech2text-small": ((8, 64), (64, 64)),
    "vit-mae-base": ((16, None), (96, None)),
    "minilm-l6": ((16, 128), (128, 128)),
    "olmo2-1b": ((1, 128), (1, 512)),
}
FIFTH = {  # like the fourth: an order of kinds, chosen before anything of them had been timed; the second size fills the GPU
    "resnetv2_50": ((16, None), (160, None)),
    "xlm-roberta-base": ((8, 128), (24, 256)),
    "davit_tiny": ((16, None), (160, None)),
    "smollm2-360m": ((1, 512), (4, 1024)),
    "conv-vae": ((32, None), (512, None)),
    "mt5-small": ((4, 128), (32, 256)),
    "bilstm-tagger": ((32, 64), (256, 128)),
    "cspdarknet53": ((8, None), (96, None)),
    "eva02_small_patch14_224": ((8, None), (96, None)),
    "whisper-tiny": ((4, 64), (32, 64)),
    "tcn": ((16, None), (128, None)),
    "codegen-350m": ((1, 512), (4, 1024)),
    "ghostnet_100": ((32, None), (384, None)),
    "videomae-base": ((1, None), (12, None)),
    "xcit_small_12_p16_224": ((8, None), (128, None)),
    "nerf": ((1024, None), (16384, None)),
    "llama3.2-1b-lora": ((1, 256), (3, 1024)),
    "r2plus1d_18": ((2, None), (16, None)),
    "bart-large": ((2, 128), (12, 512)),
    "poolformer_s12": ((16, None), (192, None)),
    "tf_efficientnet_b4": ((4, None), (32, None)),
}
SIXTH = {  # like the fifth
    "vgg16_bn": ((16, None), (128, None)),
    "flan-t5-base": ((8, 128), (32, 256)),
    "swin_v2_t": ((16, None), (128, None)),
    "gpt-bigcode-1b": ((1, 512), (3, 1024)),
    "levit_256": ((32, None), (384, None)),
    "blip-base": ((4, 32), (32, 32)),
    "nfnet_f0": ((16, None), (128, None)),
    "vit-base-lora": ((16, None), (128, None)),
    "dpn68": ((16, None), (160, None)),
    "falcon-h1-short": ((1, 256), (8, 256)),
    "maxvit_t": ((8, None), (64, None)),
    "mbart-large": ((4, 128), (16, 256)),
    "mobilenet_v2-channels-last": ((32, None), (256, None)),
    "volo_d1_224": ((16, None), (96, None)),
    "bert-base-upper-half": ((8, 128), (64, 256)),
    "swin3d_t": ((1, None), (8, None)),
    "googlenet": ((32, None), (256, None)),
    "crossvit_small_240": ((16, None), (128, None)),
    "dpt-large": ((1, None), (8, None)),
    "repvgg_b0": ((32, None), (256, None)),
}
SEVENTH = {  # like the sixth; sizes such that more rows are the GPU's
    "convnext_base": ((8, None), (48, None)),
    "bert-base-classifier": ((16, 128), (112, 256)),
    "resnet50-channels-last": ((32, None), (192, None)),
    "mistral-7b-short": ((1, 256), (2, 1024)),
    "mobilevitv2_100": ((16, None), (128, None)),
    "mt5-base": ((4, 128), (24, 256)),
    "vit_l_16": ((4, None), (32, None)),
    "gpt2-lora": ((4, 256), (12, 1024)),
    "mnasnet1_0": ((64, None), (384, None)),
    "whisper-base": ((4, 64), (48, 64)),
    "caformer_s18": ((16, None), (128, None)),
    "olmoe-short": ((1, 512), (4, 1024)),
    "ese_vovnet39b": ((16, None), (128, None)),
    "vit-base-hf": ((16, None), (112, None)),
    "resmlp_24_224": ((16, None), (128, None)),
    "phi3-mini-short": ((1, 256), (2, 1024)),
    "cait_s24_224": ((16, None), (64, None)),
    "einsum-transformer": ((2, 256), (8, 1024)),
    "fastvit_t8": ((32, None), (320, None)),
    "pytorch-transformer": ((16, None), (192, None)),
}
EIGHTH = {  # like the seventh; none of them has a trace, a published row or an entry of the zoo either
    "resnest50d": ((16, None), (128, None)),
    "xlnet-base": ((8, 128), (56, 256)),
    "coatnet_0_rw_224": ((16, None), (96, None)),
    "ernie4.5-0.3b": ((1, 512), (4, 1024)),
    "upernet-convnext-tiny": ((2, None), (12, None)),
    "long-t5-base": ((1, 1024), (6, 1024)),
    "crnn": ((32, None), (1024, None)),
    "moonshine-tiny": ((4, 64), (256, 64)),
    "autoencoder-kl": ((1, None), (8, None)),
    "phi-mini-moe-short": ((1, 512), (4, 1024)),
    "rexnet_100": ((32, None), (256, None)),
    "mobilebert": ((8, 384), (96, 384)),
    "mvit_v2_s": ((1, None), (8, None)),
    "trocr-small": ((4, 32), (96, 32)),
    "patchtst": ((16, None), (256, None)),
    "owlvit-base-32": ((2, None), (24, None)),
    "xglm-564m": ((1, 256), (2, 1024)),
    "sequencer2d_s": ((8, None), (128, None)),
    "swin2sr-classical-x2": ((1, None), (12, None)),
    "parakeet-ctc-110m": ((4, 40), (96, 40)),
}
NINTH = {  # drawn by lot (tools/draw_list.py), order included; sizes by a rule (data/measured/README.md)
    "pegasus-x-large": ((2, 128), (6, 256)),
    "gemma4-text-short": ((1, 256), (1, 1024)),
    "rdnet_large": ((4, None), (16, None)),
    "diffllama": ((1, 256), (1, 1024)),
    "repghostnet_130": ((16, None), (128, None)),
    "longformer-512": ((4, 256), (12, 256)),
    "donut-swin": ((16, None), (192, None)),
    "mvitv2_small": ((16, None), (64, None)),
    "focalnet_base_srf": ((16, None), (48, None)),
    "swin_s3_tiny_224": ((16, None), (192, None)),
    "roberta-prelayernorm-base": ((8, 128), (48, 256)),
    "nextvit_small": ((16, None), (128, None)),
    "mc3_18": ((4, None), (12, None)),
    "mvp-large": ((4, 128), (16, 256)),
    "doge": ((2, 256), (2, 1024)),
    "fcn_resnet101": ((4, None), (16, None)),
    "sew-d-base": ((4, 20), (96, 20)),
    "densenetblur121d": ((16, None), (128, None)),
    "deit_tiny_patch16_224": ((16, None), (512, None)),
    "apertus-short": ((1, 256), (1, 1024)),
}
SCOUTS = {  # drawn by lot as well: what comes after the ninth list in the same lots, in other families (garden/drawn.py); to be looked at before that list is measured
    "fasternet_t0": ((16, None), (512, None)),
    "deeplabv3_resnet101": ((2, None), (8, None)),
    "alexnet": ((16, None), (512, None)),
    "s3d": ((2, None), (8, None)),
    "levit-hf": ((16, None), (512, None)),
    "big-bird": ((8, 128), (24, 256)),
    "repvit_m0_9": ((16, None), (128, None)),
    "dinov2-with-registers": ((16, None), (48, None)),
    "blenderbot-small": ((4, 128), (64, 256)),
    "hgnet_tiny": ((16, None), (128, None)),
    "lowformer_b3": ((16, None), (64, None)),
    "afmoe-short": ((1, 256), (1, 1024)),
    "falcon-short": ((1, 256), (1, 1024)),
    "convnextv2_atto": ((16, None), (192, None)),
    "hiera_small_abswin_256": ((16, None), (96, None)),
    "gernet_s": ((16, None), (256, None)),
    "tiny_vit_5m_224": ((16, None), (128, None)),
    "umt5": ((4, 128), (32, 256)),
    "resnext101_64x4d": ((4, None), (16, None)),
    "rexnetr_130": ((16, None), (96, None)),
    "sew": ((4, 20), (64, 20)),
    "data2vec-audio": ((4, 20), (24, 20)),
    "nomic-bert": ((8, 128), (24, 256)),
    "nanochat": ((2, 256), (4, 1024)),
    "skresnext50_32x4d": ((16, None), (48, None)),
    "cpubone_b3": ((16, None), (64, None)),
    "mobilevitv2-hf": ((16, None), (64, None)),
    "mellum-short": ((1, 256), (1, 1024)),
    "tresnet_v2_l": ((16, None), (64, None)),
    "rembert": ((2, 128), (3, 256)),
    "efficientnet_b0_g8_gn": ((16, None), (128, None)),
    "volo_d2_384": ((4, None), (12, None)),
    "res2net50_26w_8s": ((16, None), (48, None)),
    "vit_relpos_small_patch16_rpn_224": ((16, None), (192, None)),
    "funnel": ((8, 128), (24, 128)),
    "plbart": ((4, 128), (32, 256)),
    "gptj-short": ((1, 256), (1, 1024)),
    "poolformerv2_s36": ((8, None), (32, None)),
    "xception65": ((4, None), (16, None)),
    "swinv2_large_window12_192": ((8, None), (24, None)),
    "squeezebert": ((8, 128), (32, 256)),
    "prophetnet": ((4, 128), (6, 256)),
    "eurobert": ((8, 128), (16, 256)),
    "fastvit_mci1": ((4, None), (16, None)),
    "inception_next_small": ((16, None), (48, None)),
    "nystromformer": ((8, 128), (24, 256)),
    "textnet": ((4, None), (16, None)),
    "davit_base": ((16, None), (48, None)),
    "ernie4.5-moe-short": ((1, 256), (1, 1024)),
}
TENTH = {  # drawn by lot (tools/draw_list.py --list tenth), in the drawn order
    "test_vit3": ((16, None), (512, None)),
    "ctrl-short": ((1, 256), (2, 256)),
    "regnet_y_16gf": ((8, None), (32, None)),
    "deit_base_patch16_384": ((8, None), (24, None)),
    "densenet264d": ((8, None), (32, None)),
    "nllb-moe-short": ((4, 128), (32, 256)),
    "mambaout_kobe": ((16, None), (192, None)),
    "xlm-roberta": ((8, 128), (32, 256)),
    "unispeech-sat": ((4, 20), (32, 20)),
    "swinv2_cr_base_384": ((4, None), (16, None)),
    "olmo-short": ((1, 256), (1, 1024)),
    "tiny_vit_21m_224": ((16, None), (128, None)),
    "data2vec-vision": ((16, None), (64, None)),
    "cpmant-short": ((1, 256), (1, 1024)),
    "vaultgemma-short": ((1, 256), (1, 1024)),
    "xlm-roberta-xl-short": ((2, 128), (3, 256)),
    "pegasus": ((4, 128), (16, 256)),
    "efficientnet_v2_l": ((8, None), (32, None)),
    "focalnet_xlarge_fl4": ((1, None), (2, None)),
    "resnetv2_18": ((16, None), (512, None)),
}
ELEVENTH = {  # drawn by lot (tools/draw_list.py --list eleventh), in the drawn order; sizes by tools/list_sizes.py, which leaves three of them one
    "perceiver": ((4, None), (12, None)),
    "arcee-short": ((1, 256), (1, 1024)),
    "vit_pe_core_small_patch16_384": ((16, None), (64, None)),
    "res2net101_26w_4s": ((16, None), (64, None)),
    "vitamin_large2_224": ((4, None), (12, None)),
    "mamba2-short": ((1, 256),),
    "gemma3-text-short": ((1, 256), (1, 1024)),
    "gemma4_vit_167m": ((1, None),),
    "selecsls60": ((16, None), (192, None)),
    "megatron-bert": ((8, 128), (12, 256)),
    "blenderbot-short": ((1, 128),),
    "mobilenet_v3_small": ((16, None), (512, None)),
    "yoso": ((8, 128), (32, 256)),
    "twins_svt_large": ((16, None), (64, None)),
    "granite-swa-short": ((1, 256), (1, 1024)),
    "rdnet_small": ((8, None), (32, None)),
    "longt5": ((4, 128), (192, 128)),
    "hrnet_w18_small": ((16, None), (192, None)),
    "unispeech": ((4, 20), (32, 20)),
    "efficientnet_b1": ((16, None), (128, None)),
}
SHARES = (0.55, 0.45)  # of a model's time: its first turn, and the second, minutes later
FIRST_VISITS = 0.85  # of the first turn, at most; what is left of it is for the next visits
PROFILING = 0.65  # of the second turn
OVER = 0.25  # of a share may be taken from the models after it before a timed row is left without a profile, for nothing
HOST_EVERY = 3  # models
VISITS = 5  # more of a row in which the host counts, in each turn, where there is time
LARGE = 500e6  # parameters: with AdamW's moments and gradients in fp32, 8 GB
SCOUTING = (("amp-bf16", "fp32", "fp16"), ("bf16", "tf32", "amp-fp16"))  # by turns; the first size in the first of them only: breadth, not judgement
HALVES = {"looking": LOOKING, "unopened": UNOPENED, "third": THIRD, "fourth": FOURTH, "fifth": FIFTH, "sixth": SIXTH, "seventh": SEVENTH,
          "eighth": EIGHTH, "ninth": NINTH, "scouts": SCOUTS, "tenth": TENTH, "eleventh": ELEVENTH}


def record_of(name, precision, batch, seq, two_sides=False, host=common.HOST):
    request = {"schema": 1, "model": {"graph": "graphs/%s.precog.json.zst" % name}, "batch": batch}
    if seq and two_sides:  # the garden's length is the source's, the target is half of it
        request.update({"seq": seq // 2, "src_seq": seq})
    elif seq:
        request["seq"] = seq
    request.update({"precision": precision, "mode": "eager", "optimizer": "adamw", "optimizer_impl": "foreach",
                    "cluster": {"gpu": "h200-sxm", "gpus": 1}, "host": host})
    size = "b%d" % batch + ("s%d" % seq if seq else "")
    return {"id": "h200-%s-%s-%s" % (name, precision, size), "source": "measured: tools/gpu/garden_steps.py", "request": request}


def train(campaign, entry, model, precision, size, timed):
    """timed(loop, switches) of one row's training loop, which is dropped again."""
    device, (batch, seq) = campaign.device, size
    dtype = trainer.DTYPES.get(precision, torch.float32)
    model.to(dtype)
    switches = trainer.switch(device, precision)
    data = entry.inputs(model, batch, seq, torch.device(device.type), dtype)
    loop = trainer.Trainer(device, lambda one: entry.loss(one, data), model, precision)
    try:
        return timed(loop, switches)
    finally:
        loop.close()
        for parameter in model.parameters():
            parameter.grad = None
        data = loop = None
        device.free(sum(p.numel() * p.element_size() for p in model.parameters()) * 1.1)


def around(before, after):
    """What is kept of the anchors before and after a visit: how fast the machine was just then (host_speed.py)."""
    return round((before + after) / 2, 7)


def first_visit(campaign, model, record, anchor, prepared):
    """A row that was not prepared takes its first step here: one more to warm up."""
    def timed(loop, switches):
        refused, before = campaign.device.refused(), anchor()
        record["measured"], _ = steps.time_steps(campaign.device, loop, warmup=2 if prepared else 3, blocks=3, profiled=False, block_s=0.1)
        got = record["measured"]
        got.update(anchor.without(got))
        got["anchors_s"] = [around(before, anchor())]
        got["anchor_s"], got["anchor_phases_s"] = got["anchors_s"][0], [anchor.phases]
        record["setup"] = {"parameters": sum(p.numel() for p in model.parameters()), "eps": loop.eps,
                           "cudnn_benchmark": torch.backends.cudnn.benchmark, "refused": campaign.device.refused() - refused, **switches}
    return timed


def next_visit(campaign, record, anchor):
    """Three more blocks, some seconds later: the host's speed wanders, and a row's median should not be of one moment."""
    def timed(loop, switches):
        before, got = anchor(), record["measured"]
        for _ in range(2):
            loop.step()
        means, enqueues = steps.time_blocks(campaign.device, loop, got["steps_per_block"], 3)
        means, anchors = got["block_means_s"] + means, got["anchors_s"] + [around(before, anchor())]
        got.update({"step_s": statistics.median(means), "step_s_min": min(means), "step_s_max": max(means), "blocks": len(means), "block_means_s": means,
                    "host_enqueue_s": statistics.median([got["host_enqueue_s"], *enqueues]), "anchors_s": anchors, "anchor_s": statistics.median(anchors),
                    "anchor_phases_s": got["anchor_phases_s"] + [anchor.phases]})
    return timed


def profile(campaign, record):
    def timed(loop, switches):
        loop.step()
        summary, top = steps.profile_step(campaign.device, loop, top=1000)  # complete: their number is judged too
        record["measured"].update(summary)
        return top
    return timed


def built(campaign, entry):
    torch.manual_seed(0)
    with torch.device(campaign.device.type):
        model = entry.build(tiny=campaign.dry_run)
    return model.to(device=campaign.device.type, dtype=torch.float32)


def planned(campaign, entry, settings, turn):
    """A model's rows, (record, precision, size), and the ids of the small ones. The precisions begin at another one for each `turn`, so that it is not always
    the same ones that are missing where time ran out."""
    rows, small = [], set()
    order = SCOUTING[turn % 2] if campaign.scouting else PRECISIONS[turn % 6:] + PRECISIONS[:turn % 6]
    for precision in order:
        if (campaign.precisions and precision not in campaign.precisions) or (campaign.dry_run and precision in ("amp-fp16", "fp16")):
            continue  # the latter take minutes on a CPU
        for batch, seq in settings if precision == order[0] or not campaign.scouting else settings[1:]:
            first = (batch, seq) == settings[0]
            if campaign.dry_run:
                batch, seq = 2, seq and min(seq, 64)
            record = record_of(entry.name, precision, batch, seq, entry.inputs.__name__ == "two_sides", campaign.host)
            rows.append((record, precision, (batch, seq)))
            if first:
                small.add(record["id"])
    return rows, small


def once(campaign):
    def run(loop, switches):
        loop.step()
        campaign.device.sync()
    return run


def visit_again(campaign, entry, model, anchor, timed, until_s):
    """The rows in which the host counts, over and over, each as often as the others."""
    for visit in range(VISITS):
        for record, precision, size in timed:
            got = record["measured"]
            ahead = got["host_enqueue_s"] < 0.8 * got["step_s"]  # the GPU decides, and its speed does not wander
            if not ahead and campaign.clock.elapsed() < until_s:
                with campaign.survive("%s, visit %d" % (record["id"], visit + 1)):
                    train(campaign, entry, model, precision, size, next_visit(campaign, record, anchor))


def measure_model(campaign, worker, entry, settings, turn):
    """One model in its own process: every small row once beside the others, then, alone, all of them timed and those in which the host counts timed
    again; in a second turn, minutes later, these once more; then profiled."""
    model = built(campaign, entry)
    rows, prepared = planned(campaign, entry, settings, turn)
    if sum(p.numel() for p in model.parameters()) > LARGE:
        prepared = set()
    for record, precision, size in rows:
        if record["id"] in prepared:
            with campaign.survive(record["id"] + ", first step"):
                train(campaign, entry, model, precision, size, once(campaign))
            campaign.device.free()
    if campaign.device.refused():
        campaign.note("refused memory %d times while preparing" % campaign.device.refused())
    anchor = host_speed.Anchor(campaign.device)
    campaign.clock = common.Clock(worker.turn())
    if turn % (4 * HOST_EVERY if campaign.scouting else HOST_EVERY) == 0:
        worker.tell(host=sitting_speed(campaign, anchor))
    timed = []
    for record, precision, size in rows:
        if campaign.clock.elapsed() > campaign.clock.budget_s * (0.5 if campaign.scouting else FIRST_VISITS):
            campaign.note("budget: " + record["id"])
            continue
        with campaign.survive(record["id"], common.Told(worker), record):
            train(campaign, entry, model, precision, size, first_visit(campaign, model, record, anchor, record["id"] in prepared))
            timed.append((record, precision, size))
    if not campaign.scouting:
        visit_again(campaign, entry, model, anchor, timed, campaign.clock.budget_s)
        campaign.device.free()
        campaign.clock = common.Clock(worker.turn())
        visit_again(campaign, entry, model, anchor, timed, campaign.clock.budget_s * (1 - PROFILING))
    for record, _, _ in timed:
        worker.tell(timed=record)
    for record, precision, size in timed:
        if campaign.clock.left() < -OVER * campaign.clock.budget_s:
            campaign.note("budget: not profiled: " + record["id"])
            continue
        with campaign.survive(record["id"] + ", profiled"):
            kernels = train(campaign, entry, model, precision, size, profile(campaign, record))
            worker.tell(step=record, kernels={"id": record["id"], "kernels": kernels})


def work(job):
    """The process of one model; what it says is written by the one that started it."""
    worker = turns.Worker()
    campaign = common.Worker(job["dry_run"])
    campaign.precisions, campaign.host, campaign.scouting = job["precisions"], job["host"], job["scouting"]
    with campaign.survive("build " + job["model"]):
        measure_model(campaign, worker, garden.find(job["model"]), job["settings"], job["turn"])
    for note in campaign.notes:
        worker.tell(note=note)
    worker.tell(spent=campaign.clock.elapsed(), share=campaign.clock.budget_s)
    worker.tell(done=True)
    os._exit(0)  # the driver takes its time otherwise


def sitting_speed(campaign, anchor):
    with campaign.survive("the host's speed"):
        return host_speed.now(campaign.device, anchor)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="results")
    parser.add_argument("--half", choices=sorted(HALVES))
    parser.add_argument("--budget", type=float, default=560, help="seconds after which everything is ended")
    parser.add_argument("--processes", type=int, default=12, help="models that prepare side by side")
    parser.add_argument("--only", type=lambda text: text.split(","), default=None, help="these models")
    parser.add_argument("--places", type=lambda text: tuple(map(int, text.split("-"))), default=None, help="1-8: the first eight models of the list")
    parser.add_argument("--precisions", type=lambda text: text.split(","), default=None, help="these precisions")
    parser.add_argument("--host", default=common.HOST, help="the host description (data/hosts) that the rows name")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--worker", type=json.loads, default=None, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return work(args.worker)
    if not args.half:
        parser.error("--half is missing: one of " + ", ".join(sorted(HALVES)))
    args.held_out = args.half != "looking"
    if not args.dry_run and not torch.cuda.is_available():
        parser.error("no CUDA device; --dry-run goes through the same code on a CPU")
    campaign = common.Campaign(args, [args.half])
    campaign.host = args.host
    timed_lines, lines, kernel_lines = campaign.lines("timed.jsonl"), campaign.lines("steps.jsonl"), campaign.lines("steps_kernels.jsonl.gz")
    first, last = args.places or (1, len(HALVES[args.half]))
    chosen = [(name, settings) for name, settings in list(HALVES[args.half].items())[first - 1:last] if not args.only or name in args.only]
    jobs = [turns.Job(name, [os.path.abspath(__file__), "--worker", json.dumps({
        "model": name, "settings": settings, "turn": turn, "dry_run": args.dry_run, "precisions": args.precisions, "host": args.host,
        "scouting": args.half == "scouts"})],
        {"OMP_NUM_THREADS": "1" if args.dry_run else "4"}, turns=(1.0,) if args.half == "scouts" else SHARES) for turn, (name, settings) in enumerate(chosen)]
    speeds, anchors = [], []

    def take(job, message):
        if "host" in message:
            speeds.append(message["host"])
            campaign.say("host: %s" % message["host"])
        elif "timed" in message:
            record = message["timed"]
            timed_lines.write(record)
            got = record["measured"]
            anchors.extend(got["anchors_s"])
            refused = record["setup"]["refused"]
            campaign.say("%-44s %8.2f ms, host %8.2f, peak %6.2f GB (%.1f s)%s" % (
                record["id"], got["step_s"] * 1e3, got["host_enqueue_s"] * 1e3, got.get("peak_bytes", 0) * 1e-9, got["row_wall_s"],
                ", refused memory %d times" % refused if refused else ""))
        elif "step" in message:
            lines.write(message["step"])
            kernel_lines.write(message["kernels"])
        elif "failed" in message:
            timed_lines.write(message["failed"])
        elif "note" in message:
            campaign.note("%s: %s" % (job.label, message["note"]))
        elif "spent" in message:
            campaign.say("%s: %.1f of %.1f s" % (job.label, message["spent"], message["share"]))
    turns.run(jobs, campaign.clock.left(), 1 if args.dry_run else args.processes, take, campaign.say)
    host_speed.write(os.path.join(campaign.out, "host.json"), speeds, campaign.host, campaign.meta, anchors)
    with open(os.path.join(campaign.out, "host_readings.jsonl"), "w") as file:
        file.write(json.dumps({"name": campaign.host, "machine": campaign.meta, "speeds": [one for one in speeds if one], "anchors": anchors}) + "\n")
    for file in (timed_lines, lines, kernel_lines):
        file.close()
    campaign.say("done; %d models not started" % len(jobs))
    for note in campaign.notes[:60]:
        print("note:", note)
    return 0


if __name__ == "__main__":
    sys.exit(main())
