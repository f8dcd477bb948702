"""What a person sees, and the files written beside it: tables of 80 columns, help, lists, completion, pages, traces."""

import html.parser
import json
import os
import re
import shutil
import subprocess
import unittest

import program
from contract import COMMANDS, GPU_NAMES, LISTS, LLAMA, MODEL_NAMES, PRECISION_NAMES, SMALL, STAGES, InTemporaryFolder, every_precision
from program import run, run_json


class Lists(unittest.TestCase):
    def test_names_of_the_contract(self):
        for command, expected in {"gpus": GPU_NAMES, "models": MODEL_NAMES, "precisions": PRECISION_NAMES}.items():
            names = {entry["name"] for entry in run_json(command)}
            self.assertEqual(set(expected) - names, set(), command)

    def test_each_has_a_source(self):
        for command, name in LISTS.items():
            text = run(command, name)
            self.assertEqual((text.returncode, text.stderr), (0, ""), command)
            self.assertIn(name, text.stdout)
            if command != "precisions":
                self.assertIn("source", text.stdout, command)

    def test_inspect(self):
        text = run("inspect", "bert-base", "--precision", "amp-bf16").stdout
        self.assertIn("layer_norm", text)
        self.assertIn("cast", text)
        self.assertIn("autocast", text)
        self.assertTrue(text.startswith("bert-base in amp-bf16 on h100-sxm\n"))
        self.assertEqual(run_json("inspect", "bert-base", "--precision", "amp-bf16")["gpu"], "h100-sxm")
        for gpu, expected in {"h100-sxm": True, "v100-sxm2-32gb": False}.items():  # the GPU decides whether there is TF32
            document = run_json("inspect", "bert-base", "--precision", "tf32", "--gpu", gpu)
            self.assertEqual(("tf32" in document["summary"]["by_dtype"], document["gpu"]), (expected, gpu))
        difference = run("inspect", "gpt2", "--diff", "fp32", "amp-fp16")
        self.assertEqual((difference.returncode, difference.stderr), (0, ""))
        self.assertIn("fp16", difference.stdout)


class Printed(InTemporaryFolder):
    def everything_printed(self):
        yield ["--help"]
        for command in COMMANDS:
            yield [command, "--help"]
        for command, name in LISTS.items():
            yield [command]
            yield [command, name]
        for gpu in GPU_NAMES[::5]:
            yield ["gpus", gpu]
        for arguments in (SMALL, LLAMA, ["--model", "resnet50", "--gpu", "v100-sxm2-32gb", "--batch", 256, "--precision", "amp-fp16"],
                          ["--model", "llama3-405b", "--gpu", "gb300", "--gpus", 72, "--batch", 1, "--precision", "bf16", "--tokens", 15e12,
                           "--price", 4.25],
                          ["--model", "gpt2", "--gpu", "v100-sxm2-32gb", "--batch", 2, "--precision", "amp-bf16", "--allow-emulated"]):
            yield ["predict", *arguments]
            yield ["compare", *every_precision(arguments)]
        yield ["inspect", "bert-base", "--precision", "amp-bf16"]
        yield ["inspect", "deepseek-v3", "--precision", "amp-bf16"]
        yield ["inspect", "resnet50", "--diff", "fp32", "amp-fp16"]
        runs = self.write("runs.jsonl", "\n".join(json.dumps({
            "id": "a run with a very long name " * 4 + str(i), "source": "made up",
            "request": {"model": "bert-base", "batch": 1, "seq": 32, "precision": precision, "cluster": {"gpu": "v100-sxm2-32gb"}},
            "measured": {"step_s": 0.05, "peak_bytes": 3e9}}) for i, precision in enumerate(["fp32", "amp-fp16", "bf16"])))
        yield ["validate", runs]
        yield ["validate", runs, "--by", "precision,gpu,regime,precision+gpu"]

    def test_tables_fit_80_columns_and_have_no_colours(self):
        for arguments in self.everything_printed():
            with self.subTest(" ".join(map(str, arguments))[:150]):
                done = run(*arguments)
                self.assertIn(done.returncode, (0, 3), done.stderr)
                self.assertTrue(done.stdout.strip())
                self.assertTrue(done.stdout.endswith("\n"))
                self.assertNotIn("\x1b", done.stdout + done.stderr)
                wide = [line for line in done.stdout.splitlines() if len(line) > 80]
                self.assertEqual(wide, [])

    def test_colours_can_be_asked_for(self):
        self.assertIn("\x1b[", run("predict", *SMALL, "--color", "always").stdout)

    def test_help_has_an_example(self):
        for arguments in [["--help"], *([command, "--help"] for command in COMMANDS)]:
            with self.subTest(arguments):
                done = run(*arguments)
                self.assertEqual(done.returncode, 0)
                examples = done.stdout.split("Examples:")
                self.assertEqual(len(examples), 2)
                self.assertIn("precog " + (arguments[0] if len(arguments) > 1 else ""), examples[1])

    def test_json_is_one_clean_document(self):
        for arguments in (["predict", *SMALL], ["compare", *every_precision(SMALL)], *([command] for command in LISTS), ["gpus", "h100-sxm"],
                          ["inspect", "bert-base", "--precision", "amp-bf16"]):
            with self.subTest(arguments[0]):
                done = run(*arguments, "--json")
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                json.loads(done.stdout, parse_constant=lambda name: self.fail(f"{name} is not JSON"))
                self.assertTrue(done.stdout.endswith("\n"))

    def test_every_stage_can_be_dumped(self):
        dumps = {}
        for stage in STAGES:
            done = run("predict", *SMALL, "--dump-after", stage)
            self.assertEqual((done.returncode, done.stderr), (0, ""), stage)
            self.assertTrue(done.stdout.strip(), stage)
            self.assertNotIn("broken:", done.stdout, stage)
            dumps[stage] = done.stdout
        self.assertEqual(len(set(dumps.values())), len(STAGES))  # no stage prints another's

    def test_a_closed_pipe_is_no_error(self):
        done = subprocess.run(["bash", "-c", 'set -o pipefail; "$0" gpus | head -1 >/dev/null', str(program.BINARY)], cwd=program.ROOT,
                              capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_completion(self):
        checks = {"bash": ["bash", "-n"], "zsh": ["zsh", "-n"], "fish": ["fish", "--no-execute"]}
        for shell, check in checks.items():
            script = run("completion", shell)
            self.assertEqual((script.returncode, script.stderr), (0, ""), shell)
            for fragment in ["predict", "compare", "precision"]:
                self.assertIn(fragment, script.stdout, shell)
            if shutil.which(check[0]):
                path = self.write("script." + shell, script.stdout)
                checked = subprocess.run([*check, str(path)], capture_output=True, text=True, timeout=20)
                self.assertEqual((checked.returncode, checked.stderr), (0, ""), shell)

    def test_version(self):
        self.assertRegex(run("--version").stdout, r"^precog \d+\.\d+\.\d+\n$")


class Page(html.parser.HTMLParser):
    """Counts what is opened and closed, and keeps every address."""

    EMPTY = {"meta", "link", "br", "hr", "img", "input", "line", "rect", "path", "circle", "polyline", "stop", "use", "col"}

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.addresses, self.tags, self.problems = [], [], set(), []

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "href", "xlink:href", "action", "data") and value]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.EMPTY:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag in self.EMPTY:
            return
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> closes nothing at {self.getpos()}")


class Files(InTemporaryFolder):
    def test_the_page_stands_alone(self):
        for command in ("predict", "compare"):
            with self.subTest(command):
                path = self.folder / f"{command}.html"
                done = run(command, *(SMALL if command == "predict" else every_precision(SMALL)), "--html", path)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertIn(str(path), done.stdout)
                text = path.read_text()
                page = Page()
                page.feed(text)
                page.close()
                self.assertEqual((page.problems, page.open), ([], []))
                self.assertLessEqual({"html", "head", "title", "body", "svg"}, page.tags)
                self.assertEqual([address for address in page.addresses if not address.startswith(("#", "data:"))], [])
                remote = re.findall(r"https?://[^\s\"'<>)]*", text)
                self.assertEqual([address for address in remote if not address.startswith("http://www.w3.org/")], [])
                self.assertNotIn("@import", text)
                self.assertIn("amp-bf16", text)

    def test_a_picture(self):
        path = self.folder / "out.svg"
        self.assertEqual(run("compare", *every_precision(SMALL), "--html", path).returncode, 0)
        self.assertTrue(path.read_text().lstrip().startswith("<svg"))

    def test_the_trace_loads(self):
        path = self.folder / "trace.json"
        self.assertEqual(run("predict", *SMALL, "--trace", path).returncode, 0)
        events = json.loads(path.read_text())["traceEvents"]
        spans = [event for event in events if event["ph"] == "X"]
        self.assertGreater(len(spans), 100)
        for event in spans:
            self.assertTrue(event["name"])
            self.assertGreaterEqual(event["ts"], 0)
            self.assertGreaterEqual(event["dur"], 0)
        bands = [event for event in spans if event["cat"] == "precision"]
        spans = [event for event in spans if event["cat"] != "precision"]
        self.assertEqual({band["tid"] for band in bands}, {1})  # the compute stream
        for event in (event for event in spans if event["tid"] == 1):  # each operator lies under one, to the nanosecond
            inside = [b for b in bands if b["ts"] <= event["ts"] and event["ts"] + event["dur"] <= b["ts"] + b["dur"] + 1e-6]
            self.assertEqual(len(inside), 1, event)
        by_queue = {}
        for event in spans:
            by_queue.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
        self.assertGreaterEqual(len(by_queue), 3)  # host, compute, communication
        for queue in by_queue.values():  # one thing at a time in each
            queue.sort()
            self.assertTrue(all(after[0] >= before[1] - 0.002 for before, after in zip(queue, queue[1:])))

    def test_files_do_not_disturb_the_json(self):
        plain = run("predict", *SMALL, "--json")
        done = run("predict", *SMALL, "--json", "--html", self.folder / "a.html", "--trace", self.folder / "a.json")
        self.assertEqual((done.stdout, done.stderr), (plain.stdout, ""))
        self.assertEqual(sorted(os.listdir(self.folder)), ["a.html", "a.json"])


if __name__ == "__main__":
    unittest.main()
