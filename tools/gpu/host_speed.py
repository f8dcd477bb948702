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


def now(device):
    """Phase -> how long `precog host`'s stacks take here over what they took on the reference machine."""
    found = hosting.ratios(device, reference()["reference"], 1.0, lambda *said: None)
    device.free()
    return found


def write(path, speeds, name, machine):
    """The host's description over a whole sitting, by its own stacks: the steps themselves have no part in it."""
    speeds = [one for one in speeds if one]
    if not speeds:
        return
    found = {phase: statistics.median(one[phase] for one in speeds) for phase in speeds[0]}
    host = hosting.scaled(reference(), found, name, machine)
    host["sources"]["stacks"] += "; the median of %d times in one sitting: %s" % (
        len(speeds), "; ".join(", ".join("%s %.2f" % pair for pair in one.items()) for one in speeds))
    with open(path, "w") as file:
        file.write(hosting.host_text(host))
