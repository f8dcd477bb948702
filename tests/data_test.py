"""The data files: strict JSON, every figure with its source. And the repository: nothing about where it was written."""

import gzip
import json
import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "data"
FOLDERS = {"gpus": 30, "models": 28, "precisions": 7, "clusters": 5, "networks": 5, "hosts": 1, "software": 4, "profiles": 1}  # and at least how many


def strict(text):
    """JSON as the standard has it: no NaN, no key twice, no comments."""
    def no_constant(name):
        raise ValueError(f"{name} is not JSON")

    def no_twins(pairs):
        keys = [key for key, _ in pairs]
        twins = {key for key in keys if keys.count(key) > 1}
        if twins:
            raise ValueError(f"twice: {sorted(twins)}")
        return dict(pairs)

    return json.loads(text, parse_constant=no_constant, object_pairs_hook=no_twins)


def figures(value, path=""):
    """Every {"value": ..., "source": ...} of a file."""
    if isinstance(value, dict):
        if "value" in value:
            yield path, value
        for key, item in value.items():
            yield from figures(item, f"{path}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from figures(item, f"{path}[{index}]")


def has_source(value):
    """Whether a source is stated anywhere in it."""
    if isinstance(value, dict):
        return any((key in ("source", "sources", "fitted_on") and item) or has_source(item) for key, item in value.items())
    return isinstance(value, list) and any(map(has_source, value))


def own_files():
    """What a clone holds, and what is about to be added to it."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode == 0:
        names = [name for name in listed.stdout.split("\0") if name]
    else:  # an unpacked archive
        names = [str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if "build" not in path.parts and ".git" not in path.parts]
    return [ROOT / name for name in sorted(names) if (ROOT / name).is_file()]


class DataFiles(unittest.TestCase):
    def test_there_are_some(self):
        for folder, least in FOLDERS.items():
            self.assertGreaterEqual(len(list((DATA / folder).glob("*.json"))), least, folder)

    def test_strict_json_with_sources(self):
        for folder in FOLDERS:
            for path in sorted((DATA / folder).glob("*.json")):
                with self.subTest(f"{folder}/{path.name}"):
                    document = strict(path.read_text(encoding="utf-8"))
                    self.assertIsInstance(document, dict)
                    self.assertTrue(has_source(document), "no source")
                    if "name" in document:
                        self.assertEqual(document["name"], path.stem)

    def test_every_figure_names_a_listed_source(self):
        seen = 0
        for folder in ("gpus", "clusters", "networks", "hosts", "software"):
            for path in sorted((DATA / folder).glob("*.json")):
                document = strict(path.read_text())
                sources = document.get("sources", {})
                used = set()
                for where, figure in figures(document):
                    seen += 1
                    self.assertIn(figure.get("source"), sources, f"{folder}/{path.name}{where}")
                    used.add(figure["source"])
                with self.subTest(f"{folder}/{path.name}"):
                    for key, text in sources.items():
                        self.assertGreater(len(text), 10, f"source '{key}' says nothing")
                        self.assertTrue(key in used or any(item == key for item in document.values()), f"source '{key}' is not used")
        self.assertGreater(seen, 300)

    def test_recorded_runs(self):
        recorded = [path for path in sorted((DATA / "measured").rglob("*")) if path.name.endswith((".jsonl", ".jsonl.gz"))]
        if not recorded:
            self.skipTest("no recorded runs in data/measured")
        for path in recorded:
            seen = set()
            text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
            for number, line in enumerate(text.splitlines(), 1):
                if not line.strip():
                    continue
                with self.subTest(f"{path.name}:{number}"):
                    entry = strict(line)
                    if "request" not in entry:  # other measurements than runs
                        continue
                    self.assertTrue(entry["source"])
                    self.assertNotIn(entry["id"], seen)
                    seen.add(entry["id"])
                    self.assertTrue(entry["measured"])


class Repository(unittest.TestCase):
    # Assembled, so that this file does not contain what it looks for.
    FORBIDDEN = [re.compile(pattern) for pattern in (
        "/" + "work/", "/tmp/" + "team", "bash" + "_jobs", r"\.\./" + "shared", r"\b" + "le" + r"nt\b", "PRIV" + "ATE KEY")]

    def test_no_file_tells_where_it_was_written(self):
        files = own_files()
        self.assertGreater(len(files), 100)
        found = []
        for path in files:
            content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            text = content.decode("utf-8", errors="replace")
            for pattern in self.FORBIDDEN:
                for match in pattern.finditer(text):
                    found.append(f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}: {match.group()}")
        self.assertEqual(found, [])

    def test_the_check_can_fail(self):
        self.assertTrue(any(pattern.search("see /" + "work/main") for pattern in self.FORBIDDEN))
        self.assertFalse(any(pattern.search("an equivalent, talented network/worker in forward/backward") for pattern in self.FORBIDDEN))

    def test_no_file_is_huge_or_binary(self):
        for path in own_files():
            with self.subTest(str(path.relative_to(ROOT))):
                self.assertLess(path.stat().st_size, 6 << 20)
                if path.suffix not in (".png", ".gz", ".zst", ".ico", ".onnx"):
                    self.assertNotIn(b"\0", path.read_bytes())

    def test_shell_scripts_parse(self):
        for path in own_files():
            if path.read_bytes()[:2] == b"#!" and b"bash" in path.read_bytes().split(b"\n")[0]:
                checked = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True, timeout=20)
                self.assertEqual((checked.returncode, checked.stderr), (0, ""), path)


if __name__ == "__main__":
    unittest.main()
