#!/usr/bin/env python3
"""Published data-parallel runs of CNNs and BERT on several GPUs against predicted step times and scaling.

  PRECOG_REFERENCE_DATA=DIR tools/published_scaling.py [--write] [--list] [--json FILE]

DIR holds published/published_dl.csv.gz; of it the rows of NVIDIA's DeepLearningExamples and of DLPerf, one node and several.
tools/published_models.json says which model, GPU and settings a row means, as for tools/published_speedups.py, whose reading of
rows this shares. --write puts the tables into docs/published_scaling.md (between its two marks); --list prints every row.

Runs whose source sums gradients in another way than the one that is modelled (OTHER_KINDS) are predicted and shown by themselves.
A configuration is everything but the number of GPUs, at one batch per GPU. Its scaling efficiency on N GPUs is its rate there
over N times its rate on one; the error of a predicted one is in points. Rows without a time of one GPU have a step time only.
"""
import argparse
import collections
import csv
import gzip
import json
import pathlib
import statistics
import sys

import published_speedups as published

PAGE = published.ROOT / "docs" / "published_scaling.md"
SOURCES = ("NVIDIA/DeepLearningExamples", "Oneflow-Inc/DLPerf")
FAMILIES = ("ResNet-50", "BERT", "medical U-Net 2D", "medical U-Net 3D", "detection")  # CNNs and BERT
UNITS = ("img/s", "sent/s", "items/s", "samples/s")
# Machines as their sources describe them; elsewhere the GPU's usual one.
# Data parallelism of another kind, by the sources' own scripts: not predicted, but counted.
OTHER_KINDS = {("Oneflow-Inc/DLPerf", "TensorFlow2"): "tf.distribute: one process drives a node's GPUs and sums gradients after backward; between nodes through the hosts"}
EDR_ONE_PORT = {"network": "ib-edr", "nics_per_node": 1}  # DLPerf: eight V100 and one 100 Gb/s InfiniBand port per node


def read_rows():
    """One entry per configuration and number of GPUs; repeated rows by their median."""
    found = collections.defaultdict(list)
    with gzip.open(published.published_file(), "rt", newline="") as file:
        for row in csv.DictReader(file):
            if row["source_repo_or_paper"] not in SOURCES or "SUSPECT" in row["notes"] or "CHECK" in row["notes"] or not row["throughput"]:
                continue
            fields = {name: published.plain(row[column]) for name, column in published.COLUMNS.items()}
            fields |= {"edition": published.edition(row), "system": published.system(row), "precision": row["precision"], "unit": row["throughput_unit"],
                       "nodes": published.plain(row["num_nodes"]) or "1", "slow": row["precision"], "fast": row["precision"]}
            found[tuple(fields.items())].append(float(row["throughput"]))
    rows = [dict(key) | {"rate": statistics.median(rates)} for key, rates in found.items()]
    # The same figure in several editions of a README is one row: the last counts.
    told_anew = ("edition", "version", "mem", "system")
    kept = {}
    for row in sorted(rows, key=lambda row: (row["edition"] == "README@HEAD", row["version"])):
        kept[tuple(value for field, value in row.items() if field not in told_anew)] = row
    return list(kept.values())


def request_of(row, mapping, recipes):
    """The row's request, or the reason why there is none."""
    if row["gpus"] == "1":
        row["nodes"] = "1"
    made = published.requests_of(row, mapping, recipes)
    if isinstance(made, str):
        return made
    if row["family"] not in FAMILIES:
        return f"neither CNN nor BERT: {row['family']}"
    if row["unit"] not in UNITS:
        return f"rate in {row['unit']}"
    request = made[0]
    if request["batch"] != int(float(row["batch"])):
        return "captured for another batch"
    gpus, nodes = int(row["gpus"]), int(row["nodes"])
    if gpus > 1 and (row["source"], row["framework"]) in OTHER_KINDS:
        row["other_kind"] = OTHER_KINDS[row["source"], row["framework"]]
    if gpus % nodes:
        return "GPUs do not divide among the nodes"
    cluster = request["cluster"]
    cluster |= {"gpus": gpus, "gpus_per_node": gpus // nodes}
    if gpus == 16 and nodes == 1 and cluster["gpu"].startswith("v100-sxm2"):
        cluster["name"] = "dgx-2"
        cluster["gpu"] = "v100-sxm2-32gb"
    if row["source"] == "Oneflow-Inc/DLPerf":
        cluster.update(EDR_ONE_PORT)
    accumulation = int(float(row["accumulation"] or 1))
    if accumulation > 1:
        request["global_batch"] = request["batch"] * gpus * accumulation
    row["measured_s"] = request["batch"] * gpus * accumulation / row["rate"]
    return request


def evaluate():
    mapping = json.loads(published.MAP.read_text())
    recipes = published.known_names("precisions")
    rows, asked, places = read_rows(), [], {}
    for row in rows:
        made = request_of(row, mapping, recipes)
        if isinstance(made, str):
            row["reason"] = made
            continue
        text = json.dumps(made, sort_keys=True)
        if text not in places:
            places[text] = len(asked)
            asked.append(made)
        row["place"] = places[text]
    seconds, reasons = published.predict(asked)
    for row in rows:
        if "place" not in row:
            continue
        if row["place"] in reasons:
            row["reason"] = "refused: " + reasons[row["place"]].splitlines()[0]
            continue
        row["predicted_s"] = seconds[row["place"]]
        row["error"] = row["predicted_s"] / row["measured_s"] - 1
    alone = {}
    apart = ("gpus", "nodes", "rate", "measured_s", "predicted_s", "error", "place", "reason", "other_kind")
    key = lambda row: tuple(sorted((field, value) for field, value in row.items() if field not in apart))
    for row in rows:
        if row["gpus"] == "1" and "predicted_s" in row:
            alone[key(row)] = row
    for row in rows:
        one = alone.get(key(row))
        if one and int(row["gpus"]) > 1 and "predicted_s" in row:
            row["efficiency"] = one["measured_s"] / row["measured_s"]
            row["predicted_efficiency"] = one["predicted_s"] / row["predicted_s"]
            row["points"] = 100 * (row["predicted_efficiency"] - row["efficiency"])
    return rows


def judged(rows):
    """Rows of several GPUs whose data parallelism is the one that is modelled."""
    return [row for row in rows if int(row["gpus"]) > 1 and "other_kind" not in row]


def figures(rows):
    done = [row for row in rows if "error" in row]
    if not done:
        return None
    scaled = [row["points"] for row in done if "points" in row]
    errors = [100 * abs(row["error"]) for row in done]
    return {"rows": len(done), "mape": statistics.mean(errors), "median": statistics.median(errors),
            "bias": 100 * statistics.median(row["error"] for row in done), "scaled": len(scaled),
            "points": statistics.median(abs(value) for value in scaled) if scaled else None,
            "points_bias": statistics.median(scaled) if scaled else None,
            "within": 100 * sum(abs(value) <= 5 for value in scaled) / len(scaled) if scaled else None}


HEAD = ["| | rows | MAPE | median error | bias | with one GPU's time | efficiency: median error, points | bias | within 5 points |",
        "|---|---|---|---|---|---|---|---|---|"]
BEGIN, END = "<!-- tables: tools/published_scaling.py --write -->", "<!-- end of tables -->"


def line(name, f):
    if f["points"] is None:
        scaled = "0 | | | |"
    else:
        scaled = f"{f['scaled']} | {f['points']:.1f} | {f['points_bias']:+.1f} | {f['within']:.0f}% |"
    return f"| {name} | {f['rows']} | {f['mape']:.1f}% | {f['median']:.1f}% | {f['bias']:+.1f}% | {scaled}"


def tables(rows):
    several = judged(rows)
    lines = ["## Rows of several GPUs", ""] + HEAD
    lines += [line("all", figures(several))]
    for name, keep in (("PyTorch", lambda row: row["framework"].startswith("PyTorch")), ("one node", lambda row: row["nodes"] == "1"),
                       ("several nodes", lambda row: row["nodes"] != "1")):
        found = figures([row for row in several if keep(row)])
        lines += [line(name, found)] if found else []
    for reason in sorted({row["other_kind"] for row in rows if "other_kind" in row}):
        lines += [line(f"not among them: {reason}", figures([row for row in rows if row.get("other_kind") == reason]))]
    alone = figures([row for row in rows if row["gpus"] == "1"])
    lines += [line("beside them, rows of one GPU", alone)] if alone else []
    lines += [""]
    for name, by in (("source", lambda row: row["source"]), ("framework", lambda row: row["framework"]), ("model family", lambda row: row["family"]),
                     ("precision", lambda row: row["precision"]), ("GPU", lambda row: row["card"]),
                     ("number of GPUs", lambda row: f"{int(row['gpus']):4} on {row['nodes']} node" + ("s" if row["nodes"] != "1" else ""))):
        lines += [f"By {name}:", ""] + published.table(several, by, figures, line, HEAD) + [""]
    lines += ["## Not predicted", "", "| reason | rows |", "|---|---|"]
    reasons = collections.Counter(row["reason"] for row in several if "reason" in row)
    return lines + [f"| {reason} | {count} |" for reason, count in reasons.most_common()]


def described(row):
    said = row.get("reason")
    if not said:
        said = f"{row['measured_s'] * 1e3:8.1f} ms, predicted {row['predicted_s'] * 1e3:8.1f} ({100 * row['error']:+.0f}%)"
        if "points" in row:
            said += f"  efficiency {100 * row['efficiency']:.0f}, predicted {100 * row['predicted_efficiency']:.0f}"
    return (f"{row.get('family', ''):17} {row['model'][:14]:14} {row['framework'][:12]:12} {row['version'][-18:]:18} {row['card']:15} "
            f"{row['precision']:9} b{row['batch']:5} x{row['gpus']:4} on {row['nodes']:2} {said}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    if not pathlib.Path(published.PROGRAM).is_file():
        sys.exit(f"{published.PROGRAM} is not there: build it, or let PRECOG name it")
    if published.published_file() is None:
        sys.exit("PRECOG_REFERENCE_DATA is not set, or holds no published/published_dl.csv.gz")
    rows = evaluate()
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))
    if arguments.list:
        fields = ("family", "source", "framework", "card", "model", "version", "precision")
        for row in sorted(rows, key=lambda row: [row.get(field, "") for field in fields] + [float(row["batch"] or 0), int(row["gpus"])]):
            print(described(row))
    made = "\n".join(tables(rows))
    if arguments.write:
        before, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{made}\n\n{END}{rest.split(END)[1]}")
    elif not arguments.list:
        print(made)


if __name__ == "__main__":
    main()
