"""A host from the user's own file, and a data loader: what the request may say of them and what the report answers."""

import json
import pathlib
import tempfile
import unittest

import program

JOB = {"schema": 1, "model": "resnet18", "batch": 16, "precision": "amp-bf16", "cluster": {"gpu": "h200-sxm", "gpus": 1}}
HALF = {"schema": 1, "name": "mine", "title": "mine", "extends": "h200-vm", "scale": {"value": 0.5, "source": "s"}, "sources": {"s": "measured: here"}}


class HostAndInput(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, content):
        (self.folder / name).write_text(json.dumps(content))
        return self.folder / name

    def predict(self, **changes):
        return program.run_json("predict", self.write("job.json", {**JOB, **changes}))

    def refused(self, **changes):
        done = program.run("predict", self.write("job.json", {**JOB, **changes}))
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        return done.stderr

    def test_a_hosts_file_is_a_host(self):
        self.write("mine.json", HALF)
        known, mine = self.predict(host="h200-vm"), self.predict(host="mine.json")
        self.assertAlmostEqual(mine["host_s"], known["host_s"] / 2, delta=0.001 * known["host_s"])
        self.assertEqual(mine["request"]["host"], "mine.json")  # the report's request can be asked again from the same folder
        self.assertIn({"what": "host", "kind": "measured", "source": "mine.json"},
                      [{key: entry[key] for key in ("what", "kind", "source")} for entry in mine["provenance"]])

    def test_a_wrong_hosts_file_is_named(self):
        self.assertIn("there.json", self.refused(host="there.json"))
        self.write("wrong.json", {**HALF, "extends": "h300-vm"})
        error = self.refused(host="wrong.json")
        self.assertIn("wrong.json", error)
        self.assertIn("h200-vm", error)
        self.write("list.json", [1])
        self.refused(host="list.json")

    def test_workers_that_keep_up_change_nothing(self):
        plain = self.predict()
        fed = self.predict(input={"seconds_per_batch": plain["step_s"] * 7.5, "workers": 8})
        self.assertAlmostEqual(fed["step_s"], plain["step_s"], delta=1e-9)
        self.assertEqual(fed["breakdown"]["input"], 0)

    def test_a_pipelines_first_stage_waits_for_its_batches(self):
        job = {"model": {"name": "llama3-8b", "layers": 8}, "seq": 1024, "batch": 1, "micro_batches": 8, "precision": "bf16", "cluster": {"gpu": "h100-sxm", "gpus": 4}, "plan": {"pp": 4}}
        plain = self.predict(**job)
        each = plain["step_s"] / 8
        fed = self.predict(**job, input={"seconds_per_batch": each * 7, "workers": 8})
        self.assertEqual((fed["step_s"], fed["breakdown"].get("input", 0)), (plain["step_s"], 0))
        late = self.predict(**job, input={"seconds_per_batch": each * 4, "workers": 2, "prefetch": 1})
        self.assertGreaterEqual(late["step_s"], 2 * plain["step_s"])  # twice as long for each as the pipeline
        self.assertLess(late["step_s"], 2.1 * plain["step_s"])
        self.assertAlmostEqual(late["breakdown"]["input"], late["step_s"] - plain["step_s"], delta=0.03 * plain["step_s"])
        self.assertEqual(late["bound"], "input")
        by_itself = self.predict(**job, input={"seconds_per_batch": each, "workers": 0})
        self.assertGreater(by_itself["step_s"], plain["step_s"] + 7 * each)  # every micro-batch of the first stage
        for report in (late, by_itself):
            parts = report["breakdown"]
            self.assertAlmostEqual(sum(value for value in parts.values() if not isinstance(value, dict)) + sum(parts["exposed_communication"].values()), report["step_s"], delta=1e-3 * report["step_s"])

    def test_what_prepares_a_batch_on_the_gpu_is_added(self):
        once, twice = (self.predict(input={"seconds_per_batch": 0, "workers": 1, "gpu_bytes_per_batch": bytes}) for bytes in (96e9, 144e9))
        self.assertAlmostEqual(twice["step_s"] - once["step_s"], 0.0114, delta=0.0005)  # 48 GB at 0.88 of an H200's 4.8 TB/s
        self.assertEqual(once["request"]["input"]["gpu_bytes_per_batch"], 96e9)

    def test_gradients_found_late_are_exchanged_late(self):
        job = {"batch": 512, "cluster": {"gpu": "a100-sxm-40gb", "gpus": 2}}
        at_once, late = self.predict(**job), self.predict(exchange_cycle_ms=10, **job)
        self.assertAlmostEqual(late["step_s"] - at_once["step_s"], 0.005, delta=0.0003)
        self.assertEqual(late["request"]["exchange_cycle_ms"], 10)

    def test_a_slow_loader_is_the_step(self):
        for workers, micro_batches in ((2, 1), (5, 1), (2, 4), (3, 10)):
            report = self.predict(input={"seconds_per_batch": 3.0, "workers": workers}, global_batch=16 * micro_batches)
            self.assertAlmostEqual(report["step_s"], 3.0 / workers * micro_batches, delta=2e-3 * report["step_s"])
            self.assertEqual(report["bound"], "input")
            parts = [value if not isinstance(value, dict) else sum(value.values()) for value in report["breakdown"].values()]
            self.assertAlmostEqual(sum(parts), report["step_s"], delta=1e-6)
            self.assertTrue(any("would keep up" in warning for warning in report["warnings"]), report["warnings"])

    def test_what_would_keep_up_does(self):
        report = self.predict(input={"seconds_per_batch": 3.0, "workers": 2})
        wanted = next(int(word) for word in report["warnings"][-1].split("; ")[-1].split() if word.isdigit())
        self.assertNotEqual(self.predict(input={"seconds_per_batch": 3.0, "workers": wanted})["bound"], "input")

    def test_the_loop_loads_by_itself(self):
        plain = self.predict()
        report = self.predict(input={"seconds_per_batch": 1.0, "workers": 0})
        self.assertGreater(report["step_s"], 1.0)
        self.assertLess(report["step_s"], 1.0 + 1.001 * plain["step_s"])
        self.assertEqual(report["bound"], "input")

    def test_wrong_input_is_refused(self):
        self.assertIn("seconds_per_batch", self.refused(input={"workers": 2}))
        self.assertIn("workers", self.refused(input={"seconds_per_batch": 0.1}))
        self.assertIn("workers", self.refused(input={"seconds_per_batch": 0.1, "workers": -1}))
        self.assertIn("seconds_per_batch", self.refused(input={"seconds_per_batch": "fast", "workers": 1}))
        self.assertIn("prefetch", self.refused(input={"seconds_per_batch": 0.1, "workers": 1, "prefetc": 3}))
        self.refused(input=3)


if __name__ == "__main__":
    unittest.main()
