"""From what a driver calls its GPU to precog's name for it. Needs neither torch nor the library."""

from __future__ import annotations

import re

# All patterns of a row must occur in the device's name (letters and digits, lower case); the first row wins, so that the
# particular stands before the general.
KNOWN = (
    ("gh200", ("gh200",)), ("gb200", ("gb200",)), ("gb300", ("gb300",)), ("b200-sxm", ("b200",)), ("b300", ("b300",)),
    ("h200-sxm", ("h200",)), ("h100-nvl", ("h100", "nvl")), ("h100-pcie", ("h100", "pcie")), ("h100-sxm", ("h100",)),
    ("a100-pcie-80gb", ("a100", "pcie", "80gb")), ("a100-pcie-40gb", ("a100", "pcie")),
    ("a100-sxm-80gb", ("a100", "sxm", "80gb")), ("a100-sxm-40gb", ("a100", "sxm")),
    ("v100-sxm2-32gb", ("v100", "sxm2", "32gb")), ("v100-sxm2-16gb", ("v100", "sxm2")), ("v100-pcie", ("v100", "pcie")),
    ("p100", ("p100",)), ("t4", ("tesla", "t4")), ("t4", ("nvidia", "t4")), ("rtx-2080-ti", ("rtx", "2080", "ti")),
    ("rtx-3090", ("rtx", "3090")), ("rtx-4090", ("rtx", "4090")), ("rtx-5090", ("rtx", "5090")),
    ("rtx-pro-6000", ("rtx", "pro", "6000")), ("rtx-6000-ada", ("rtx", "6000", "ada")),
    ("l40s", ("l40s",)), ("l4", ("l4",)), ("a10", ("a10",)), ("a30", ("a30",)), ("mi250x", ("mi250x",)), ("mi300x", ("mi300x",)),
)
# Words that make a different GPU of the one they follow: a 3090 Ti is not a 3090, a laptop's 4090 not a 4090.
DIFFERENT = {"ti", "super", "laptop", "mobile", "mig", "d", "max"}


def gpu_name(device_name: str) -> str | None:
    """"NVIDIA A100-SXM4-80GB" -> "a100-sxm-80gb"; None where precog has no such GPU."""
    words = re.findall(r"[a-z0-9]+", device_name.lower())
    words = ["sxm" if re.fullmatch(r"sxm[3-9]?", word) and word != "sxm2" else word for word in words]
    for name, wanted in KNOWN:
        if all(word in words for word in wanted) and not (DIFFERENT - set(wanted)) & set(words):
            return name
    return None
