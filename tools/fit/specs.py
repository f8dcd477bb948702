"""Datasheet figures of the GPUs that the fit reads measurements of, from data/gpus/*.json.

Returns a Gpu per name: plain SI numbers. A figure that the data files lack is an error, never a guess.
"""
import json
import pathlib
import re
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parents[2] / "data" / "gpus"
PREFIX = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def number(text):
    value, prefix = re.match(r"\s*([0-9.eE+]+)\s*([kMGTP]?i?)(?:FLOP/s|FLOPS|B/s|B|Hz|OP/s|W)\s*$", text).groups()
    return float(value) * PREFIX[prefix]


ON_UNITS_OF = {"fp8-block": "fp8", "mxfp8": "fp8"}  # scales by block, the same multipliers


@dataclass
class Gpu:
    name: str
    sms: float
    clock: float
    bandwidth: float
    l2: float
    matrix: dict
    vector: dict
    power: float = 0.0
    capability: int = 0

    def peak(self, math):
        """FLOP/s of a GEMM in this arithmetic: tensor cores where the chip has them, else its ordinary units."""
        return self.matrix.get(math) or self.matrix.get(ON_UNITS_OF.get(math)) or self.vector.get(math) or self.vector["fp32"]


def load(name):
    raw = json.loads((ROOT / f"{name}.json").read_text())
    get = lambda entry: entry["value"] if isinstance(entry, dict) else entry
    rates = lambda group: {k: number(get(v)) for k, v in raw.get(group, {}).items() if k != "source"}
    return Gpu(name, float(get(raw["sms"])), number(get(raw["boost_clock"])), number(get(raw["memory"]["bandwidth"])),
               number(get(raw["memory"]["l2"])), rates("matrix"), rates("vector"), number(get(raw["power"])), round(10 * float(raw.get("compute_capability", 0))))
