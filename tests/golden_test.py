"""What each stage makes of four small jobs, as text: tests/goldens/JOB/job.json and, beside it, one file per stage.

`make goldens` rewrites the expected texts; the diff is then read by a person. Graphs are kept whole for the first two
stages of every job and for all stages of one; elsewhere only how often each operator or kernel occurs is kept, so that a
change of numbering does not drown a change of substance. What depends on coefficients is kept for one job only.
"""

import collections
import difflib
import json
import pathlib
import re
import unittest

import program

GOLDENS = pathlib.Path(__file__).resolve().parent / "goldens"
WHOLE_JOB = "bert_amp_bf16"


def count_operators(dump):
    """A graph's text as counts: phase, operator, type of its arithmetic."""
    counts, phase = collections.Counter(), ""
    for line in dump.splitlines():
        if line.startswith("== "):
            phase = line[3:]
            continue
        found = re.match(r"(?:%.* = )?([\w.]+)\(", line)
        if found:
            math = re.search(r"math=(\w+)", line)
            counts[f"{phase} {found.group(1)} {math.group(1) if math else '-'}"] += 1
    return as_lines(counts)


def count_kernels(dump):
    """The kernel program's text as counts: calls by phase and operator, kernels by name, class and type."""
    counts = collections.Counter()
    for line in dump.splitlines():
        found = re.match(r"  (\S+) \[(\w+)[^\]]*\] (\w+)", line)
        counts["kernel " + " ".join(found.groups()) if found else "call " + line.strip()] += 1
    return as_lines(counts)


def count_tasks(dump):
    """Tasks by repetition of the step, queue and what they do."""
    return as_lines(collections.Counter(" ".join(line.split()[:4]) for line in dump.splitlines()))


def last_starts(dump):
    """Of a simulated timeline: how many tasks each queue ran, and when the last of them began."""
    queues = {}
    for line in dump.splitlines():
        queue, start = line.split()[2], float(re.search(r" at ([0-9.]+) us", line).group(1))
        tasks, latest = queues.get(queue, (0, 0.0))
        queues[queue] = tasks + 1, max(latest, start)
    return "".join(f"{queue}: {tasks} tasks, the last begins at {latest:.1f} us\n" for queue, (tasks, latest) in sorted(queues.items()))


def rounded(value):
    """Nine digits, so that another compiler's last bit is no difference."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def report_text(dump):
    return json.dumps(rounded(json.loads(dump)), indent=1) + "\n"


def as_lines(counts):
    return "".join(f"{count:4d} {key}\n" for key, count in sorted(counts.items()))


def whole(dump):
    return dump


VIEWS = {"frontend": whole, "precision": whole, "training": count_operators, "parallel": count_operators, "kernel": count_kernels}
WHOLE_VIEWS = {**{stage: whole for stage in VIEWS}, "cost": whole, "schedule": count_tasks, "sim": last_starts, "memory": whole,
               "report": report_text}


def jobs():
    return sorted(path.parent.name for path in GOLDENS.glob("*/job.json"))


def actual(job):
    """Every golden file of a job, by name, as the program says it now."""
    texts = {}
    for stage, view in (WHOLE_VIEWS if job == WHOLE_JOB else VIEWS).items():
        done = program.run("predict", GOLDENS / job / "job.json", "--dump-after", stage)
        if done.returncode != 0:
            raise AssertionError(f"{job}, {stage}: exit {done.returncode}: {done.stderr}")
        texts[f"{stage}.txt"] = view(done.stdout)
    return texts


class Goldens(unittest.TestCase):
    def test_every_job(self):
        self.assertEqual(jobs(), ["bert_amp_bf16", "gpt2_amp_fp16", "qwen_fp32", "resnet18_fp32_default"])
        for job in jobs():
            texts = actual(job)
            kept = {path.name for path in (GOLDENS / job).glob("*.txt")}
            self.assertEqual(kept, set(texts), f"{job}: run `make goldens`")
            for name, text in texts.items():
                with self.subTest(f"{job}/{name}"):
                    expected = (GOLDENS / job / name).read_text()
                    if text != expected:
                        difference = list(difflib.unified_diff(expected.splitlines(), text.splitlines(), "expected", "now", lineterm="", n=1))
                        self.fail("\n".join(difference[:40]) + f"\n({len(difference)} lines of difference; `make goldens` accepts them)")

    def test_the_goldens_say_what_they_are_for(self):
        """A golden that was rewritten carelessly still has to show what its job was chosen for."""
        def read(job, stage):
            return (GOLDENS / job / f"{stage}.txt").read_text()

        self.assertIn("cast.linear", read("bert_amp_bf16", "precision"))
        self.assertIn("all_reduce", read("bert_amp_bf16", "parallel"))
        self.assertNotIn("all_reduce", read("bert_amp_bf16", "training"))
        self.assertIn("optimizer", read("gpt2_amp_fp16", "training"))
        self.assertRegex(read("gpt2_amp_fp16", "training"), r"unscale|isfinite|non_finite")
        self.assertRegex(read("resnet18_fp32_default", "precision"), r"conv\w*\(.*math=tf32")
        self.assertNotRegex(read("resnet18_fp32_default", "precision"), r"linear\(.*math=tf32")
        self.assertNotIn("tf32", read("qwen_fp32", "precision"))
        self.assertNotIn("flash", read("qwen_fp32", "precision"))
        for job in jobs():
            for path in (GOLDENS / job).glob("*.txt"):
                self.assertLess(path.stat().st_size, 60_000, path)
                self.assertNotIn("broken:", path.read_text(), path)


if __name__ == "__main__":
    unittest.main()
