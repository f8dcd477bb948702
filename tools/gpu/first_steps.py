#!/usr/bin/env python3
"""The first measurement campaign: what precog's predictions are fitted to (C, D) and held against (A, B).

  python3 tools/gpu/first_steps.py --out results --budget 540 --parts A
  python3 tools/gpu/first_steps.py --out results --budget 540 --parts B,C,D
  python3 tools/gpu/first_steps.py --out /tmp/dry --dry-run        tiny models on the CPU, same code, no meaning

  A  whole training steps        steps.jsonl, steps_kernels.jsonl
  B  dispatch traces             dispatch_traces.jsonl.gz
  C  host dispatch costs         host.jsonl
  D  operators on the GPU        operators.jsonl
Every file starts with a line {"meta": ...} naming machine, versions and date. Needs torch, torchvision and
transformers; downloads nothing. Lines are written as they are measured, so a run cut short keeps what it has.
"""
import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import common  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="results")
    parser.add_argument("--budget", type=float, default=540, help="seconds after which no new measurement is started")
    parser.add_argument("--parts", default="A,B,C,D")
    parser.add_argument("--only", type=lambda text: text.split(","), default=None,
                        help="part A and B: these models; part D: these families")
    parser.add_argument("--held-out", action="store_true", help="part A: the models and sizes kept back for judging")
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args()
    parts = [part.strip().upper() for part in args.parts.split(",") if part.strip()]
    known = {"A": "part_steps", "B": "part_traces", "C": "part_host", "D": "part_operators"}
    unknown = [part for part in parts if part not in known]
    if unknown:
        parser.error("unknown part %s; known: %s" % (", ".join(unknown), ", ".join(known)))
    if not args.dry_run and not common.torch.cuda.is_available():
        parser.error("no CUDA device; --dry-run goes through the same code on a CPU")
    campaign = common.Campaign(args, parts)
    campaign.say("torch %s, %s" % (campaign.meta["torch"], campaign.meta.get("gpu", {}).get("name", "dry run")))
    for part in parts:
        if campaign.clock.left() < 5:
            campaign.note("budget: part %s not run" % part)
            continue
        campaign.say("part " + part)
        # A part that breaks must not take the others with it.
        with campaign.survive("part " + part):
            __import__(known[part]).run(campaign)
    for note in campaign.notes[:25]:
        print("note:", note)
    campaign.say("done")
    return 1 if args.dry_run and any("budget" not in note for note in campaign.notes) else 0


if __name__ == "__main__":
    sys.exit(main())
