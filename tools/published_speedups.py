#!/usr/bin/env python3
"""Published pairs of one job at two precisions against the predicted speed-up.

  PRECOG_REFERENCE_DATA=DIR tools/published_speedups.py [--write] [--list] [--json FILE]

DIR holds published/published_dl.csv.gz. --write puts the tables into docs/published_speedups.md (between its two marks), --list
prints every pair.
PRECOG names the program (build/release/precog by default). tools/published_models.json says which model, GPU and settings a row
means; what it leaves out, or the program refuses, is listed with the reason.

Rows marked SUSPECT or CHECK by whoever collected them are not read. Rows that agree in everything but the precision are one
configuration; repeated rows of a configuration count once, by their median; two precisions of a configuration are a pair; the
same two figures in several editions of a README are one pair.
"""
import argparse
import collections
import csv
import gzip
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAP = ROOT / "tools" / "published_models.json"
PAGE = ROOT / "docs" / "published_speedups.md"
PROGRAM = os.environ.get("PRECOG", str(ROOT / "build" / "release" / "precog"))
SLOW, FAST = ("fp32", "tf32"), ("amp-fp16", "amp-bf16", "fp16", "bf16")
COLUMNS = {"source": "source_repo_or_paper", "model": "model", "variant": "variant", "task": "task", "input": "input_shape_or_seq_len",
           "framework": "framework", "version": "framework_version", "gpu": "gpu", "mem": "gpu_mem_gb", "gpus": "num_gpus",
           "batch": "batch_per_gpu", "accumulation": "grad_accum", "optimizer": "optimizer", "format": "channels_last",
           "jit": "compile_or_jit", "data": "dali_or_synthetic_data"}


def published_file():
    folder = os.environ.get("PRECOG_REFERENCE_DATA", "")
    path = pathlib.Path(folder) / "published" / "published_dl.csv.gz"
    return path if folder and path.is_file() else None


def edition(row):
    """Which version of its README a row is from: software changed with it, though the row may not say how."""
    found = re.search(r"README@HEAD|superseded README version, commit \w+", row["notes"])
    return found.group().removeprefix("superseded README version, commit ") if found else ""


def system(row):
    """The machine that the row names: the same GPU in another machine is another configuration."""
    found = re.search(r"system=([\w -]+)", row["notes"])
    return found.group(1).strip() if found else ""


def plain(text):
    """12.0 and 12 are one number, in the file and in the rules."""
    return text[:-2] if text.endswith(".0") and text[:-2].isdigit() else text


def read_pairs(path):
    configurations, contradicted = collections.defaultdict(lambda: collections.defaultdict(list)), set()
    with gzip.open(path, "rt", newline="") as file:
        for row in csv.DictReader(file):
            if "SUSPECT" in row["notes"] or "CHECK" in row["notes"] or not row["throughput"]:
                continue
            if plain(row["num_nodes"]) not in ("", "1"):
                continue
            key = (*(plain(row[column]) for column in COLUMNS.values()), system(row), edition(row))
            configurations[key][row["precision"]].append(float(row["throughput"]))
            if "disagrees with its throughputs" in row["notes"]:
                contradicted.add(key)
    pairs = []
    for key, precisions in configurations.items():
        for slow in SLOW:
            for fast in FAST:
                if slow in precisions and fast in precisions:
                    pairs.append(dict(zip((*COLUMNS, "system", "edition"), key), slow=slow, fast=fast, pair=f"{slow} to {fast}", contradicted=key in contradicted,
                                      rates=[statistics.median(precisions[which]) for which in (slow, fast)]))
                    pairs[-1]["measured"] = pairs[-1]["rates"][1] / pairs[-1]["rates"][0]
    return without_repeats(pairs)


def without_repeats(pairs):
    """One measurement stands in several editions of a README, its GPU or software at times named anew: the last counts."""
    kept = {}
    for pair in sorted(pairs, key=lambda pair: (pair["edition"] == "README@HEAD", pair["version"], pair["mem"])):
        told_anew = ("edition", "version", "mem", "measured", "rates", "contradicted")
        kept[(*(value for field, value in pair.items() if field not in told_anew), *pair["rates"])] = pair
    return list(kept.values())


def matches(rule, pair):
    return all(pair[field] in ([wanted] if isinstance(wanted, str) else wanted) for field, wanted in rule.items())


def known_names(kind):
    done = subprocess.run([PROGRAM, kind, "--json"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return {entry["name"] for entry in json.loads(done.stdout)}


def copy_rate(measured, size, threads):
    """What one of so many threads copies in a second: into memory that the program still has, or into pages handed out anew."""
    if size < measured["anew_from"]:
        return measured["in_use"]
    known = sorted((int(count), rate) for count, rate in measured["anew"].items())
    for (few, fast), (many, slow) in zip(known, known[1:]):
        if threads <= many:
            return fast * (slow / fast) ** (math.log(threads / few) / math.log(many / few))
    return known[-1][1]


def loader_of(copies, batch, pair, mapping):
    """What a source's loader does for every step, as a request's input: all of it is serial work of the loop."""
    copied = copies.get("step", 0) + copies.get("sample", 0) * batch
    for link in mapping["host_links"]:  # a shared link is as slow as twice the bytes
        copied *= link["share"] if matches({"system": link["system"], "gpus": link["gpus"]}, pair) else 1
    made = {"seconds_per_batch": 0, "workers": 1, "bytes_per_batch": copied}
    if "parsed" in copies:  # by threads, a sample each at a time
        turns = -(-batch // copies["threads"])
        rate = copy_rate(mapping["host_copies"], copies["sample"], min(batch, copies["threads"]))
        made |= {"seconds_per_batch": turns * copies["parsed"] / rate, "workers": 0}
    if "on_gpu" in copies:
        made["gpu_bytes_per_batch"] = copies["on_gpu"] * batch
    return made


def requests_of(pair, mapping, recipes):
    """The two requests of a pair, slow and fast, or the reason why there are none."""
    rule = next((rule for rule in mapping["rules"] if matches(rule["match"], pair)), None)
    pair["family"] = rule["family"] if rule else "other"
    apart = next((entry["reason"] for entry in mapping["apart"] if matches(entry["match"], pair)), None)
    if apart or pair.get("contradicted"):
        pair["apart"] = apart or "its own table gives another speed-up"
    gpu = next((entry["name"] for entry in mapping["gpus"]
                if matches({field: entry[field] for field in ("gpu", "mem") if field in entry}, pair)), None)
    pair["card"] = gpu or pair["gpu"]
    if rule is None:
        return f"no model: {pair['model']} {pair['variant']}".rstrip()
    if "leave_out" in rule:
        return rule["leave_out"]
    if gpu is None:
        return f"no GPU: {pair['gpu']}"
    both = []
    for precision in (pair["slow"], pair["fast"]):
        name = rule.get("precision", {}).get(precision, precision)
        recipe = name if name in recipes else mapping["precisions"][name]["inline"]
        model = rule.get("model_" + precision, rule["model"])
        if isinstance(model, dict):
            model = {"graph": str(ROOT / model["graph"])}
        request = {"schema": 1, "model": model, "batch": rule.get("batch", int(float(pair["batch"]))), "precision": recipe,
                   "optimizer": rule["optimizer"]}
        for field, entries in (("software", mapping["software"]), ("host", mapping["hosts"])):
            name = next((entry["name"] for entry in entries
                         if matches({key: entry[key] for key in ("framework", "version", "model", "edition") if key in entry}, pair)), None)
            if name:
                request[field] = name
        if any(pair["framework"] in entry["framework"] for entry in mapping["loops"]):
            request["reads_loss"] = True
        exchange = next((entry for entry in mapping["exchange"]
                         if matches(entry["match"], pair) and entry.get("precision", precision) == precision), None)
        cards = 1 if any(matches(entry["match"], pair) for entry in mapping["alone"]) else int(pair["gpus"])
        if exchange and cards > 1:
            request |= {field: exchange[field] for field in ("plan", "exchange_cycle_ms") if field in exchange}
        request["cluster"] = {"gpu": gpu, "gpus": cards, "gpus_per_node": cards}
        request["cluster"] |= {"name": entry["cluster"] for entry in mapping["systems"] if pair["system"] in entry["system"]}
        for field in ("seq", "mode", "optimizer_impl", "memory_format", "attention", "clip_grad_norm", "software", "reads_loss", "host", "input"):
            value = rule.get(field)
            value = value.get(precision) if isinstance(value, dict) and field != "input" else value
            if value is not None:
                request[field] = value
        if "copies" in rule:
            request["input"] = loader_of(rule["copies"], request["batch"], pair, mapping)
        both.append(request)
    return both


def predict(requests):
    """Predicted seconds by place, and the reasons where there is none; one call of `precog validate`."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "runs.jsonl"
        with open(path, "w") as file:
            for index, request in enumerate(requests):
                run = {"id": str(index), "source": "published", "request": request, "measured": {"step_s": 1.0}}
                file.write(json.dumps(run) + "\n")
        done = subprocess.run([PROGRAM, "validate", str(path), "--json"], cwd=ROOT, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stderr)
    result = json.loads(done.stdout)
    seconds = {int(run["id"]): run["predicted_s"] for run in result["runs"] if run.get("predicted_s")}
    return seconds, {int(entry["id"]): entry["reason"] for entry in result["unpredicted"]}


def best_constant(values):
    """The one speed-up with the least median relative error for all of them."""
    low, high = min(values), max(values)
    tried = sorted(set(values) | {low * (high / low) ** (step / 400) for step in range(401)})
    return min(tried, key=lambda constant: statistics.median(abs(constant / value - 1) for value in values))


def quantile(values, share):
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = int(at)
    return ordered[low] + (at - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])


def ranks(values):
    order = sorted(range(len(values)), key=values.__getitem__)
    out, at = [0.0] * len(values), 0
    while at < len(order):
        end = at
        while end + 1 < len(order) and values[order[end + 1]] == values[order[at]]:
            end += 1
        for place in order[at:end + 1]:
            out[place] = (at + end) / 2
        at = end + 1
    return out


def spearman(left, right):
    if len(left) < 3 or len(set(left)) == 1 or len(set(right)) == 1:
        return None
    return statistics.correlation(ranks(left), ranks(right))


def evaluate():
    """All pairs, each with what was predicted or why not."""
    mapping = json.loads(MAP.read_text())
    recipes = known_names("precisions")
    pairs = read_pairs(published_file())
    asked, places = [], {}
    for pair in pairs:
        made = requests_of(pair, mapping, recipes)
        if isinstance(made, str):
            pair["reason"] = made
            continue
        for which, request in zip(("slow_s", "fast_s"), made):
            text = json.dumps(request, sort_keys=True)
            if text not in places:
                places[text] = len(asked)
                asked.append(request)
            pair[which] = places[text]
    seconds, reasons = predict(asked)
    for pair in pairs:
        if "slow_s" not in pair:
            continue
        for which in ("slow_s", "fast_s"):
            if pair[which] in reasons:
                pair["reason"] = "refused: " + reasons[pair[which]].splitlines()[0]
        if "reason" not in pair:
            pair["slow_s"], pair["fast_s"] = seconds[pair["slow_s"]], seconds[pair["fast_s"]]
            pair["predicted"] = pair["slow_s"] / pair["fast_s"]
            pair["error"] = pair["predicted"] / pair["measured"] - 1
    groups = collections.defaultdict(list)
    for pair in pairs:
        if "predicted" in pair and "apart" not in pair:
            groups[pair["card"], pair["pair"]].append(pair)
    for members in groups.values():
        constant = best_constant([pair["measured"] for pair in members])
        for pair in members:
            pair["constant"] = constant
    for name, members in groups.items():
        for family in {pair["family"] for pair in members}:
            alike = [pair for pair in members if pair["family"] != family]
            alike = alike or [pair for key, others in groups.items() if key[1] == name[1]
                              for pair in others if pair["family"] != family]
            for pair in members:
                if pair["family"] == family and alike:
                    pair["blind"] = statistics.median(other["measured"] for other in alike)
    return pairs


def counted(pairs):
    return [pair for pair in pairs if "apart" not in pair]


def figures(pairs):
    done = [pair for pair in counted(pairs) if "predicted" in pair]
    if not done:
        return None
    errors = [abs(pair["error"]) for pair in done]
    constant = [abs(pair["constant"] / pair["measured"] - 1) for pair in done]
    blind = [abs(pair["blind"] / pair["measured"] - 1) for pair in done if "blind" in pair]
    return {"pairs": len(done), "blind_median": 100 * statistics.median(blind) if blind else None,
            "blind_p90": 100 * quantile(blind, 0.9) if blind else None,
            "median": 100 * statistics.median(errors), "p90": 100 * quantile(errors, 0.9),
            "bias": 100 * statistics.median(pair["error"] for pair in done),
            "constant_median": 100 * statistics.median(constant), "constant_p90": 100 * quantile(constant, 0.9),
            "spearman": spearman([pair["predicted"] for pair in done], [pair["measured"] for pair in done])}


BEGIN, END = "<!-- tables: tools/published_speedups.py --write -->", "<!-- end of tables -->"
HEAD = ["| | pairs | median error | 90th percentile | bias | constant: median | 90th percentile | Spearman |",
        "|---|---|---|---|---|---|---|---|"]


def line(name, f):
    rank = "" if f["spearman"] is None else f"{f['spearman']:.2f}"
    return (f"| {name} | {f['pairs']} | {f['median']:.1f}% | {f['p90']:.1f}% | {f['bias']:+.1f}% | {f['constant_median']:.1f}% | "
            f"{f['constant_p90']:.1f}% | {rank} |")


def table(pairs, by, figures=figures, line=line, head=HEAD):
    groups = collections.defaultdict(list)
    for pair in pairs:
        groups[by(pair)].append(pair)
    found = [(name, figures(members)) for name, members in groups.items()]
    return head + [line(name, f) for name, f in sorted(found) if f]


def described(p):
    said = p.get("reason") or (f"{p['predicted']:.2f} ({100 * p['error']:+.0f}%) "
                               f"{p['slow_s'] * 1e3:.1f} -> {p['fast_s'] * 1e3:.1f} ms")
    return (f"{p['family']:18} {p['model'][:14]:14} {p['variant'][:8]:8} {p['framework'][:12]:12} {p['version'][-14:]:14} "
            f"{p['card']:16} x{p['gpus']:2} b{p['batch']:6} {p['pair']:17} {p['measured']:.2f}  {said}")


def repeats(pairs):
    """Pairs of one setting that was published more than once: how well do its other publications predict each?"""
    settings = collections.defaultdict(list)
    for pair in counted(pairs):
        if "predicted" in pair:
            fields = ("source", "model", "variant", "input", "framework", "jit", "gpus", "batch", "pair")
            settings[(*(pair[field] for field in fields), pair["card"].rsplit("-", 1)[0])].append(pair)
    several = [members for members in settings.values() if len(members) > 1]
    if not several:
        return None
    others = [abs(statistics.median(one["measured"] for one in members if one is not pair) / pair["measured"] - 1)
              for members in several for pair in members]
    ours = [abs(pair["error"]) for members in several for pair in members]
    return {"settings": len(several), "pairs": len(others), "median": 100 * statistics.median(others), "p90": 100 * quantile(others, 0.9),
            "ours_median": 100 * statistics.median(ours), "ours_p90": 100 * quantile(ours, 0.9)}


def set_apart(pairs):
    """What is predicted but not counted, by reason, and all pairs together as if it were."""
    groups = collections.defaultdict(list)
    for pair in pairs:
        if "predicted" in pair:
            groups["all, with what is counted"].append(abs(pair["error"]))
            if "apart" in pair:
                groups[pair["apart"]].append(abs(pair["error"]))
    if len(groups) < 2:
        return []
    rows = [f"| {reason} | {len(errors)} | {100 * statistics.median(errors):.1f}% | {100 * quantile(errors, 0.9):.1f}% |"
            for reason, errors in sorted(groups.items(), key=lambda item: len(item[1]))]
    return ["Predicted, but not counted above or below (the rules are at the top of the page):", "",
            "| | pairs | median error | 90th percentile |", "|---|---|---|---|", *rows, ""]


def is_amp(pair):
    return pair["fast"].startswith("amp")


def tables(pairs):
    amp, pure = [p for p in pairs if is_amp(p)], [p for p in pairs if not is_amp(p)]
    lines = []
    for title, group in (("AMP", amp), ("Pure 16 bit", pure)):
        total = figures(group)
        if not total:
            continue
        lines += [f"## {title}", ""] + HEAD + [line("all", total)]
        own = figures([pair for pair in group if pair["framework"].startswith("PyTorch")])
        if own and own["pairs"] < total["pairs"]:
            lines += [line("of these, PyTorch", own)]
        lines += [""]
        lines += set_apart(group)
        again = repeats(group)
        if again:
            lines += [f"{again['settings']} settings (source, model, framework, GPU, their number, batch, precisions) were published more than once, "
                      f"{again['pairs']} pairs. Each predicted by the median of the others of its setting: median {again['median']:.1f}%, "
                      f"90th percentile {again['p90']:.1f}%. Predicted by precog: {again['ours_median']:.1f}% and {again['ours_p90']:.1f}%.", ""]
        if total["blind_median"] is not None:
            lines += ["The same rule of thumb for a family of models that it has not seen (the median speed-up of the other families "
                      "on that GPU): "
                      f"median {total['blind_median']:.1f}%, 90th percentile {total['blind_p90']:.1f}%.", ""]
        for name, by in (("precision pair", lambda p: p["pair"]), ("GPU", lambda p: p["card"]),
                         ("model family", lambda p: p["family"]), ("framework", lambda p: p["framework"]),
                         ("number of GPUs", lambda p: f"{int(p['gpus']):2}"), ("source", lambda p: p["source"])):
            lines += [f"By {name}:", ""] + table(group, by) + [""]
    lines += ["## Not predicted", "", "| reason | pairs |", "|---|---|"]
    reasons = collections.Counter(("AMP: " if is_amp(p) else "pure: ") + p["reason"] for p in pairs if "reason" in p)
    lines += [f"| {reason} | {count} |" for reason, count in reasons.most_common()]
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    if not pathlib.Path(PROGRAM).is_file():
        sys.exit(f"{PROGRAM} is not there: build it, or let PRECOG name it")
    if published_file() is None:
        sys.exit("PRECOG_REFERENCE_DATA is not set, or holds no published/published_dl.csv.gz")
    pairs = evaluate()
    if arguments.json:
        arguments.json.write_text(json.dumps(pairs, indent=1))
    if arguments.list:
        for pair in sorted(pairs, key=lambda p: [p[field] for field in ("family", "card", "framework", "version", "batch", "gpus")]):
            print(described(pair))
    made = "\n".join(tables(pairs))
    if arguments.write:
        before, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{made}\n\n{END}{rest.split(END)[1]}")
    else:
        print(made)


if __name__ == "__main__":
    main()
