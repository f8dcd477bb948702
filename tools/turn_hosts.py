"""The host turn by turn: how fast the machine was while one process of a campaign measured, from the anchors beside its steps alone.

A campaign's host.json describes a whole sitting. Within it the machine's speed differs from turn to turn (tools/gpu/turns.py: a process, a
model), and the anchors timed between a turn's steps (tools/gpu/host_speed.py) say by how much: docs/decisions/0025.
The steps themselves have no part in it. A row that was visited several times has a ratio of its own beside its turn's, by the anchors of its own visits: how much of an
anchor's deviation a visit shares is what the visits of each row say, among themselves (docs/decisions/0028); how long a step takes has no part in that either.
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


def visits(run):
    """[(seconds of a step in one visit of the row, its anchor)]: blocks were timed as often in each visit."""
    got = run["measured"]
    own, blocks = got.get("anchors_s") or [], got.get("block_means_s") or []
    each = len(blocks) // len(own) if own else 0
    return [(statistics.median(blocks[index * each:(index + 1) * each]), anchor) for index, anchor in enumerate(own)] if each else []


def shared(runs):
    """How much of what an anchor says of a visit the visit shares: the slope of a visit's deviation from its row's mean over its anchor's, of all rows visited more
    than once; between 0 and 1."""
    over, squares = 0.0, 0.0
    for run in runs:
        both = [[math.log(value) for value in pair] for pair in visits(run)]
        means = [statistics.mean(values) for values in zip(*both)]
        over += sum((step - means[0]) * (anchor - means[1]) for step, anchor in both)
        squares += sum((anchor - means[1]) ** 2 for _, anchor in both)
    return min(1.0, max(0.0, over / squares)) if squares else 0.0


def row_ratios(runs, by_turn):
    """Row -> its turn's ratio times what the anchors of its own visits say, where there were several: their median over the turn's, by the share of it that visits have."""
    share = shared(runs)
    medians = {name: statistics.median(own) for name, own in anchors(runs).items()}
    out = {}
    for run in runs:
        if turn(run) in by_turn:
            own = [anchor for _, anchor in visits(run)]
            apart = math.log(statistics.median(own) / medians[turn(run)]) if len(own) > 1 else 0.0
            out[run["id"]] = by_turn[turn(run)] * math.exp(share * apart)
    return out


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
