"""The host turn by turn: how fast the machine was while one process of a campaign measured, from the anchors beside its steps alone.

A campaign's host.json describes a whole sitting. Within it the machine's speed differs from turn to turn (tools/gpu/turns.py: a process, a
model), and the anchors timed between a turn's steps (tools/gpu/host_speed.py) say by how much: docs/decisions/0025.
The steps themselves have no part in it.
"""
import math
import statistics

MEDIAN = math.pi / 2  # the variance of a median over that of a mean, of normal readings
MAD = 1.4826          # and their standard deviation over the median of absolute deviations


def anchors(runs):
    """Turn (the model; of compiled steps the row) -> its anchors in seconds, of measured runs in the order of their files."""
    out = {}
    for run in runs:
        got = run["measured"]
        own = got.get("anchors_s") or ([got["anchor_s"]] if got.get("anchor_s") else [])
        if own:
            out.setdefault(turn(run), []).extend(own)
    return out


def turn(run):
    eager = run["request"].get("mode", "eager") == "eager"
    return str(run["request"]["model"]) if eager else run["id"]


def ratios(found, usual=None):
    """Turn -> the machine's time there over the sitting's. A turn's median anchor over the sitting's (`usual`, the median of all), each by as much as anchors can
    tell turns apart: the share of its variance that is not the readings' own scatter. A turn without anchors is not named."""
    logs = {name: [math.log(value) for value in own] for name, own in found.items()}
    if not logs:
        return {}
    middle = math.log(usual) if usual else statistics.median(value for own in logs.values() for value in own)
    medians = {name: statistics.median(own) for name, own in logs.items()}
    number = sum(len(own) for own in logs.values())
    scatter = (MAD * statistics.median(abs(value - medians[name]) for name, own in logs.items() for value in own)) ** 2
    scatter *= number / max(number - len(logs), 1)  # each turn's own median was taken off
    noise = {name: MEDIAN * scatter / len(own) for name, own in logs.items()}
    apart = max(0.0, statistics.mean((value - middle) ** 2 for value in medians.values()) - statistics.mean(noise.values()))
    return {name: math.exp(apart / (apart + noise[name]) * (value - middle)) if apart else 1.0 for name, value in medians.items()}


def scaled(figures, ratio):
    """A host's description with every time of it times `ratio`."""
    out = {}
    for key, figure in figures.items():
        if isinstance(figure, dict) and key not in ("sources", "reference"):
            text = figure.get("value")
            timed = isinstance(text, str) and text.endswith(" us")
            out[key] = {**figure, "value": "%.4g us" % (float(text[:-3]) * ratio)} if timed else scaled(figure, ratio)
        else:
            out[key] = figure
    return out
