#!/usr/bin/env python3
"""Compiled training steps beside eager ones: what `--mode compile` is held against.

  python3 tools/gpu/compiled_steps.py --out results --budget 540
  python3 tools/gpu/compiled_steps.py --out results --budget 470 --list fourth --compiled-only --processes 15 --precisions amp-bf16,bf16,tf32
  python3 tools/gpu/compiled_steps.py --out results --budget 400 --list eleventh --compiled-only --processes 14 --precisions amp-bf16,bf16,tf32 --peaks fp32,fp16,amp-fp16
  python3 tools/gpu/compiled_steps.py --out /tmp/dry --dry-run --only bert-base --precisions bf16

One process per (model, precision): it compiles the model (torch.compile, Inductor's default mode; the optimizer stays eager), takes three steps with all the
memory they need to itself, and in its turn (turns.py), alone on the machine, times eager and compiled steps (compiled ones only, if asked: the garden's eager steps are
garden_steps.py's) before it profiles one. In the precisions of --peaks it has no turn: the last of the three steps says how much memory it takes, which does not depend on what
others do as long as nobody is refused any (`setup.refused`: how often that was). Beside each row stand the machine's speed at that moment (anchor_s) and the seconds inside the generated programs
(host_programs_s); the stacks of `precog host` are timed in every fifth turn. Rows are those of first_steps.py part A with `mode`; kernels are kept complete, not the
longest only, because their names and counts are the fusion groups. Output, all written as it goes:

  compiled_steps.jsonl     measured runs, one line per mode
  compiled_peaks.jsonl     the same of --peaks: `measured` has peak_bytes and nothing else
  compiled_kernels.jsonl.gz   {"id", "kernels": [[name, count, microseconds]]}
  host_compiled.json       the host of that sitting, as `precog host`'s stacks describe it
  wrappers.tar.gz          the programs that Inductor wrote, by row: which operators each kernel holds
"""
from __future__ import annotations

import argparse
import glob
import io
import json
import os
import shutil
import statistics
import sys
import tarfile
import tempfile
import time
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import turns  # noqa: E402

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# (model, layers, batch, seq, src_seq); sizes that first_steps.py measured too.
MODELS: list[tuple[str, int | None, int, int | None, int | None]] = [
    ("bert-base", None, 64, 128, None),
    ("gpt2", None, 8, 1024, None),
    ("resnet50", None, 128, None, None),
    ("qwen2.5-0.5b", None, 2, 2048, None),
    ("vit-b", None, 64, None, None),
    ("mobilenet_v2", None, 256, None, None),
    ("llama3-8b", 2, 2, 2048, None),
    ("t5-base", None, 16, 128, 512),
    ("vgg16", None, 64, None, None),
    ("bert-base", None, 4, 128, None),
]
PRECISIONS = ("amp-bf16", "bf16", "tf32", "amp-fp16", "fp32")
# Of the garden's unopened half (garden_steps.py): measured once, like the rest of it.
UNOPENED: list[tuple[str, int | None, int, int | None, int | None]] = [
    ("garden:electra-base", None, 32, 256, None),
    ("garden:resnext50_32x4d", None, 96, None, None),
    ("garden:qwen3-0.6b", None, 3, 1024, None),
    ("garden:beit_base_patch16_224", None, 64, None, None),
    ("garden:mobilenet_v3_large", None, 192, None, None),
    ("garden:dit-b2", None, 64, None, None),
    ("garden:stablelm2-1.6b", None, 2, 1024, None),
    ("garden:seresnet50", None, 16, None, None),
    ("garden:marian-en-de", None, 32, 128, None),
    ("garden:bloom-560m", None, 2, 256, None),
]
# Of the garden's third list: most of them compile quickly (compiling is what takes the time); the
# longest first, and sizes small enough for a dozen processes on one GPU.
THIRD: list[tuple[str, int | None, int, int | None, int | None]] = [
    ("garden:gemma3-1b", None, 1, 1024, None),
    ("garden:siglip-base", None, 32, 64, None),
    ("garden:shufflenet_v2_x1_0", None, 192, None, None),
    ("garden:pvt_v2_b1", None, 64, None, None),
    ("garden:twins_svt_small", None, 64, None, None),
    ("garden:convnextv2_tiny", None, 64, None, None),
    ("garden:mpnet-base", None, 24, 256, None),
    ("garden:dinov2-base", None, 32, None, None),
    ("garden:ast-base", None, 6, None, None),
    ("garden:segformer-b0", None, 12, None, None),
    ("garden:r3d_18", None, 12, None, None),
    ("garden:unet3d", None, 2, None, None),
    ("garden:two-towers", None, 8192, None, None),
]
# Of the garden's fourth list: a kind each, those that compile slowly first.
FOURTH: list[tuple[str, int | None, int, int | None, int | None]] = [
    ("garden:lfm2-350m", None, 2, 1024, None),
    ("garden:convbert-base", None, 8, 128, None),
    ("garden:mobilenetv4_conv_medium", None, 192, None, None),
    ("garden:speech2text-small", None, 64, 64, None),
    ("garden:wide_resnet50_2", None, 48, None, None),
    ("garden:roformer-base", None, 24, 256, None),
    ("garden:hiera_tiny_224", None, 64, None, None),
    ("garden:focalnet_tiny_srf", None, 64, None, None),
    ("garden:yolos-small", None, 2, None, None),
    ("garden:minilm-l6", None, 128, 128, None),
    ("garden:mmdit-b2", None, 4, None, None),
    ("garden:dcn-v2", None, 65536, None, None),
]
# Of the garden's fifth list, likewise.
FIFTH: list[tuple[str, int | None, int, int | None, int | None]] = [
    ("garden:mt5-small", None, 32, 256, None),
    ("garden:davit_tiny", None, 96, None, None),
    ("garden:smollm2-360m", None, 2, 1024, None),
    ("garden:ghostnet_100", None, 256, None, None),
    ("garden:xcit_small_12_p16_224", None, 64, None, None),
    ("garden:eva02_small_patch14_224", None, 48, None, None),
    ("garden:xlm-roberta-base", None, 24, 256, None),
    ("garden:cspdarknet53", None, 48, None, None),
    ("garden:resnetv2_50", None, 16, None, None),
    ("garden:whisper-tiny", None, 32, 64, None),
    ("garden:poolformer_s12", None, 96, None, None),
    ("garden:conv-vae", None, 256, None, None),
]
# Of the garden's sixth list, likewise.
SIXTH: list[tuple[str, int | None, int, int | None, int | None]] = [
    ("garden:levit_256", None, 384, None, None),
    ("garden:gpt-bigcode-1b", None, 3, 1024, None),
    ("garden:vit-base-lora", None, 128, None, None),
    ("garden:bert-base-upper-half", None, 64, 256, None),
    ("garden:repvgg_b0", None, 32, None, None),
    ("garden:vgg16_bn", None, 128, None, None),
]
# Of the garden's seventh list, likewise.
SEVENTH: list[tuple[str, int | None, int, int | None, int | None]] = [
    ("garden:convnext_base", None, 48, None, None),
    ("garden:gpt2-lora", None, 8, 1024, None),
    ("garden:vit-base-hf", None, 112, None, None),
    ("garden:bert-base-classifier", None, 16, 128, None),
    ("garden:resnet50-channels-last", None, 128, None, None),
    ("garden:mistral-7b-short", None, 2, 1024, None),
]
# Of the garden's eighth list, likewise.
EIGHTH: list[tuple[str, int | None, int, int | None, int | None]] = [
    ("garden:xglm-564m", None, 2, 1024, None),
    ("garden:coatnet_0_rw_224", None, 96, None, None),
    ("garden:ernie4.5-0.3b", None, 1, 512, None),
    ("garden:rexnet_100", None, 256, None, None),
    ("garden:autoencoder-kl", None, 8, None, None),
    ("garden:xlnet-base", None, 32, 256, None),
    ("garden:resnest50d", None, 128, None, None),
]
# Of the garden's ninth list, drawn by lot too; the last two at their first size.
NINTH: list[tuple[str, int | None, int, int | None, int | None]] = [
    ("garden:diffllama", None, 1, 1024, None),
    ("garden:focalnet_base_srf", None, 48, None, None),
    ("garden:gemma4-text-short", None, 1, 1024, None),
    ("garden:swin_s3_tiny_224", None, 192, None, None),
    ("garden:donut-swin", None, 192, None, None),
    ("garden:mvp-large", None, 4, 128, None),
    ("garden:apertus-short", None, 1, 256, None),
]
# Of the garden's tenth list, drawn by lot too; the last three that were drawn (data2vec-vision, efficientnet_v2_l, xlm-roberta-xl) at their
# first size. What would take longer to compile than there is time comes last (SLOW): a thousand operators and more, five minutes.
TENTH: list[tuple[str, int | None, int, int | None, int | None]] = [
    ("garden:tiny_vit_21m_224", None, 128, None, None),
    ("garden:ctrl-short", None, 2, 256, None),
    ("garden:cpmant-short", None, 1, 1024, None),
    ("garden:nllb-moe-short", None, 32, 256, None),
    ("garden:olmo-short", None, 1, 1024, None),
    ("garden:data2vec-vision", None, 16, None, None),
    ("garden:xlm-roberta-xl-short", None, 2, 128, None),
    ("garden:focalnet_xlarge_fl4", None, 2, None, None),
    ("garden:densenet264d", None, 32, None, None),
    ("garden:efficientnet_v2_l", None, 8, None, None),
]
# Of the garden's eleventh list, drawn by lot too; the last three that were drawn (hrnet_w18_small, rdnet_small, mamba2-short) at their first size.
# Those that compile quickly come first, by the number and the kinds of their operators; the last three have most.
ELEVENTH: list[tuple[str, int | None, int, int | None, int | None]] = [
    ("garden:arcee-short", None, 1, 1024, None),
    ("garden:vit_pe_core_small_patch16_384", None, 64, None, None),
    ("garden:gemma3-text-short", None, 1, 1024, None),
    ("garden:mobilenet_v3_small", None, 512, None, None),
    ("garden:selecsls60", None, 192, None, None),
    ("garden:perceiver", None, 12, None, None),
    ("garden:mamba2-short", None, 1, 256, None),
    ("garden:hrnet_w18_small", None, 16, None, None),
    ("garden:rdnet_small", None, 8, None, None),
    ("garden:res2net101_26w_4s", None, 64, None, None),
]
LISTS = {"zoo": MODELS, "unopened": UNOPENED, "third": THIRD, "fourth": FOURTH, "fifth": FIFTH, "sixth": SIXTH, "seventh": SEVENTH, "eighth": EIGHTH,
         "ninth": NINTH, "tenth": TENTH, "eleventh": ELEVENTH}
FIRST = {"eleventh": 4}  # so many at the beginning of a list go through all precisions before the others do, peaks first
SLOW = {"tenth": 3, "eleventh": 3}  # so many at the end of a list wait until the others have been through all precisions
# Inductor's reduce-overhead mode on two of them, last.
GRAPHED = (("bert-base", None, 4, 128, None), ("gpt2", None, 8, 1024, None))
HOST_EVERY = 5  # processes that time
ANCHORS = 3  # before and after: a turn has one row
MODES = {"compile": None, "compile-cudagraphs": "reduce-overhead"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="results")
    parser.add_argument("--budget", type=float, default=540, help="seconds after which everything is ended")
    parser.add_argument("--processes", type=int, default=7)
    parser.add_argument("--only", type=lambda text: text.split(","), default=None, help="these models")
    parser.add_argument("--list", choices=sorted(LISTS), default="zoo", help="whose models: the zoo's, or of one of the garden's lists")
    parser.add_argument("--compiled-only", action="store_true", help="no eager steps beside the compiled ones")
    parser.add_argument("--precisions", type=lambda text: text.split(","), default=list(PRECISIONS))
    parser.add_argument("--peaks", type=lambda text: text.split(","), default=[], help="these precisions besides, for their peak memory alone")
    parser.add_argument("--dry-run", action="store_true", help="tiny models on the CPU, same code, no meaning")
    parser.add_argument("--host", default=None, help="the host description (data/hosts) that the garden's rows name")
    parser.add_argument("--worker", type=json.loads, default=None, help=argparse.SUPPRESS)
    args = parser.parse_args()
    return work(args.worker) if args.worker else coordinate(args)


def coordinate(args: argparse.Namespace) -> int:
    """Starts the processes, writes what they say."""
    import common
    started = time.perf_counter()
    os.makedirs(args.out, exist_ok=True)
    waiting = ordered(LISTS[args.list], FIRST.get(args.list, 0), SLOW.get(args.list, 0), args.precisions, args.peaks)
    if args.list == "zoo":
        waiting += [{"model": m, "precision": "amp-bf16", "mode": "compile-cudagraphs", "peaks": False} for m in GRAPHED]
    waiting = [{**job, "dry_run": args.dry_run, "compiled_only": args.compiled_only, "host": args.host or common.HOST}
               for job in waiting if not args.only or job["model"][0].removeprefix("garden:") in args.only]
    for number, job in enumerate(job for job in waiting if not job["peaks"]):
        job["host_too"] = number % HOST_EVERY == 0
    speeds: list[dict[str, float]] = []
    anchors: list[float] = []
    machine: dict[str, Any] = {}
    scratch = tempfile.mkdtemp(prefix="compiled_steps_")
    lines = [common.Lines(os.path.join(args.out, name), {"host": common.HOST, "script": "compiled_steps.py", "dry_run": args.dry_run})
             for name in ("compiled_steps.jsonl", "compiled_kernels.jsonl.gz", *(["compiled_peaks.jsonl"] if args.peaks else []))]
    wrappers = tarfile.open(os.path.join(args.out, "wrappers.tar.gz"), "w:gz")

    def say(text: str) -> None:
        print("%6.1fs %s" % (time.perf_counter() - started, text), flush=True)

    def take(job: turns.Job, message: dict[str, Any]) -> None:
        if "kernels" in message:
            lines[1].write(message)
        elif job.facts["peaks"]:
            lines[2].write(message)
            say("%s: %s" % (message["id"], "peak %.2f GB, refused memory %d times (compiled in %.0f s)" % (
                message["measured"]["peak_bytes"] * 1e-9, message["setup"]["refused"], message["setup"]["compile_s"])
                if "measured" in message else message.get("error", "out of memory")))
        elif "id" in message:
            lines[0].write(message)
            measured = message.get("measured", {})
            anchors.extend(measured.get("anchors_s", []))
            say("%s %s: %s" % (message["id"], message["request"]["mode"], "%.2f ms, GPU %.2f ms, %d kernels, host %.2f ms (compiled in %.0f s)" % (
                measured["step_s"] * 1e3, measured["gpu_busy_s"] * 1e3, measured["kernels"], measured["host_enqueue_s"] * 1e3,
                message["setup"]["compile_s"]) if measured else message.get("error", "out of memory")))
        elif "host" in message:
            speeds.append(message["host"])
            say("host: %s" % message["host"])
        elif "meta" in message:
            machine.update(message["meta"])
            lines[0].write(message)

    def ended(job: turns.Job) -> None:
        save_wrappers(wrappers, job.facts)
        shutil.rmtree(job.facts["cache"], ignore_errors=True)

    jobs = []
    for number, facts in enumerate(waiting):
        facts["cache"] = os.path.join(scratch, "%d" % number)
        jobs.append(turns.Job("%s %s %s" % (facts["model"][0], facts["precision"], "peak" if facts["peaks"] else facts["mode"]), [os.path.abspath(__file__), "--worker", json.dumps(facts)],
                              {"TORCHINDUCTOR_CACHE_DIR": facts["cache"], "TRITON_CACHE_DIR": os.path.join(facts["cache"], "triton"),
                               "TORCHINDUCTOR_COMPILE_THREADS": "2", "OMP_NUM_THREADS": "1" if args.dry_run else "2"}, facts, () if facts["peaks"] else (1.0,)))
    turns.run(jobs, args.budget, 1 if args.dry_run else args.processes, take, say, ended)
    if speeds:
        import host_speed
        host_speed.write(os.path.join(args.out, "host_compiled.json"), speeds, args.host or common.HOST, machine, anchors)
    for file in lines:
        file.close()
    wrappers.close()
    shutil.rmtree(scratch, ignore_errors=True)
    say("done, %d rows not started" % len(jobs))
    return 0


def ordered(models: list[Any], first: int, slow: int, precisions: list[str], peaks: list[str]) -> list[dict[str, Any]]:
    """What is worth most comes first. Of the `first` models all peaks, in the order of `peaks`, then the times, which give their peaks too: some models have their memory in every precision, however
    little time there is. Then the others' two timed precisions, a peak, the other times, the other peaks; those that compile quickly before the `slow` ones."""
    timed = [(precision, False) for precision in precisions]
    others = [(precision, True) for precision in peaks]
    kinds = timed[:2] + others[:1] + timed[2:] + others[1:]
    quick = len(models) - slow
    return [{"model": model, "precision": precision, "mode": "compile", "peaks": peak}
            for those, own in ((models[:first], others + timed), (models[first:quick], kinds), (models[quick:], kinds)) for precision, peak in own for model in those]


def save_wrappers(archive: tarfile.TarFile, job: dict[str, Any]) -> None:
    """The Python programs with a `call` function; their comments name the operators in each kernel."""
    name = "-".join(str(part) for part in [*job["model"], job["precision"], job["mode"]] if part)
    if job["peaks"] or job["precision"] not in ("amp-bf16", "bf16", "tf32"):
        return
    for number, path in enumerate(sorted(glob.glob(os.path.join(job["cache"], "**", "*.py"), recursive=True), key=os.path.getmtime)):
        with open(path, "rb") as file:
            text = file.read()
        if b"def call(" in text:
            entry = tarfile.TarInfo("%s/%d.py" % (name, number))
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))


# --- one process: one model in one precision, eager and compiled

def work(job: dict[str, Any]) -> int:
    worker = turns.Worker()
    name, layers, batch, seq, src_seq = job["model"]
    if name.startswith("garden:"):
        import garden_steps  # first: it says where the garden is
        import garden
        entry = garden.find(name.removeprefix("garden:"))
        record = garden_steps.record_of(entry.name, job["precision"], batch, seq, entry.inputs.__name__ == "two_sides", job["host"])
    else:
        import part_steps
        record = part_steps._record(name, layers, False, job["precision"], batch, seq, src_seq)
    record["source"] = "measured: tools/gpu/compiled_steps.py"
    try:
        measure(job, record, worker)
    except Exception as error:  # noqa: BLE001: the row says what happened
        record["request"]["mode"] = job["mode"]
        worker.tell(**record, error="%s: %s" % (type(error).__name__, str(error)[:400]))
    worker.tell(done=True)
    os._exit(0)  # the driver and the compile workers take their time otherwise


def measure(job: dict[str, Any], record: dict[str, Any], worker: turns.Worker) -> None:
    import torch

    import common
    import host_speed
    import models
    import precisions
    from graph_clock import GraphClock
    from precog.gpu import steps
    device, clock = common.Device(job["dry_run"]), GraphClock()
    name, layers, batch, seq, src_seq = job["model"]
    if job["dry_run"]:
        batch, seq, src_seq = 2, seq and 16, src_seq and 32
    precision = job["precision"]
    switches = precisions.switch(device, precision)
    dtype = precisions.DTYPES.get(precision, torch.float32)
    if name.startswith("garden:"):
        import garden
        from precog.gpu.trainer import Trainer
        entry = garden.find(name.removeprefix("garden:"))
        with torch.device(device.type):
            model = entry.build(tiny=job["dry_run"])
        model = model.to(device=device.type, dtype=dtype)
        data = entry.inputs(model, batch, seq, torch.device(device.type), dtype)
        make = lambda trained: Trainer(device, lambda one: entry.loss(one, data), trained, precision)  # noqa: E731
    else:
        model = models.build(name, device.type, layers, tiny=job["dry_run"]).to(dtype)
        data = models.inputs(name, model, device.type, batch, seq, src_seq, dtype, tiny=job["dry_run"])
        make = lambda trained: precisions.Trainer(device, name, trained, data, precision)  # noqa: E731
    compiled = torch.compile(model, mode=MODES[job["mode"]], dynamic=False)
    from torch._dynamo.utils import counters
    started = time.perf_counter()
    trainer = make(compiled)
    with trainer.autocast():
        loss = trainer.loss_fn(compiled)
    loss.backward()
    device.sync()
    compile_s = time.perf_counter() - started
    loss = None
    model.zero_grad(set_to_none=True)
    device.free()
    with worker.alone():
        for _ in range(3):
            device.reset_peak()
            trainer.step()
            device.sync()
        peak = device.memory()["peak_bytes"]
        trainer.close()
        device.free()
    setup = {"compile_s": round(compile_s, 1), "graphs": counters["stats"].get("unique_graphs", 0), "graph_breaks": sum(counters["graph_break"].values()),
             "refused": device.refused(), **switches}
    if job["peaks"]:
        worker.tell(**{**record, "id": record["id"] + "-compile", "request": {**record["request"], "mode": job["mode"]}}, measured={"peak_bytes": peak}, setup=setup)
        return
    anchor = host_speed.Anchor(device)
    worker.turn()
    if job["host_too"]:
        worker.tell(meta=common._device.describe_machine(job["dry_run"]))
        worker.tell(host=host_speed.now(device, anchor))
    precisions.switch(device, precision)  # the stacks have their own
    modes = {"eager": model, job["mode"]: compiled}
    if job["mode"] != "compile" or job["compiled_only"]:
        del modes["eager"]
    rows = {mode: {**record, "request": {**record["request"], "mode": mode}, "id": record["id"] + "-" + mode} for mode in modes}
    for mode, row in rows.items():
        trainer = make(modes[mode])
        row["measured"], _ = steps.time_steps(device, trainer, warmup=3, profiled=False)
        got = row["measured"]
        got.update(anchor.without(got))
        got["anchors_s"] = [anchor() for _ in range(ANCHORS)]
        got["host_programs_s"] = inside_programs(device, trainer, clock)
        means, enqueues = steps.time_blocks(device, trainer, got["steps_per_block"], 3)  # and some more a moment later: the host's speed wanders
        means = got["block_means_s"] + means
        got["anchors_s"] += [anchor() for _ in range(ANCHORS)]
        got.update({"step_s": statistics.median(means), "step_s_min": min(means), "step_s_max": max(means), "blocks": len(means), "block_means_s": means,
                    "host_enqueue_s": statistics.median([got["host_enqueue_s"], *enqueues]), "anchor_s": statistics.median(got["anchors_s"])})
        trainer.close()
        device.free()
        row["setup"] = {**setup, "refused": device.refused()}
    for mode, row in rows.items():  # when all are timed: the profiler slows this process's host for good
        trainer = make(modes[mode])
        for _ in range(2):
            trainer.step()
        summary, kernels = steps.profile_step(device, trainer, top=1000)
        trainer.close()
        device.free()
        row["measured"].update(summary)
        worker.tell(**row)
        worker.tell(id=row["id"], kernels=kernels)


def inside_programs(device: Any, trainer: Any, clock: Any) -> dict[str, float]:
    """Phase -> seconds inside the programs that Inductor wrote, of three steps from an idle GPU."""
    taken: dict[str, list[float]] = {}
    for _ in range(3):
        device.sync()
        clock.take()
        trainer.phases(lambda phase: taken.setdefault(phase, []).append(clock.take()))
    return {phase: round(statistics.median(values), 7) for phase, values in taken.items() if phase != "optimizer"}


if __name__ == "__main__":
    sys.exit(main())
