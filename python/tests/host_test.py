"""precog host: what is measured on this machine becomes a host description that the program takes. Needs torch; the CPU stands in."""

import importlib.util
import json
import pathlib
import tempfile
import unittest

from package_support import environment  # noqa: F401: finds the library and the program
import program

HAS_TORCH = importlib.util.find_spec("torch") is not None
JOB = {"schema": 1, "model": "resnet18", "batch": 4, "precision": "fp32", "cluster": {"gpu": "h200-sxm", "gpus": 1}}


@unittest.skipUnless(HAS_TORCH, "torch is not installed")
class MeasuredHost(unittest.TestCase):
    def test_a_measured_host_is_a_host(self):
        from precog import hosting
        reference = json.loads((program.ROOT / "data" / "hosts" / "h200-vm.json").read_text())
        machine = {"dry_run": False, "date": "2030-01-02T03:04", "torch": "3", "python": "4", "cpu": "A CPU", "cpu_count": 2}
        host = hosting.scaled(reference, {"forward": 0.5, "backward": 0.5, "optimizer": 0.5}, "mine", machine)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            (path / "mine.json").write_text(hosting.host_text(host))
            (path / "mine-job.json").write_text(json.dumps({**JOB, "host": "mine.json"}))
            (path / "job.json").write_text(json.dumps({**JOB, "host": "h200-vm"}))
            mine, known = (program.run_json("predict", path / name) for name in ("mine-job.json", "job.json"))
        self.assertAlmostEqual(mine["host_s"] / known["host_s"], 0.5, delta=0.01)
        self.assertIn(("host", "measured"), [(entry["what"], entry["kind"]) for entry in mine["provenance"]])

    def test_the_reference_is_measured_again(self):
        from precog import hosting
        from precog.gpu.device import Device
        ratios = hosting.ratios(Device(dry_run=True), {"images-01 fp32": {"forward": 0.05, "backward": 0.05, "optimizer": 0.05}}, 0.01, lambda *said: None)
        self.assertEqual(set(ratios), {"forward", "backward", "optimizer"})
        self.assertTrue(all(value > 0 for value in ratios.values()))

    def test_every_reference_stack_is_known(self):
        from precog.gpu import host_stacks
        reference = json.loads((program.ROOT / "data" / "hosts" / "h200-vm.json").read_text())["reference"]
        names = {stack.name for stack in host_stacks.stacks()}
        self.assertGreaterEqual(len(reference), 4)
        for key in reference:
            self.assertIn(key.split(" ")[0], names)

    def test_wrong_input_is_refused(self):
        from precog import PrecogError, measure_host
        for path in ("host.txt", "nowhere/host.json"):
            with self.assertRaises(PrecogError) as caught:
                measure_host(path)
            self.assertEqual(caught.exception.code, "wrong_input")


if __name__ == "__main__":
    unittest.main()
