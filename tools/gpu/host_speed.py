"""How fast the host is while a campaign of steps runs: what `precog host` measures, a second at a time, in some of its processes."""
import json
import os
import statistics

import in_package  # noqa: F401
from precog import hosting
from precog.gpu import host_issue, host_stacks

MEMORY = ("peak_bytes", "reserved_bytes", "rest_bytes", "warmup_peak_bytes", "start_bytes")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def reference():
    with open(os.path.join(ROOT, "data", "hosts", "%s.json" % hosting.REFERENCE)) as file:
        return json.load(file)


class Anchor:
    """Seconds of one step of two of `precog host`'s stacks, kept ready in a process that measures something else: how fast the machine is just then.

    All phases of a step and both kinds of block, tokens under autocast and images; each stack's first step, with cold caches, does not count. Made, it leaves
    PyTorch's switches of precision changed and `bytes` on the GPU (`without`); read, neither. `phases` are the parts of the last reading."""

    STACKS = (("tokens-00", "amp-bf16"), ("images-03", "fp32"))

    def __init__(self, device):
        known = {stack.name: stack for stack in host_stacks.stacks()}
        self.device, self.phases = device, []
        device.free()
        before = device.memory()["rest_bytes"]
        self._cases = [host_issue.Case(device, known[name], precision) for name, precision in self.STACKS]
        for _ in range(2):
            self()
        device.free()
        self.bytes = device.memory()["rest_bytes"] - before

    def __call__(self):
        taken = []
        for case in self._cases:
            for _ in range(2):
                self.device.sync()
                marks = case.step()
            self.device.sync()
            case.trainer.optimizer.zero_grad(set_to_none=True)
            taken.append([end - start for start, end in zip(marks, marks[1:])])
        self.phases = [round(sum(parts), 7) for parts in zip(*taken)]  # host_issue.PHASES
        return round(sum(self.phases), 7)

    def without(self, memory):
        """What a row's memory would be if the stacks were not there."""
        return {key: max(0, memory[key] - self.bytes) for key in MEMORY if key in memory}


def now(device, anchor):
    """Phase -> how long `precog host`'s stacks take here over what they took on the reference machine; the anchors before and after. Leaves PyTorch's
    switches of precision changed."""
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
