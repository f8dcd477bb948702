"""Jobs that do not fit, drawn by lot, for tools/search_plans.py. Which ones fit is the program's word, so that what is drawn may change
with it; no list of changes is looked at."""

import itertools
import json
import random
from pathlib import Path

import precog

DATA = Path(__file__).resolve().parents[1] / "data"
MODELS = {path.stem: json.loads(path.read_text()) for path in sorted((DATA / "models").glob("*.json"))}
GPUS = sorted(path.stem for path in (DATA / "gpus").glob("*.json"))
SEEDS = {"looked-at": 2611, "looked-at-too": 1118, "judged": 1921}  # to write the search with, and for its verdict
JOBS = 16

PRECISIONS = ("fp32", "tf32", "amp-bf16", "amp-bf16", "amp-fp16", "bf16", "bf16-master", "bf16-master", "fsdp-bf16", "deepspeed-bf16", "bf16-master+te-fp8-delayed")
AT_HOME = ("gtx", "rtx", "titan", "quadro")  # few of them
MOST_TOKENS = 1 << 18                        # of a GPU and micro-batch
FRUGAL = ({}, {"fsdp": "full"}, {"fsdp": "full", "tp": 8, "sp": True}, {"fsdp": "full", "cp": 8}, {"tp": 8, "sp": True, "pp": 8}, {"fsdp": "full", "offload": "optimizer"})


def fits(request):
    """Whether it does; none where there is no such job."""
    try:
        return precog.predict({**request, "fixes": False}).fits
    except precog.PrecogError:
        return None


def drawn(rng):
    """Any job, a possible one or not."""
    family = MODELS[rng.choice(list(MODELS))]["family"] if rng.random() < 0.5 else rng.choice(sorted({one["family"] for one in MODELS.values()}))  # there are more Llamas than others
    model, gpu = rng.choice([name for name, one in MODELS.items() if one["family"] == family]), rng.choice(GPUS)
    gpus = 2 ** rng.randrange(4 if gpu.startswith(AT_HOME) else 10)
    batch, seq = 2 ** rng.randrange(11), 2 ** rng.randrange(9, 18)
    plans = [{}] * 4 + [{"fsdp": kind} for kind in ("zero1", "zero2", "full")] + [{"tp": min(8, gpus), "sp": True}, {"pp": 4}, {"tp": 2, "sp": True, "pp": 2}, {"fsdp": "zero2", "offload": "optimizer"}]
    out = {"schema": 1, "model": model, "batch": batch, "precision": rng.choice(PRECISIONS), "cluster": {"gpu": gpu, "gpus": gpus}, "global_batch": batch * gpus,
           "mode": rng.choice(("eager", "eager", "eager", "compile")), "recompute": rng.choice(("none", "none", "none", "selective", "full")), "plan": rng.choice(plans)}
    if "default_seq" in MODELS[model]:
        out.update(seq=seq, batch=min(batch, 64), global_batch=min(batch, 64) * gpus)
    return out


def kept(request):
    """It does not fit, and with all that saves memory it would."""
    if request["batch"] * request.get("seq", 0) > MOST_TOKENS or fits(request) is not False:
        return False
    frugal = {**request, "batch": 1, "recompute": "full", "allocator": "expandable", **({"loss_chunks": 64} if "seq" in request else {})}
    return any(fits({**frugal, "plan": plan, "precision": request["precision"] + states}) for plan, states in itertools.product(FRUGAL, ("", "+optimizer-8bit")))


def jobs(seed, numbers=()):
    """By name: those of these numbers, from 1 on; all, where there are none."""
    out = {}
    for number in numbers or range(1, JOBS + 1):
        rng = random.Random(f"{seed}/{number}")
        request = next(one for one in iter(lambda rng=rng: drawn(rng), None) if kept(one))
        out[f"{number}-{request['model']}-{request['cluster']['gpus']}"] = request
    return out
