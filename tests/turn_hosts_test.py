"""tools/turn_hosts.py: the host of one turn, by the anchors beside its steps."""
import pathlib
import random
import statistics
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import turn_hosts  # noqa: E402


def run(model, anchors, step_s=1.0, mode="eager", name="a"):
    return {"id": name, "request": {"model": {"graph": model}, "mode": mode}, "measured": {"step_s": step_s, "anchors_s": anchors}}


class TurnHosts(unittest.TestCase):
    def test_steps_have_no_part_in_it(self):
        few = turn_hosts.anchors([run("a", [1.0, 2.0]), run("b", [3.0]), run("a", [4.0])])
        self.assertEqual(list(few.values()), [[1.0, 2.0, 4.0], [3.0]])
        self.assertEqual(few, turn_hosts.anchors([run("a", [1.0, 2.0], 9.0), run("b", [3.0], 9.0), run("a", [4.0], 9.0)]))

    def test_a_compiled_row_is_a_turn(self):
        self.assertEqual(len(turn_hosts.anchors([run("a", [1.0], mode="compile", name="x"), run("a", [2.0], mode="compile", name="y")])), 2)

    def test_steady_readings_count_in_full(self):
        ratios = turn_hosts.ratios({"slow": [1.1, 1.1], "usual": [1.0, 1.0], "also": [1.0, 1.0], "fast": [0.9, 0.9]})
        self.assertAlmostEqual(ratios["slow"], 1.1, 6)
        self.assertAlmostEqual(ratios["fast"], 0.9, 6)
        self.assertEqual(ratios["usual"], 1.0)

    def test_scatter_alone_says_nothing_of_turns(self):
        draw = random.Random(1)
        ratios = turn_hosts.ratios({turn: [draw.lognormvariate(0, 0.1) for _ in range(12)] for turn in range(20)})
        self.assertLess(max(abs(ratio - 1) for ratio in ratios.values()), 0.03)

    def test_between_the_two_a_share(self):
        draw = random.Random(2)
        truth = {turn: draw.lognormvariate(0, 0.07) for turn in range(200)}
        found = {turn: [level * draw.lognormvariate(0, 0.12) for _ in range(12)] for turn, level in truth.items()}
        ratios = turn_hosts.ratios(found)
        off = lambda guess: statistics.mean((guess[turn] / truth[turn] - 1) ** 2 for turn in truth)
        self.assertLess(off(ratios), off({turn: statistics.median(own) for turn, own in found.items()}))
        self.assertLess(off(ratios), 0.5 * off(dict.fromkeys(truth, 1.0)))

    def test_against_another_sittings_anchors(self):
        ratios = turn_hosts.ratios({"a": [2.2, 2.2], "b": [2.2, 2.2]}, 2.0)
        self.assertAlmostEqual(ratios["a"], 1.1, 6)

    def test_no_anchors_no_turns(self):
        self.assertEqual(turn_hosts.ratios(turn_hosts.anchors([{"id": "a", "request": {"model": "bert"}, "measured": {"step_s": 1}}])), {})

    def visited(self, name, visits, model="a"):
        """A row whose visits had these (step, anchor), two blocks each."""
        found = run(model, [anchor for _, anchor in visits], name=name)
        found["measured"]["block_means_s"] = [step for step, _ in visits for _ in range(2)]
        return found

    def test_visits_that_follow_their_anchors_share_them(self):
        draw = random.Random(3)
        rows = []
        for index in range(60):
            level, slow = draw.lognormvariate(0, 1), [draw.lognormvariate(0, 0.1) for _ in range(6)]
            rows.append(self.visited(str(index), [(level * one ** 0.6, one) for one in slow]))
        self.assertAlmostEqual(turn_hosts.shared(rows), 0.6, 6)
        ratios = turn_hosts.row_ratios(rows, {turn_hosts.turn(rows[0]): 1.1})
        middle = statistics.median(anchor for row in rows for anchor in row["measured"]["anchors_s"])
        own = statistics.median(rows[7]["measured"]["anchors_s"]) / middle
        self.assertAlmostEqual(ratios["7"], 1.1 * own ** 0.6, 6)

    def test_visits_that_do_not_follow_them_share_nothing(self):
        draw = random.Random(4)
        rows = [self.visited(str(index), [(draw.lognormvariate(0, 0.1), draw.lognormvariate(0, 0.1)) for _ in range(6)]) for index in range(200)]
        self.assertLess(turn_hosts.shared(rows), 0.1)
        against = [self.visited("a", [(1.0, 1.0), (0.9, 1.1)])]
        self.assertEqual(turn_hosts.shared(against), 0.0)

    def test_how_long_a_row_takes_has_no_part_in_its_ratio(self):
        few = [self.visited("a", [(1.0, 1.0), (1.1, 1.1)]), self.visited("b", [(1.0, 1.2), (1.2, 1.4)])]
        longer = [self.visited("a", [(1.0, 1.0), (1.1, 1.1)]), self.visited("b", [(9.0, 1.2), (10.8, 1.4)])]
        by_turn = {turn_hosts.turn(few[0]): 1.0}
        for row, ratio in turn_hosts.row_ratios(few, by_turn).items():
            self.assertAlmostEqual(turn_hosts.row_ratios(longer, by_turn)[row], ratio, 9)

    def test_a_row_visited_once_is_its_turns(self):
        rows = [self.visited("a", [(1.0, 1.3)]), self.visited("b", [(1.0, 1.0), (1.1, 1.1)])]
        self.assertEqual(turn_hosts.row_ratios(rows, {turn_hosts.turn(rows[0]): 1.07})["a"], 1.07)

    def test_every_time_of_a_description_and_nothing_else(self):
        host = {"name": "h", "forward": {"view": {"value": "4 us", "source": "s"}}, "step": {"value": "500 us", "source": "s"},
                "memory_bandwidth": {"value": "100 GB/s", "source": "s"}, "sources": {"s": "measured: 7 us"}}
        self.assertEqual(turn_hosts.scaled(host, 1.5), {
            "name": "h", "forward": {"view": {"value": "6 us", "source": "s"}}, "step": {"value": "750 us", "source": "s"},
            "memory_bandwidth": {"value": "100 GB/s", "source": "s"}, "sources": {"s": "measured: 7 us"}})


if __name__ == "__main__":
    unittest.main()
