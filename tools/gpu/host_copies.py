#!/usr/bin/env python3
"""How fast the host moves an input: copies into memory that the system has to hand out first, into memory in use, and to the GPU.

  python3 tools/gpu/host_copies.py --out DIR [--seconds 20]

Loaders that parse records copy every sample into new memory; the first touch of a page costs more than the copy. Threads copy
samples of their own at the same time. One line per size, threads and kind in DIR/host_copies.jsonl: seconds a sample.
Without a GPU the copies to it are left out.
"""
import argparse
import concurrent.futures
import json
import os
import statistics
import time

import torch

SIZES = (470_000, 3_700_000, 54_700_000)  # bytes: a slice, a picture in fp32, a volume
THREADS = (1, 4, 8)


def fresh(source):
    return torch.empty_like(source).copy_(source)


def median_seconds(pool, threads, work, limit):
    taken, end = [], time.perf_counter() + limit
    while len(taken) < 4 or (time.perf_counter() < end and len(taken) < 50):
        begin = time.perf_counter()
        for done in [pool.submit(work, index) for index in range(threads)]:
            done.result()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken[1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    parser.add_argument("--seconds", type=float, default=20)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.makedirs(arguments.out, exist_ok=True)
    kinds = ["fresh", "in_use"] + (["pinned_to_gpu", "pageable_to_gpu"] if torch.cuda.is_available() else [])
    limit = arguments.seconds / (len(SIZES) * len(THREADS) * len(kinds))
    with open(os.path.join(arguments.out, "host_copies.jsonl"), "w") as file:
        for size in SIZES:
            for threads in THREADS:
                sources = [torch.ones(size, dtype=torch.uint8) for _ in range(threads)]
                targets = [torch.ones(size, dtype=torch.uint8) for _ in range(threads)]
                work = {"fresh": lambda index: fresh(sources[index]), "in_use": lambda index: targets[index].copy_(sources[index])}
                if torch.cuda.is_available():
                    pinned = [source.pin_memory() for source in sources]
                    work["pinned_to_gpu"] = lambda index: pinned[index].to("cuda")
                    work["pageable_to_gpu"] = lambda index: sources[index].to("cuda")
                with concurrent.futures.ThreadPoolExecutor(threads) as pool:
                    for kind in kinds:
                        seconds = median_seconds(pool, threads, work[kind], limit)
                        line = {"kind": kind, "bytes": size, "threads": threads, "seconds": seconds, "gb_s_each": size / seconds / 1e9}
                        file.write(json.dumps(line) + "\n")
                        file.flush()
                        print(f"{kind:16} {size:9} bytes, {threads} threads: {1e3 * seconds:8.3f} ms, {size / seconds / 1e9:6.2f} GB/s each")


if __name__ == "__main__":
    main()
