"""Builds the Python package: the backend that pyproject.toml names (PEP 517, PEP 660). Standard library only.

A wheel is python/precog with what `cmake --install` makes beside it: precog/_native/bin/precog, lib/libprecog.so and
share/precog/data. An editable install points at the checkout, where the package finds build/release by itself.

  pip install .                                       builds into build/release
  pip install . --config-settings build-dir=build/dev  uses a build that is there already
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import pathlib
import re
import shutil
import subprocess
import sysconfig
import tarfile
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PACKAGES = "g++ cmake libfmt-dev nlohmann-json3-dev libexpected-dev libcli11-dev libzstd-dev zlib1g-dev libtomlplusplus-dev libyaml-cpp-dev"
IN_SDIST = ("CMakeLists.txt", "CMakePresets.json", "LICENSE", "README.md", "pyproject.toml", "apps", "data", "include", "python", "src",
            "tests/main.cpp", "tools/package")
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", "_native", "measured", "programs")


def _project() -> dict[str, str]:
    """The texts of pyproject.toml's lines `key = "value"`: Python 3.10 has no reader of TOML."""
    return dict(re.findall(r'^([\w-]+) = "([^"]*)"', (ROOT / "pyproject.toml").read_text(), re.M))


def _metadata() -> str:
    project = _project()
    extras = re.findall(r'^(\w+) = \["([^"]*)"\]', (ROOT / "pyproject.toml").read_text(), re.M)
    lines = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {project['version']}", f"Summary: {project['description']}",
             f"Requires-Python: {project['requires-python']}", "License: Apache-2.0"]
    for extra, requirement in extras:
        lines += [f"Provides-Extra: {extra}", f'Requires-Dist: {requirement}; extra == "{extra}"']
    return "\n".join([*lines, "Description-Content-Type: text/markdown", "", (ROOT / "README.md").read_text()])


def _run(*command: str) -> None:
    print("+", " ".join(command), flush=True)
    try:
        subprocess.run(command, check=True)
    except FileNotFoundError:
        raise SystemExit(f"precog: {command[0]} is missing; on Debian: apt-get install {PACKAGES}") from None
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"precog: {command[0]} failed with {error.returncode}; are these Debian packages there? {PACKAGES}") from None


def _native(build_dir: str | None) -> pathlib.Path:
    """A folder configured and built; build/release where none is named."""
    folder = pathlib.Path(build_dir).resolve() if build_dir else ROOT / "build" / "release"
    if not (folder / "CMakeCache.txt").is_file():
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        _run("cmake", "-S", str(ROOT), "-B", str(folder), *generator, "-DCMAKE_BUILD_TYPE=Release", "-DPRECOG_TESTS=OFF",
             "-DPRECOG_WERROR=OFF")
    jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count() or 1)
    _run("cmake", "--build", str(folder), "-j", jobs, "--target", "precog", "precog_shared")
    return folder


def _tag() -> str:
    return "py3-none-" + re.sub(r"[-.]", "_", sysconfig.get_platform())


class _Wheel:
    """A zip with the hash of everything in it (PEP 427)."""

    def __init__(self, folder: str) -> None:
        project = _project()
        stem = f"{project['name']}-{project['version']}"
        self.info, self.records = f"{stem}.dist-info", [f"{stem}.dist-info/RECORD,,"]
        self.name = f"{stem}-{_tag()}.whl"
        self.zip = zipfile.ZipFile(pathlib.Path(folder) / self.name, "w", zipfile.ZIP_DEFLATED)

    def add(self, name: str, content: bytes, executable: bool = False) -> None:
        entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))  # the same files, the same wheel
        entry.external_attr = (0o100755 if executable else 0o100644) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        self.zip.writestr(entry, content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        self.records.append(f"{name},sha256={digest},{len(content)}")

    def add_tree(self, folder: pathlib.Path, prefix: str) -> None:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.add(f"{prefix}/{path.relative_to(folder).as_posix()}", path.read_bytes(), os.access(path, os.X_OK))

    def finish(self) -> str:
        self.add(f"{self.info}/METADATA", _metadata().encode())
        self.add(f"{self.info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: precog_build\nRoot-Is-Purelib: false\nTag: {_tag()}\n".encode())
        self.add(f"{self.info}/entry_points.txt", b"[console_scripts]\nprecog = precog.__main__:main\n")
        self.add(f"{self.info}/LICENSE", (ROOT / "LICENSE").read_bytes())
        self.zip.writestr(f"{self.info}/RECORD", "\n".join(reversed(self.records)) + "\n")
        self.zip.close()
        return self.name


def build_wheel(wheel_directory: str, config_settings: dict | None = None, metadata_directory: str | None = None) -> str:
    build = _native((config_settings or {}).get("build-dir"))
    wheel = _Wheel(wheel_directory)
    with tempfile.TemporaryDirectory() as staging:
        native = pathlib.Path(staging) / "native"
        _run("cmake", "--install", str(build), "--prefix", str(native), "--strip")
        shutil.rmtree(native / "include", ignore_errors=True)
        package = pathlib.Path(staging) / "precog"
        shutil.copytree(ROOT / "python" / "precog", package, ignore=LEFT_OUT)
        wheel.add_tree(package, "precog")
        wheel.add_tree(native, "precog/_native")
    return wheel.finish()


def build_editable(wheel_directory: str, config_settings: dict | None = None, metadata_directory: str | None = None) -> str:
    _native((config_settings or {}).get("build-dir"))
    wheel = _Wheel(wheel_directory)
    wheel.add("precog_checkout.pth", f"{ROOT / 'python'}\n".encode())
    return wheel.finish()


def build_sdist(sdist_directory: str, config_settings: dict | None = None) -> str:
    project = _project()
    stem = f"{project['name']}-{project['version']}"

    def kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        folder, _, name = entry.name.rpartition("/")
        return None if LEFT_OUT(folder, [name]) else entry
    with tarfile.open(pathlib.Path(sdist_directory) / f"{stem}.tar.gz", "w:gz") as archive:
        for name in IN_SDIST:
            archive.add(ROOT / name, f"{stem}/{name}", filter=kept)
        text = _metadata().encode()
        entry = tarfile.TarInfo(f"{stem}/PKG-INFO")
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text))
    return f"{stem}.tar.gz"


def get_requires_for_build_wheel(config_settings: dict | None = None) -> list[str]:
    return []


get_requires_for_build_editable = get_requires_for_build_sdist = get_requires_for_build_wheel
