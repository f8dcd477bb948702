"""tools/gpu/compiled_steps.py: in which order a list's models are compiled, and that they are of the list."""
import collections
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools" / "gpu"))
import compiled_steps  # noqa: E402

TIMED, PEAKS = ["amp-bf16", "bf16", "tf32"], ["fp32", "fp16", "amp-fp16"]  # as tools/gpu/measure_list asks


def plan(name):
    return compiled_steps.ordered(compiled_steps.LISTS[name], compiled_steps.FIRST.get(name, 0), compiled_steps.SLOW.get(name, 0), TIMED, PEAKS)


class Plan(unittest.TestCase):
    def test_every_model_has_every_precision_once(self):
        for name, models in compiled_steps.LISTS.items():
            pairs = collections.Counter((job["model"], job["precision"]) for job in plan(name))
            self.assertEqual(len(pairs), 6 * len(models), name)
            self.assertEqual(set(pairs.values()), {1}, name)

    def test_early_models_go_through_all_precisions_first(self):
        jobs = plan("eleventh")
        early = jobs[:6 * compiled_steps.FIRST["eleventh"]]
        for precision in TIMED + PEAKS:
            self.assertGreaterEqual(sum(job["precision"] == precision for job in early), 3, precision)
        self.assertEqual([job["precision"] for job in early[:8]], ["fp32"] * 4 + ["fp16"] * 4)
        self.assertEqual([job["peaks"] for job in early], [True] * 12 + [False] * 12)

    def test_slow_models_come_last(self):
        self.assertEqual({job["model"] for job in plan("eleventh")[-18:]}, set(compiled_steps.ELEVENTH[-3:]))

    def test_a_drawn_list_compiles_models_that_have_graphs(self):
        for name in ("ninth", "tenth", "eleventh"):
            (folder,) = (ROOT / "data" / "measured").glob(f"*-h200-{name}")
            graphs = {path.name.removesuffix(".precog.json.zst") for path in (folder / "graphs").iterdir()}
            self.assertEqual(len(graphs), 20, name)
            self.assertLessEqual({model[0].removeprefix("garden:") for model in compiled_steps.LISTS[name]}, graphs)


if __name__ == "__main__":
    unittest.main()
