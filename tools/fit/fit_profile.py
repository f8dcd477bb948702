#!/usr/bin/env python3
"""Fits the coefficients of data/profiles/datasheet.json to measured operators, and prints how well they do.

Reads the measurements under $PRECOG_REFERENCE_DATA, h200_operators.csv beside this file (measure_families.py makes
it), and the operators of data/measured/2026-11-15-h200. Only operator timings are used, never a training step. Needs numpy, scipy, pandas; takes half a minute.
usage: fit_profile.py [--write] [--leave-one-out]
"""
import copy
import json
import pathlib
import sys

import fit_conv
import fit_images
import fit_matrix
import fit_rest
import fit_power
import fitting
import specs

# What training's products reach where the timings at hand are of other libraries' kernels.
PUBLISHED_EFFICIENCY = {"blackwell": {"fp8": 0.634, "mxfp8": 0.603}}
PUBLISHED_SOURCE = ("derived: Transformer Engine's documentation (docs/examples/gemm_profiling), B300: the twelve products of a layer of width 4096 on 15872 tokens, operands "
                    "already quantised, a hundred of each in a row, by cuBLAS: 6.81 ms with one scale, 7.16 ms in mxfp8; vLLM's kernels, which were fitted before (0.7041), would have taken 6.13 ms")
OUT = pathlib.Path(__file__).resolve().parents[2] / "data" / "profiles" / "datasheet.json"
AICONF = "NVIDIA aiconfigurator timings (Apache-2.0)"
OWN = "own timings of PyTorch 2.11 operators on an H200 (tools/fit/h200_operators.csv)"
BOTH = "own timings of PyTorch 2.11 operators on an H200 (tools/fit/h200_operators.csv; data/measured/2026-11-15-h200)"
SCALED = "own timings of PyTorch 2.11 operators on an H200 (data/measured/2026-11-15-h200-precision)"
# Loads of a thread that an SM (a CU) takes up in a clock: the "LD/ST" units of the pictures in NVIDIA's white papers of each architecture (of the Blackwell with HBM
# there is none: as Hopper); AMD's CUs take the 64 addresses of a wavefront in four clocks (CDNA 3 ISA guide, vector memory).
LOADS_PER_CLOCK = {"pascal": 32, "volta": 32, "turing": 16, "ampere": 32, "ampere-ga10x": 16, "ada": 16, "hopper": 32, "blackwell": 32, "blackwell-gb20x": 16, "cdna2": 16, "cdna3": 16}
sources = {}


def leaf(value, source, unit=None):
    digits = float("%.4g" % (value * 1e6 if unit == "us" else value))
    return {"value": f"{digits:g} us" if unit == "us" else digits, "source": source}


SECONDS = {"launch_floor", "tile_overhead", "split_overhead", "block_overhead", "layout_floor", "pipeline_fill", "indexing_overhead"}


def group(values, source):
    return {n: leaf(v, source, "us" if n in SECONDS else None) for n, v in values.items()}




def gemm_group(c, source, by_math):
    """by_math: {math: source} for the two coefficients that differ by arithmetic."""
    out = group({n: v for n, v in c.items() if n not in fit_matrix.PER_MATH and not n.startswith("quantise")}, source)
    for name in fit_matrix.PER_MATH:
        out[name] = {m: leaf(c[name][m], by_math[m]) for m in by_math}
    return out


def retag(node, source):
    """The same coefficients for an architecture nobody measured."""
    if isinstance(node, dict) and "value" in node:
        return {"value": node["value"], "source": source}
    return {k: retag(v, source) for k, v in node.items()}


def main():
    if not fitting.DATA.is_dir():
        sys.exit("set PRECOG_REFERENCE_DATA to the folder of reference measurements")
    if "--leave-one-out" in sys.argv:
        fit_matrix.leave_one_out()
    gemms, maths = {}, {}

    def note(key, text):
        sources[key] = text
        return key

    # GEMM, the architectures of the large data set
    for arch, gpus in fit_matrix.ARCH.items():
        c = fit_matrix.fit_gemm_arch(gpus)
        said = "; ".join(f"{g}: " + fit_matrix.evaluate_gemm(c, g, "bf16", "bfloat16", "gemm") for g in gpus)
        key = note(f"gemm_{arch}", f"fitted: bf16 GEMM, {AICONF}; shapes with m, n >= 512: {said}")
        maths[arch] = {"bf16": key}
        for math, dtype in (("fp8", "fp8"), ("nvfp4", "nvfp4")):
            if arch == "ampere" or (math == "nvfp4" and arch != "blackwell"):
                continue
            v = fit_matrix.fit_low_precision(c, gpus, math, dtype)
            c = fit_matrix.spread({n: w for n, w in v.items() if "/" in n}, math, c)
            full = fit_matrix.spread(v, math, c)
            said = "; ".join(f"{g}: " + fit_matrix.evaluate_gemm(full, g, math, dtype, "gemm") for g in gpus)
            maths[arch][math] = note(f"gemm_{arch}_{math}", f"fitted: {math} GEMM, {AICONF}, the quantising of activations that those timings include fitted beside it and left out here; {said}")
        if arch != "ampere":
            v, said = fit_matrix.fit_low_precision(c, gpus, "fp8-block", "fp8_block")
            c = fit_matrix.spread({n: w for n, w in v.items() if "/" in n}, "fp8-block", c)
            maths[arch]["fp8-block"] = note(f"gemm_{arch}_fp8_block", f"fitted: block-scaled fp8 GEMM, {AICONF}, those well above the host's floor of 55 to 350 us, quantising fitted beside it and left out: {said}")
        gemms[arch] = c

    # Hopper's other arithmetics, layouts, misalignment
    hopper, tn, misaligned, notes = fit_matrix.fit_own_gemm(gemms["hopper"])
    gemms["hopper"] = hopper
    for math in ("fp16", "tf32", "fp32"):
        maths["hopper"][math] = note(f"gemm_hopper_{math}", f"fitted: {OWN}: {notes[math]}")
    hopper, notes = fit_matrix.fit_scaled(hopper)
    gemms["hopper"] = hopper
    for math, said in notes.items():
        maths["hopper"][math] = note(f"gemm_hopper_{math}", f"fitted: {SCALED}: torch._scaled_mm, {said}")
    misaligned, odd = fit_matrix.fit_ragged()
    print("misaligned", misaligned, "odd", odd)
    factor_source = note("gemm_factors", f"fitted: layouts nt, nn, tn: {OWN}")
    h200 = specs.load("h200-sxm")
    pace = lambda left: {m: share * hopper["efficiency"][m] * h200.peak(m) / (h200.sms * h200.clock) for m, share in left.items()}
    paces = {"misaligned_pace": pace(misaligned), "odd_pace": pace(odd)}
    pace_source = note("gemm_paces", f"fitted: row lengths that are no multiple of 16 or of 4 bytes: {SCALED}; FLOP per clock and SM, about 525 for every element that a load fetches")

    # Blackwell's tf32 from the openxla table; CDNA from the same table's MI350, an architecture further on
    b200 = specs.load("b200-sxm")
    v, said = fit_matrix.xla_table(gemms["blackwell"], "B200 sm_100", b200, "f32xf32->f32", "tf32", "b200-sxm")
    gemms["blackwell"] = fit_matrix.spread(v, "tf32", gemms["blackwell"])
    maths["blackwell"]["tf32"] = note("gemm_blackwell_tf32", f"fitted: GEMM table in openxla/xla (B200, f32): {said}")
    mi350 = specs.Gpu("mi350", 256, 2.4e9, 8e12, 4e6, {"bf16": 2.3e15}, {"fp32": 157e12})
    v, said = fit_matrix.xla_table(hopper, "AMD gfx950 (MI350)", mi350, "bf16xbf16->bf16", "bf16", "mi350")
    cdna = fit_matrix.spread(v, "bf16", hopper)
    for math in ("fp16", "fp8"):
        cdna = fit_matrix.spread({n.replace("bf16", math): w for n, w in v.items()}, math, cdna)
    cdna_source = note("gemm_cdna", f"estimate: efficiency fitted to MI350 (CDNA 4) in the GEMM table of openxla/xla ({said}), the rest taken from hopper; MI300X and MI250X unmeasured")

    # Convolutions; then Volta, Turing, Pascal
    convs = {}
    convs["hopper"], notes = fit_conv.fit(hopper, specs.load("h200-sxm"), fit_conv.own(), "PyTorch")
    note("conv_hopper", f"fitted: {BOTH}: " + "; ".join(f"{m} {d} {s}" for (m, d), s in notes.items()))
    for arch, gpu, name in (("volta", "V100", "v100-sxm2-16gb"), ("turing", "T4", "t4"), ("pascal", "P100", "p100")):
        c, bad, notes = fit_matrix.fit_deepbench_gemm(gpu, name, hopper)
        gemms[arch], maths[arch] = c, {}
        for math, said in notes.items():
            maths[arch][math] = note(f"gemm_{arch}", f"fitted: DeepBench GEMM on {gpu} (fp16 and fp32 where it has both), 2016-2018 libraries: {math} {said}")
        convs[arch], notes = fit_conv.fit(c, specs.load(name), fit_conv.deepbench_rows(gpu), "DeepBench", convs["hopper"])
        note(f"conv_{arch}", f"fitted: DeepBench convolutions on {gpu}: " + "; ".join(f"{m} {d} {s}" for (m, d), s in notes.items()))
    grouped, notes = fit_conv.fit_grouped(hopper, convs["hopper"])
    grouped_source = note("conv_grouped", f"fitted: {SCALED}: " + "; ".join(f"{k} {d} {s}" for (k, d), s in notes.items()))
    depthwise = fit_conv.fit_depthwise()
    memory = fit_rest.fit_memory()
    batch_norm = fit_images.fit_batch_norm()
    layout = dict(launch_floor=convs["hopper"]["layout_floor"], efficiency=fit_conv.models.STREAM,
                  accesses_per_clock=convs["hopper"]["layout_accesses"], bytes_per_clock=convs["hopper"]["layout_bytes"])
    for conv in convs.values():  # kernels of their own in the profile, below
        for name in ("layout_floor", "layout_accesses", "layout_bytes"):
            conv.pop(name, None)
    travel = fit_rest.check_memory_elsewhere(memory)
    attention = fit_rest.fit_attention(memory)

    # One complete set per architecture: what was measured there, else what is closest, said so
    def estimate(donor, why=""):
        key = f"estimate_{donor}" + ("_lanes" if why else "")
        return note(key, f"estimate: unmeasured here; taken from {donor}{why}")

    DONOR = {"ampere": "hopper", "ada": "hopper", "blackwell": "hopper", "volta": "hopper", "turing": "volta", "pascal": "volta",
             "ampere-ga10x": "ada", "blackwell-gb20x": "ada", "cdna3": "hopper", "cdna2": "cdna3", "hopper": None}
    POWER_LIMITED = {"ada": "l40s", "ampere-ga10x": "l40s", "blackwell-gb20x": "l40s", "turing": "t4"}
    gemms["cdna3"], maths["cdna3"] = cdna, {m: cdna_source for m in ("bf16", "fp16", "fp8")}
    built = {}
    for arch in ("hopper", "volta", "ampere", "ada", "blackwell", "turing", "pascal", "cdna3", "ampere-ga10x", "blackwell-gb20x", "cdna2"):
        donor = DONOR[arch]
        if arch not in gemms:
            gemms[arch], maths[arch] = copy.deepcopy(gemms[donor]), {m: estimate(donor) for m in gemms[donor]["efficiency"]}
            main_source = estimate(donor)
        else:
            main_source = next(iter(maths[arch].values()))
        c = copy.deepcopy(gemms[arch])
        own16 = c["efficiency"].get("bf16") or c["efficiency"].get("fp16") or c["efficiency"]["fp32"]
        ratio = hopper["efficiency"]["fp16"] / hopper["efficiency"]["bf16"]
        for math in ("fp16", "bf16", "tf32", "fp32", "fp8", "fp8-block", "mxfp8", "nvfp4"):
            if math in maths[arch]:
                continue
            source = estimate(donor or "hopper")
            latency = hopper["k_latency_clocks"].get(math, c["k_latency_clocks"].get("bf16", hopper["k_latency_clocks"]["bf16"]))
            value = own16
            if math in c["efficiency"]:  # came with the donor's coefficients
                value, latency = c["efficiency"][math], c["k_latency_clocks"][math]
            elif math == "fp16" and "bf16" in c["efficiency"]:
                value, latency = own16 * ratio, c["k_latency_clocks"]["bf16"]
                source = note("estimate_16bit", "estimate: this architecture's other 16-bit type, times the ratio of the two measured on H200")
            elif math == "bf16":
                latency = c["k_latency_clocks"].get("fp16", latency)
                source = note("estimate_16bit", sources.get("estimate_16bit", "estimate: this architecture's other 16-bit type"))
            elif math == "fp32":
                like = "volta" if arch == "ampere" else donor
                value, latency = gemms[like]["efficiency"]["fp32"], gemms[like]["k_latency_clocks"]["fp32"]
                source = estimate(like, ", which has as many fp32 lanes per SM" if arch == "ampere" else "")
            elif math == "mxfp8" and "fp8" in c["efficiency"]:
                value, latency = c["efficiency"]["fp8"], c["k_latency_clocks"]["fp8"]
                source = note("estimate_mxfp8", "estimate: as this architecture's fp8: its tensor cores apply block scales themselves (Blackwell); unmeasured")
            elif math in ("tf32", "fp8", "fp8-block", "mxfp8", "nvfp4"):
                source = note("estimate_own16", "estimate: as this architecture's 16-bit efficiency; latency from hopper's")
            c["efficiency"][math], c["k_latency_clocks"][math] = value, latency
            maths[arch][math] = source
        for math, value in PUBLISHED_EFFICIENCY.get(arch, {}).items():
            c["efficiency"][math], maths[arch][math] = value, note(f"gemm_{arch}_te", PUBLISHED_SOURCE)
        gemms[arch] = c
        c["l2_gain"] = max(c["l2_gain"], 1.0)  # below 1 it absorbs the start-up of short transfers; here it is only the speed of split-K's sums
        entry = {"gemm": gemm_group(c, main_source, maths[arch])}
        any_layout = note("estimate_any_layout", "estimate: its matrix instructions read either layout, so no loss")
        entry["gemm"]["transposed_a_factor"] = {m: leaf(tn[m], factor_source) if arch == "hopper" else leaf(1.0, any_layout) for m in ("fp16", "bf16", "tf32", "fp32")}
        loads = LOADS_PER_CLOCK[arch]
        loaded = pace_source if arch == "hopper" else note(f"estimate_loads_{loads}", f"estimate: hopper's, which fetches 32 elements per SM and clock, at {loads}")
        for name, values in paces.items():
            entry["gemm"][name] = {m: leaf(value * loads / LOADS_PER_CLOCK["hopper"], loaded) for m, value in values.items() if arch == "hopper" or m != "fp32"}  # kernels of ordinary units are not waiting for loads

        # Where power held the fitted GPU back, its siblings are scaled by their own watts per FLOP/s (src/cost/kernel_cost.cpp).
        entry["gemm"]["watts_per_tflops"] = {}
        if arch in POWER_LIMITED:
            held_back = specs.load(POWER_LIMITED[arch])
            key = note(f"power_{held_back.name}", f"derived: board power over peak rate of {held_back.name} (data/gpus)")
            entry["gemm"]["watts_per_tflops"] = {m: leaf(held_back.power / held_back.peak(m) * 1e12, key) for m in ("fp16", "bf16", "tf32", "fp32", "fp8")}

        conv = convs.get(arch) or convs.get(donor) or convs["hopper"]
        source = f"conv_{arch}" if arch in convs else estimate(donor if donor in convs else "hopper")
        entry["convolution"] = {n: group(v, source) if isinstance(v, dict) else leaf(v, source, "us" if n in SECONDS else None) for n, v in conv.items()}
        for direction, values in grouped.items():
            entry["convolution"][direction].update(group(values, grouped_source if arch == "hopper" else estimate("hopper")))
        chosen = note("estimate_winograd_choice", "estimate: where cuDNN 9 was seen to change algorithm on H200, read off the timings by eye; it has exceptions")
        for name in ("winograd_work", "winograd_gradient_size"):
            if arch == "hopper":
                entry["convolution"][name]["source"] = chosen
        said = lambda kernel, by: note(f"depthwise_{kernel}", f"fitted: {BOTH}: " + "; ".join(f"{d} {s}" for d, (_, s) in by.items()))
        entry["depthwise"] = {kernel: {d: group(v, said(kernel, by) if arch == "hopper" else estimate("hopper")) for d, (v, _) in by.items()}
                              for kernel, by in depthwise.items()}

        entry["memory"] = {}
        for family, (v, said) in memory.items():
            key = note(f"memory_{family}", f"fitted: {BOTH if family in ('pointwise_mixed', 'permute', 'norm_forward', 'norm_backward', 'norm_parameters', 'reduction') else OWN}: {said}") if arch == "hopper" else estimate("hopper")
            if arch == "ampere" and ("a100-sxm-80gb", family) in travel:
                key = note(f"memory_{family}_ampere", "estimate: taken from hopper; on A100 (estimate-train-time, fp16) that has " + travel["a100-sxm-80gb", family])
            entry["memory"][family] = group(v, key)
        for (native, backward, last), (v, said) in batch_norm.items():
            name = f"{'native_' if native else ''}batch_norm_{'backward' if backward else 'forward'}"
            layout_name = "channels_last" if last else "channels_first"
            key = note(f"memory_{name}_{layout_name}", f"fitted: {BOTH}: {said}") if arch == "hopper" else estimate("hopper")
            entry["memory"].setdefault(name, {})[layout_name] = group(v, key)
        # cuDNN's own NCHW <-> NHWC passes, fitted with the convolutions that need them
        entry["memory"]["layout"] = group(layout, "conv_hopper" if arch == "hopper" else note("estimate_layout", "estimate: taken from hopper, where PyTorch launches them; DeepBench's timings of Volta and Turing show none"))
        for family in ("index", "loss"):
            entry["memory"][family] = group(memory["embedding"][0], note("estimate_gather", "estimate: unmeasured; as an embedding lookup, which gathers likewise"))

        entry["attention"] = {}
        for backend, ours in (("flash", "flash"), ("cudnn", "cudnn"), ("memory_efficient", "efficient"), ("memory_efficient_16bit", "efficient_16bit")):
            entry["attention"][backend] = {}
            for direction in ("forward", "backward"):
                # Where nobody timed a backend the architecture's own flash stands in: its kernels use the same instructions there.
                # Not on Blackwell, where cuDNN's are written for its tensor cores as they are for Hopper's.
                if (arch, ours, direction) not in attention and not (ours == "cudnn" and arch == "blackwell") and ours in ("cudnn", "efficient_16bit"):
                    ours = "flash"
                chain = [arch] + ([donor] if donor else []) + ["ampere" if ours == "flash" else "hopper", "hopper"]
                if arch in ("ada", "ampere-ga10x", "turing", "volta", "pascal"):  # FlashAttention 2's mma path, as on A100
                    chain.insert(2, "ampere")
                used = next(a for a in chain if (a, ours, direction) in attention)
                v, said = attention[used, ours, direction]
                key = note(f"attention_{arch}_{backend}_{direction}", f"fitted: {said}") if used == arch else estimate(used)
                if used == arch and ours == "flash" != backend:
                    key = note("estimate_flash", "estimate: unmeasured here; as this architecture's flash attention")
                entry["attention"][backend][direction] = group(v, key)

        gap = note("kernel_gap", "fitted: own timings on an H200 (data/measured/2026-11-15-h200/host.jsonl, gpu floor): distance of the starts of queued kernels, less their duration")
        entry["kernel_gap"] = leaf(fitting.kernel_gap(), gap if arch == "hopper" else estimate("hopper"), "us")
        if arch == "hopper":
            entry["power"] = fit_power.group(note)
        elif arch == "blackwell":
            entry["power"] = fit_power.carried(note)
        built[arch] = entry

    used = set()

    def walk(node):
        if "source" in node and "value" in node:
            used.add(node["source"])
        else:
            for child in node.values():
                walk(child)
    walk(built)
    profile = {"schema": 1, "name": "datasheet", "title": "Physics from the datasheet, efficiencies per architecture",
               "architectures": built, "sources": {k: sources[k] for k in sources if k in used}}
    if "--write" in sys.argv:
        OUT.parent.mkdir(parents=True, exist_ok=True)
        OUT.write_text(render(profile) + "\n")
        print("wrote", OUT)


def render(node, indent=0):
    """JSON with one coefficient per line: a diff of it can be read."""
    if not isinstance(node, dict) or "value" in node:
        return json.dumps(node)
    pad = " " * (indent + 1)
    return "{\n" + ",\n".join(f"{pad}{json.dumps(k)}: {render(v, indent + 1)}" for k, v in node.items()) + "\n" + " " * indent + "}"


if __name__ == "__main__":
    main()
