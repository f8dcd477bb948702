"""The documents, followed to the letter: ARCHITECTURE.md and every page of docs/how_to.

Each page is followed from top to bottom in a folder of its own that holds copies of data/ and src/. What the fences mean:

  ```json PATH     (or jsonl, csv, python, bash, text) writes the block to PATH in that folder
  ```diff          changes a file there: "--- PATH", then lines with ' ', '-', '+'; the old lines must occur exactly once.
                   "```diff mistake" is undone after the next console block
  ```console       "$ precog ..." or "$ python3 ..." is run there; "# exit 2" after it is the exit code it must have (0 when not
                   said), "# needs torch" leaves it out where Python has no such module.
                   The lines below must occur in what it prints, one after the other; a line "..." skips any number of lines,
                   "..." inside a line any text. Times ("4.99 us") may be off by half, as coefficients are fitted anew;
                   nothing else may

Every other fence is for the reader only. `how_to_test.py --rewrite` writes the times as they are now into the pages.
"""

import importlib.util
import math
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python" / "tests"))
from package_support import environment  # noqa: E402
from program import BINARY, ROOT  # noqa: E402

PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs" / "how_to").glob("*.md"))]
TIME = re.compile(r"(\d+(?:\.\d+)?(?:e[-+]?\d+)?) (ns|us|ms|s)\b")
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
SLACK = 1.5


def blocks(text):
    """(info string, lines, number of the first line) of every fence."""
    out, info, begin = [], None, 0
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if info is None:
            info, begin = line[3:].strip(), number + 1
        else:
            out.append((info, lines[begin:number], begin))
            info = None
    assert info is None, "a fence is not closed"
    return out


def distance(quoted, printed):
    """How far the printed line's times are from the quoted ones: the largest factor; None where anything else differs."""
    masked = re.escape(TIME.sub("\0", quoted.rstrip()))
    pattern = masked.replace(re.escape("..."), ".*").replace(re.escape("\0"), TIME.pattern)
    if not re.fullmatch(pattern, printed.rstrip()):
        return None
    factor = 1.0
    if "..." not in quoted:
        for (a, unit_a), (b, unit_b) in zip(TIME.findall(quoted), TIME.findall(printed)):
            low, high = sorted((float(a) * SECONDS[unit_a], float(b) * SECONDS[unit_b]))
            if high > 0:
                factor = max(factor, high / low if low > 0 else math.inf)
    return factor


def find(quoted, printed, slack=SLACK):
    """Where each quoted line is in the printed ones (None for "..."), the nearest in time; or a text saying what is missing."""
    places, at, run = [], 0, []

    def place():
        best, nearest = None, slack
        for start in range(at, len(printed) - len(run) + 1):
            factors = [distance(q, printed[start + i]) for i, q in enumerate(run)]
            if None not in factors and (max(factors) < nearest or best is None and max(factors) <= nearest):
                best, nearest = start, max(factors)
        return best

    for line in [*quoted, "..."]:
        if line.strip() != "...":
            run.append(line)
            continue
        if run:
            start = place()
            if start is None:
                return "these lines do not occur, one after the other, after line %d of the output:\n%s" % (at, "\n".join(run))
            places += range(start, start + len(run))
            at, run = start + len(run), []
        places.append(None)
    return places[:-1]


def commands(lines):
    """(command, exit code, numbers of its quoted lines, module it needs) of a console block; a command may go on after a backslash."""
    out, number = [], 0
    while number < len(lines):
        line = lines[number]
        assert line.startswith("$ "), f"a console block starts with a command, not with {line!r}"
        command = line[2:]
        while command.endswith("\\"):
            number += 1
            command = command[:-1] + " " + lines[number].strip()
        number += 1
        first = number
        while number < len(lines) and not lines[number].startswith("$ "):
            number += 1
        code, needs = re.search(r"#\s*exit (\d+)\s*$", command), re.search(r"#\s*needs (\w+)", command)
        out.append((shlex.split(command, comments=True), int(code.group(1)) if code else 0, range(first, number), needs and needs.group(1)))
    return out


def changed(text, diff):
    """The text after a diff's hunks, whose first line "--- PATH" is left out by the caller."""
    hunks, hunk = [], []
    for line in [*diff, "@@"]:
        if line.startswith("@@"):
            hunks.append(hunk)
            hunk = []
        else:
            hunk.append(line or " ")
    for hunk in filter(None, hunks):
        old = "".join(line[1:] + "\n" for line in hunk if line[0] in " -")
        new = "".join(line[1:] + "\n" for line in hunk if line[0] in " +")
        if text.count(old) != 1:
            raise AssertionError(f"a diff's old lines occur {text.count(old)} times, not once:\n{old}")
        text = text.replace(old, new)
    return text


class Folder:
    """Where a page is followed."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        for name in ("data", "src"):
            shutil.copytree(ROOT / name, self.path / name, ignore=shutil.ignore_patterns("measured"))

    def write(self, name, lines):
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("\n".join(lines) + "\n")

    def apply(self, diff):
        """Returns the file and what it was."""
        target = self.path / re.fullmatch(r"--- (\S+)", diff[0]).group(1)
        before = target.read_text()
        target.write_text(changed(before, diff[1:]))
        return target, before

    def run(self, command):
        assert command[0] in ("precog", "python3"), f"only precog and python3 are run, not {command[0]}"
        program = str(BINARY) if command[0] == "precog" else sys.executable
        done = subprocess.run([program, *command[1:]], cwd=self.path, capture_output=True, text=True, timeout=120, env=environment())
        return done.returncode, (done.stdout + done.stderr).split("\n")


def follow(page, folder, rewrite=False):
    """Follows one page; returns its text, with the times as printed now when asked to rewrite them."""
    text = page.read_text()
    page_lines = text.split("\n")
    undo, ran = None, 0
    for info, lines, begin in blocks(text):
        kind, _, name = info.partition(" ")
        if kind in ("json", "jsonl", "csv", "python", "bash", "text") and name:
            folder.write(name, lines)
        elif kind == "diff":
            undone = folder.apply(lines)
            if name == "mistake":
                undo = undone
        elif kind == "console":
            for command, code, quoted, needs in commands(lines):
                if needs and importlib.util.find_spec(needs) is None:
                    print(f"{page.name}: without {needs}, not followed: {shlex.join(command)}")
                    continue
                what = f"{page.name}, line {begin + quoted.start}: {shlex.join(command)}"
                returned, printed = folder.run(command)
                ran += 1
                if returned != code:
                    raise AssertionError("%s\nexit %d, not %d:\n%s" % (what, returned, code, "\n".join(printed[-30:])))
                places = find([lines[i] for i in quoted], printed, math.inf if rewrite else SLACK)
                if isinstance(places, str):
                    raise AssertionError(f"{what}\n{places}\nIf only times moved: python3 tests/how_to_test.py --rewrite")
                for i, place in zip(quoted, places):
                    if place is not None and "..." not in lines[i]:
                        page_lines[begin + i] = printed[place]
            if undo:
                undo[0].write_text(undo[1])
                undo = None
    return "\n".join(page_lines), ran


class Pages(unittest.TestCase):
    def test_every_page_can_be_followed(self):
        self.assertGreater(len(PAGES), 3)
        for page in PAGES:
            with self.subTest(page.name), tempfile.TemporaryDirectory() as path:
                self.assertGreater(follow(page, Folder(path))[1], 0, "a page shows at least one command")

    def test_links_lead_somewhere(self):
        documents = [*PAGES, *sorted((ROOT / "docs" / "decisions").glob("*.md")), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
        for page in documents:
            prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
            for target in re.findall(r"\]\(([^)#]+)[^)]*\)", prose):
                if "://" not in target:
                    self.assertTrue((page.parent / target).exists(), f"{page.name} links to {target}, which is not there")

    def test_named_files_exist(self):
        for page in [*PAGES, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs" / "decisions").glob("*.md"))]:
            prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
            for name in re.findall(r"`((?:src|tests|tools|data|apps|docs|bench)/[\w./-]+)`", prose):
                if name not in ("data/gpus/rtx-a4000.json", "data/precisions/amp-bf16-tf32.json"):  # the pages' own examples
                    self.assertTrue((ROOT / name).exists(), f"{page.name} names {name}, which is not there")


    def test_the_tree_is_described_whole(self):
        described = set(re.findall(r"^\| `src/(\w+)` \|", (ROOT / "ARCHITECTURE.md").read_text(), re.M))
        self.assertEqual(described, {path.name for path in (ROOT / "src").iterdir() if path.is_dir()})


class TheCheckItself(unittest.TestCase):
    printed = ["a 1 us", "b", "c 250 ns (x)", "d"]

    def test_lines_in_order(self):
        self.assertEqual(find(["b", "c 300 ns (x)"], self.printed), [1, 2])
        self.assertEqual(find(["a 1 us", "...", "d"], self.printed), [0, None, 3])
        self.assertEqual(find(["c ... (x)"], self.printed), [2])

    def test_it_can_fail(self):
        for wrong in (["a 1 us", "d"], ["d", "...", "b"], ["c 250 ns (y)"], ["a 2 us"], ["c 0.4 us (x)"], ["b "[:1] + "b"]):
            self.assertIsInstance(find(wrong, self.printed), str, wrong)

    def test_a_diff_meets_its_file(self):
        self.assertEqual(changed("x\ny\nz\n", [" x", "-y", "+w"]), "x\nw\nz\n")
        self.assertRaises(AssertionError, changed, "x\ny\n", ["-q"])
        self.assertRaises(AssertionError, changed, "x\nx\n", ["-x"])


MAIN = """
#include <cstdio>
#include "graph/operator.h"
int main() {
  using namespace precog;
  const OperatorDefinition& known = definition(OpKind::elu);
  std::printf("%s %s %s\\n", to_text(OpKind::elu).data(), to_text(known.family).data(), known.gradient ? "differentiable" : "constant");
}
"""


@unittest.skipUnless(shutil.which("g++"), "g++ is not installed")
class AddAnOperator(unittest.TestCase):
    """The page's changes compile, and a listed operator without its function fails the link by name."""

    def compile(self, folder, sources):
        begun = []
        for source in sources:
            output = folder.path / (pathlib.Path(source).stem + ".o")
            command = ["g++", "-std=c++20", "-O0", "-c", "-I", "src", source, "-o", str(output)]
            begun.append(subprocess.Popen(command, cwd=folder.path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
            if len(begun) % 2 == 0:
                begun[-2].wait()
        for process in begun:
            out = process.communicate(timeout=120)[0]
            self.assertEqual(process.returncode, 0, out[-2000:])

    def link(self, folder):
        objects = sorted(str(path) for path in folder.path.glob("*.o"))
        return subprocess.run(["g++", *objects, "-lfmt", "-o", str(folder.path / "check")], capture_output=True, text=True)

    def test_the_page(self):
        text = (ROOT / "docs" / "how_to" / "add_an_operator.md").read_text()
        diffs = [lines for info, lines, _ in blocks(text) if info == "diff"]
        self.assertEqual([diff[0].split("/")[-1] for diff in diffs], ["operators.def", "ops_pointwise.cpp"])
        message = re.search(r"undefined reference to `[^`']*'", text).group(0)
        with tempfile.TemporaryDirectory() as path:
            folder = Folder(path)
            folder.write("main.cpp", [MAIN])
            folder.apply(diffs[0])
            sources = [str(p.relative_to(path)) for p in sorted((folder.path / "src" / "graph").glob("ops_*.cpp"))]
            sources += ["src/graph/operator.cpp", "src/graph/graph.cpp", "src/spec/dtype.cpp", "src/base/units.cpp", "main.cpp"]
            self.compile(folder, sources)
            failed = self.link(folder)
            self.assertNotEqual(failed.returncode, 0, "an operator without its function must not link")
            self.assertIn(message, failed.stderr)

            folder.apply(diffs[1])
            self.compile(folder, ["src/graph/ops_pointwise.cpp"])
            linked = self.link(folder)
            self.assertEqual(linked.returncode, 0, linked.stderr[-2000:])
            said = subprocess.run([str(folder.path / "check")], capture_output=True, text=True).stdout
            self.assertEqual(said, "elu pointwise differentiable\n")
            syntax = ["g++", "-std=c++20", "-fsyntax-only", "-I", "src", "src/kernel/lower.cpp"]
            done = subprocess.run(syntax, cwd=path, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr[-2000:])


def rewrite():
    for page in PAGES:
        with tempfile.TemporaryDirectory() as path:
            text, ran = follow(page, Folder(path), rewrite=True)
        moved = text != page.read_text()
        page.write_text(text)
        print(f"{page.relative_to(ROOT)}: {ran} commands, {'times rewritten' if moved else 'as it was'}")


if __name__ == "__main__":
    if "--rewrite" in sys.argv:
        rewrite()
    else:
        unittest.main()
