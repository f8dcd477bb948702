"""tools/gpu/turns.py: who measures is alone, and one that crashes or hangs costs nobody else anything."""
import json
import os
import pathlib
import sys
import tempfile
import textwrap
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools" / "gpu"))
import turns  # noqa: E402

WORKER = textwrap.dedent("""
    import sys, threading, time
    sys.path.insert(0, %r)
    import turns
    kind, ticks = sys.argv[1:]
    def tick():
        with open(ticks, "a") as file:
            while True:
                file.write("%%s %%.6f\\n" %% (kind, time.time()))
                file.flush()
                time.sleep(0.005)
    threading.Thread(target=tick, daemon=True).start()
    worker = turns.Worker()
    time.sleep(0.2)
    if kind == "crashes":
        raise SystemExit("as it must")
    if kind == "turnless":
        worker.tell(name=kind)
        worker.tell(done=True)
        raise SystemExit(0)
    if kind.startswith("again"):
        worker.tell(first=time.time(), share=worker.turn())
        time.sleep(0.3)
    share = worker.turn()
    begun = time.time()
    time.sleep(100 if kind == "hangs" else 0.3)
    worker.tell(name=kind, begun=begun, ended=time.time(), share=share, much="x" * 100000)
    worker.tell(done=True)
    time.sleep(0.3)
""" % str(ROOT / "tools" / "gpu"))

TURNS = {"turnless": (), "again a": (3.0, 1.0), "again b": (3.0, 1.0)}


def run(kinds, budget_s):
    """What was said, what came with the seconds that had gone by then (`at`), and everybody's ticks."""
    said, told, started = [], [], time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        script, ticks = os.path.join(folder, "worker.py"), os.path.join(folder, "ticks")
        pathlib.Path(script).write_text(WORKER)
        waiting = [turns.Job(kind, [script, kind, ticks], turns=TURNS.get(kind, (1.0,))) for kind in kinds]
        turns.run(waiting, budget_s, 3, lambda job, message: told.append((job.label, {**message, "at": time.perf_counter() - started})), said.append)
        lines = [line.split() for line in pathlib.Path(ticks).read_text().splitlines()]
    return said, told, [(kind, float(at)) for kind, at in (line for line in lines if len(line) == 2)]


class Turns(unittest.TestCase):
    def test_who_measures_is_alone(self):
        said, told, ticks = run(["a", "b", "c", "d"], 60)
        self.assertEqual(sorted(label for label, _ in told), ["a", "b", "c", "d"], said)
        for label, message in told:
            others = [kind for kind, at in ticks if kind != label and message["begun"] < at < message["ended"]]
            self.assertEqual(others, [], "%s was not alone" % label)
            self.assertGreater(sum(kind == label and message["begun"] < at < message["ended"] for kind, at in ticks), 5)
        self.assertGreater(min(message["share"] for _, message in told), 5)
        self.assertEqual(json.dumps(said), "[]")

    def test_one_that_crashes_is_survived(self):
        said, told, _ = run(["crashes", "a"], 60)
        self.assertEqual([label for label, _ in told], ["a"])
        self.assertTrue(any("crashes ended with 1: as it must" in text for text in said), said)

    def test_one_without_a_turn_takes_no_share(self):
        said, told, _ = run(["turnless", "turnless", "turnless", "a"], 60)
        self.assertEqual(sorted(label for label, _ in told), ["a", "turnless", "turnless", "turnless"])
        self.assertGreater(next(message["share"] for label, message in told if label == "a"), 40)
        self.assertEqual(json.dumps(said), "[]")

    def test_who_asks_again_waits_for_all_the_others(self):
        said, told, _ = run(["again a", "again b"], 60)
        self.assertEqual(["first" in message for _, message in told], [True, True, False, False], said)
        for turn in (told[:2], told[2:]):  # who comes first in each is the machine's affair
            self.assertEqual(sorted(label for label, _ in turn), ["again a", "again b"])
        for (_, message), part in ((told[0], 3 / 8), (told[2], 1 / 2)):  # of what was left, by the weights of the turns to come
            self.assertLessEqual(message["share"], 60 * part)
            self.assertGreaterEqual(message["share"] + 0.001, (60 - message["at"]) * part)  # told to a millisecond
        self.assertEqual(json.dumps(said), "[]")

    def test_the_budget_ends_one_that_hangs(self):
        said, told, _ = run(["hangs", "a"], 4)
        self.assertTrue(any(text.startswith("budget: hangs") for text in said), said)


if __name__ == "__main__":
    unittest.main()
