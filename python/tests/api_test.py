"""predict, compare and validate from Python: the same bytes as the program's, errors with every problem, values that read well."""

import json
import pathlib
import pickle
import tempfile
import threading
import unittest

from package_support import SMALL, program

import precog
from precog import _library

JOBS = {
    "two GPUs": SMALL,
    "convolutions": {"model": "resnet50", "batch": 8, "precision": "tf32", "memory_format": "channels_last",
                     "cluster": {"gpu": "a100-sxm-80gb"}},
    "a whole run": {"model": "gpt2", "batch": 2, "seq": 128, "precision": "fp32", "cluster": "dgx-h100:2", "run": {"tokens": 1e9},
                    "price_usd_per_gpu_hour": 2.5},
    "does not fit": {"model": "llama3-8b", "batch": 1, "seq": 512, "precision": "fp32", "cluster": {"gpu": "t4"}},
}


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, value):
        path = self.folder / name
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return path


class SameAsTheProgram(InFolder):
    def test_predict(self):
        for name, job in JOBS.items():
            with self.subTest(name):
                path = self.write("job.json", job)
                printed = program.run("predict", path, "--json")
                self.assertIn(printed.returncode, (0, 3), printed.stderr)
                self.assertEqual(precog.predict(job).to_json(), printed.stdout)
                self.assertEqual(precog.predict(path).to_json(), printed.stdout)
                self.assertEqual(precog.predict(job).fits, printed.returncode == 0)

    def test_a_frameworks_configuration(self):
        self.write("ds.json", {"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True}, "zero_optimization": {"stage": 2}, "nobody_knows": 1})
        job = {"from": "ds.json", "model": "gpt2", "seq": 128, "cluster": {"gpu": "h100-sxm", "gpus": 2}}
        path = self.write("job.json", job)
        report = precog.predict(path)
        self.assertEqual(report.to_json(), program.run("predict", path, "--json").stdout)
        self.assertEqual(report["request"]["plan"]["fsdp"], "zero2")
        self.assertIn("ds.json: not taken over: nobody_knows", report["warnings"])
        self.assertEqual(precog.compare(path).to_json(), program.run("compare", path, "--json").stdout)
        del job["from"]
        self.assertEqual(precog.predict(job, from_=self.folder / "ds.json").step_s, report.step_s)
        with self.assertRaises(precog.PrecogError) as raised:
            precog.predict(job, from_=self.folder / "nowhere.json")
        self.assertIn("nowhere.json", str(raised.exception))

    def test_compare(self):
        for name, job in JOBS.items():
            with self.subTest(name):
                path = self.write("job.json", job)
                self.assertEqual(precog.compare(path).to_json(), program.run("compare", path, "--json").stdout)
        chosen = program.run("compare", path, "--precisions", "fp32,amp-fp16", "--json").stdout
        self.assertEqual(precog.compare(path, precision=["fp32", "amp-fp16"]).to_json(), chosen)
        advised = program.run("compare", path, "--precisions", "fp32,amp-fp16", "--advise", "--precision", "amp-fp16", "--json").stdout
        self.assertEqual(precog.compare(path, precision=["fp32", "amp-fp16"], advise="amp-fp16").to_json(), advised)

    def test_validate(self):
        runs = self.write("runs.jsonl", "".join(json.dumps({"id": name, "request": job, "measured": {"step_s": 0.1}}) + "\n"
                                                for name, job in JOBS.items()))
        printed = program.run("validate", runs, "--by", "precision,gpu", "--json").stdout
        self.assertEqual(precog.validate(runs, by="precision,gpu"), json.loads(printed))

    def test_names(self):
        for kind in ("gpus", "precisions", "models", "hosts", "clusters"):
            printed = program.run("__names", kind).stdout.split()
            self.assertLessEqual(set(precog.known(kind)), set(printed))
        self.assertIn("amp-bf16", precog.known("precisions"))

    def test_flags_and_keywords_are_the_same(self):
        given = dict(model="bert-base", layers=2, batch=4, seq=64, precision="bf16", gpu="h100-sxm", gpus=2, dp=2, tokens=1e9, price=2)
        flags = [text for key, value in given.items() for text in ("--" + key, str(value))]
        said = precog.predict(**given)
        self.assertEqual(json.loads(said.to_json()), program.run_json("predict", *flags))

    def test_errors_are_the_same(self):
        for job in ({}, {**SMALL, "batch": 0}, {**SMALL, "model": "bert-bsae", "precision": "bf61"}, {**SMALL, "extra": 1}):
            with self.subTest(job):
                path = self.write("job.json", job)
                printed = program.run("predict", path, "--json").stderr
                with self.assertRaises(precog.PrecogError) as caught:
                    precog.predict(job)
                self.assertEqual(caught.exception.code, "wrong_input")
                self.assertEqual(len(caught.exception.problems), printed.count("precog: error: "))
                for problem in caught.exception.problems:
                    self.assertIn(problem.message, printed)


class Values(unittest.TestCase):
    def test_fields_are_attributes_and_items(self):
        report = precog.predict(SMALL)
        self.assertEqual(report.step_s, report["step_s"])
        self.assertEqual(report.breakdown.forward, report["breakdown"]["forward"])
        self.assertGreater(report.step_s_high, report.step_s)
        self.assertIn("step_s", dir(report))
        with self.assertRaisesRegex(AttributeError, "step_s"):
            report.step_seconds
        self.assertEqual(pickle.loads(pickle.dumps(report)), report)

    def test_a_changed_report_is_written_anew(self):
        report = precog.predict(SMALL)
        report["note"] = "mine"
        self.assertEqual(json.loads(report.to_json())["note"], "mine")

    def test_a_report_is_a_request_again(self):
        report = precog.predict(SMALL)
        self.assertEqual(precog.predict(report.request).step_s, report.step_s)

    def test_reports_print_for_people(self):
        report = precog.predict(SMALL)
        for text in (repr(report), report._repr_html_()):
            for part in ("bert-base", "amp-bf16", "2 x h100-sxm", "backward"):
                self.assertIn(part, text)
        self.assertIn("DOES NOT FIT", repr(precog.predict(JOBS["does not fit"])))

    def test_comparisons(self):
        comparison = precog.compare(SMALL)
        steps = [report.step_s for report in comparison]
        self.assertEqual(steps, sorted(steps))
        self.assertEqual(len(comparison), len(comparison.reports))
        self.assertIs(comparison["fp32"], comparison.reports[comparison.precisions.index("fp32")])
        self.assertIs(comparison[0], comparison.fastest)
        self.assertIn("tf32", comparison)
        self.assertNotIn("fp9", comparison)
        for text in (repr(comparison), comparison._repr_html_()):
            for precision in comparison.precisions:
                self.assertIn(precision, text)
        self.assertEqual([row.split()[0] for row in repr(comparison).splitlines()[2:2 + len(comparison)]], comparison.precisions)
        self.assertIn("t4 has no bf16 hardware", repr(precog.compare(SMALL, cluster={"gpu": "t4"})))

    def test_threads(self):
        answers = [None] * 8

        def ask(index):
            answers[index] = precog.predict(SMALL, batch=1 + index % 2).to_json()
        threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(answers))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(set(answers[::2])), 1)
        self.assertEqual(len(set(answers)), 2)


class Number:
    """Like a number of numpy."""

    def __init__(self, value):
        self.value = value

    def item(self):
        return self.value


class Graph:
    """Like what precog.capture returns, with nothing useful in it."""

    def __init__(self, content):
        self.content = content

    def to_bytes(self):
        return self.content


class WrongThings(InFolder):
    def wrong(self, expected, *arguments, **keywords):
        with self.assertRaises(precog.PrecogError) as caught:
            precog.predict(*arguments, **keywords)
        self.assertEqual(caught.exception.code, "wrong_input")
        self.assertRegex(str(caught.exception), expected)
        return caught.exception

    def test_wrong_requests(self):
        self.wrong("request.batch: is nan", {**SMALL, "batch": float("nan")})
        self.wrong("request.batch: is a complex", {**SMALL, "batch": 1j})
        self.wrong("request: is a int; a mapping", 3)
        self.wrong("bert-base: cannot be read as a job file", "bert-base")
        self.wrong("is not JSON", self.write("bad.json", "{"))
        self.wrong("wants an object", self.write("list.json", "[]"))
        self.wrong("cluster.*must be an object", {**SMALL, "cluster": 3}, gpu="t4")
        self.wrong("unknown GPU 'h900'", SMALL, gpu="h900")
        loop = {**SMALL}
        loop["run"] = loop
        self.wrong("contains itself", loop)

    def test_numbers_of_other_libraries(self):
        self.assertEqual(precog.predict({**SMALL, "batch": Number(4)}).to_json(), precog.predict(SMALL).to_json())

    def test_the_request_is_left_alone(self):
        job = json.loads(json.dumps(SMALL))
        precog.predict(job, gpu="a100-sxm-80gb", batch=2, layers=2)
        precog.compare(job)
        self.assertEqual(job, SMALL)

    def test_a_graph_in_memory_is_handed_over(self):
        # Nonsense inside: the library must have read it to complain, under a name that is the content's.
        job = {key: value for key, value in SMALL.items() if key not in ("model", "seq")}
        first = self.wrong("precog.json.zst", {**job, "model": Graph(b"nonsense")})
        again = self.wrong("precog.json.zst", {**job, "model": {"graph": Graph(b"nonsense")}})
        other = self.wrong("precog.json.zst", {**job, "model": Graph(b"other")})
        self.assertEqual(str(first), str(again))
        self.assertNotEqual(str(first), str(other))
        self.assertNotIn(tempfile.gettempdir(), str(first))
        self.wrong("is a float; a path or what precog.capture", {**job, "model": {"graph": 3.5}})

    def test_errors_travel(self):
        error = self.wrong("unknown model", {**SMALL, "model": "x"})
        again = pickle.loads(pickle.dumps(error))
        self.assertEqual((again.code, again.problems, str(again)), (error.code, error.problems, str(error)))


class Compression(unittest.TestCase):
    def test_round_trip(self):
        for data in (b"", b"x", bytes(range(256)) * 100):
            self.assertEqual(_library.decompress(_library.compress(data)), data)
        self.assertLess(len(_library.compress(b"layer " * 10000)), 200)

    def test_wrong_bytes(self):
        packed = _library.compress(b"layer " * 10000)
        for data, limit in ((packed[:-3], 1 << 20), (b"nonsense", 1 << 20), (packed, 100)):
            with self.assertRaises(precog.PrecogError):
                _library.decompress(data, limit)


if __name__ == "__main__":
    unittest.main()
