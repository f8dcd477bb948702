"""What every part of the campaign shares: the clock, the output files, the device, the timing loops.

Takes nothing from the measured models. The device, the timing of a call and how a failure is survived are the package's
(precog.gpu), so that `precog profile` measures in the same way.
"""
import gzip
import json
import os
import sys
import warnings
import zlib

import torch

import in_package  # noqa: F401
from precog.gpu import device as _device
from precog.gpu.device import Device, clocks_now, gpu_seconds  # noqa: F401
from precog.gpu.session import BudgetSpent, Clock, Session  # noqa: F401

warnings.filterwarnings("ignore")
HOST = "h200-vm"  # the host description (data/hosts) of the machine that campaigns run on


class Lines:
    """A jsonl file whose every line is on the disk before the next measurement starts."""

    def __init__(self, path, meta):
        self.gz = path.endswith(".gz")
        # A gzip member per line would cost ratio; a sync flush keeps one stream and still survives a kill.
        self.file = gzip.open(path, "wb", compresslevel=6) if self.gz else open(path, "wb")
        self.write({"meta": meta})

    def write(self, record):
        self.file.write((json.dumps(record, separators=(",", ":")) + "\n").encode())
        if self.gz:
            self.file.flush(zlib.Z_SYNC_FLUSH)
        else:
            self.file.flush()

    def close(self):
        self.file.close()


class Campaign(Session):
    """One run of the script: device, clock, files, and what went wrong."""

    def __init__(self, args, parts):
        super().__init__(Device(args.dry_run), args.budget)
        self.out = args.out
        self.only = args.only
        self.held_out = args.held_out
        self.parts = parts
        os.makedirs(self.out, exist_ok=True)
        self.meta = describe_machine(args, parts)
        with open(os.path.join(self.out, "meta_%s.json" % "".join(parts)), "w") as file:
            json.dump(self.meta, file, indent=1)

    def lines(self, name):
        return Lines(os.path.join(self.out, name), self.meta)


class Worker(Session):
    """A process of a campaign of several (turns.py): what it finds is written by the one that started it."""

    verbose = False

    def __init__(self, dry_run):
        super().__init__(Device(dry_run), float("inf"))


class Told:
    """Lines of a worker: said, not written."""

    def __init__(self, worker):
        self.worker = worker

    def write(self, record):
        self.worker.tell(failed=record)


def describe_machine(args, parts):
    meta = {"script": os.path.basename(sys.argv[0]), "parts": parts, "host": HOST, **_device.describe_machine(args.dry_run)}
    for name in ("transformers", "torchvision", "numpy"):
        try:
            meta[name] = __import__(name).__version__
        except Exception as error:
            meta[name] = "absent: %s" % error
    return meta
