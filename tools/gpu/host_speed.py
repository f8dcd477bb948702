"""How fast the host is while a campaign of steps runs: what `precog host` measures, a second at a time, in some of its processes."""
import json
import os
import statistics

import in_package  # noqa: F401
from precog import hosting

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def reference():
    with open(os.path.join(ROOT, "data", "hosts", "%s.json" % hosting.REFERENCE)) as file:
        return json.load(file)


def now(device, anchor):
    """Phase -> how long `precog host`'s stacks take here over what they took on the reference machine; the anchors before and after."""
    before = [anchor() for _ in range(3)]
    found = hosting.ratios(device, reference()["reference"], 1.0, lambda *said: None)
    device.free()
    return {**found, "anchor_s": statistics.median(before + [anchor() for _ in range(3)])}


def one_ratio(found, there):
    """Of all phases together. They differ by which cores their threads run on at the moment; over a sitting that evens out."""
    weight = {phase: sum(taken[phase] for taken in there.values()) for phase in hosting.PHASES}
    return sum(found[phase] * weight[phase] for phase in weight) / sum(weight.values())


def write(path, speeds, name, machine, anchors=()):
    """The host's description over a whole sitting, by its own stacks: the steps themselves have no part in it. A machine of one kind has one speed, and it wanders: each
    moment's ratio is brought from its own anchor to the median of the `anchors` timed beside all the steps, of which there are many more."""
    speeds = [one for one in speeds if one]
    if not speeds:
        return
    first = reference()
    ratios = [one_ratio(one, first["reference"]) for one in speeds]
    usual = statistics.median(anchors) if anchors else None
    brought = [ratio * usual / one["anchor_s"] if usual else ratio for ratio, one in zip(ratios, speeds)]
    found = statistics.median(brought)
    host = hosting.scaled(first, dict.fromkeys(hosting.PHASES, found), name, machine)
    host["sources"]["stacks"] += "; the median of %d times in one sitting, all phases together: %s" % (len(speeds), ", ".join("%.2f" % ratio for ratio in ratios))
    if usual:
        host["sources"]["stacks"] += "; each brought from the anchor beside it (%s ms) to the median of %d beside the steps (%.2f ms)" % (
            ", ".join("%.2f" % (one["anchor_s"] * 1e3) for one in speeds), len(anchors), usual * 1e3)
    with open(path, "w") as file:
        file.write(hosting.host_text(host))
