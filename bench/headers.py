"""What reading the headers of a large checkpoint costs, as a ratio to parsing their JSON: 163 shards, 90,000 tensors, the size of DeepSeek-R1.

`make bench-headers`, or python bench/headers.py [--runs N] beside an installed vllm-guard. CPU time is that of this process, medians of N runs in turn;
peak memory is that of a process of its own for each of the two.
"""

from __future__ import annotations

import argparse
import json
import resource
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Final

from vllm_guard.model.headers import read_headers
from vllm_guard.model.tensors import Headers

_SHARDS: Final = 163
_TENSORS: Final = 90_000
_LENGTH_BYTES: Final = 8
_AIM: Final = 3.0


def write_checkpoint(folder: Path) -> list[str]:
    """Shards whose data is a hole: names, shapes and dtypes as those of a model with 256 experts a layer, quantized to fp8 with scales."""
    names = []
    each = -(-_TENSORS // _SHARDS)
    for shard in range(_SHARDS):
        header, offset = {}, 0
        for number in range(shard * each, min((shard + 1) * each, _TENSORS)):
            layer, expert, kind = number // 1536, number // 6 % 256, number % 6
            leaf = ("gate_proj", "up_proj", "down_proj")[kind % 3]
            shape = ([2048, 7168], [16, 56])[kind // 3]
            size = shape[0] * shape[1] * (1, 4)[kind // 3]
            name = f"model.layers.{layer}.mlp.experts.{expert}.{leaf}.{('weight', 'weight_scale_inv')[kind // 3]}"
            header[name] = {"dtype": ("F8_E4M3", "F32")[kind // 3], "shape": shape, "data_offsets": [offset, offset + size]}
            offset += size
        text = json.dumps(header).encode()
        path = folder / f"model-{shard:05d}-of-{_SHARDS:05d}.safetensors"
        with path.open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(_LENGTH_BYTES + len(text) + offset)
        names.append(path.name)
    return names


def parse_only(folder: Path, names: list[str]) -> int:
    """The floor: the JSON of each header, parsed and let go. Bytes of all headers."""
    total = 0
    for name in names:
        with (folder / name).open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(_LENGTH_BYTES))
            json.loads(file.read(length))
        total += length
    return total


def read(folder: Path, names: list[str]) -> int:
    """What the guard does. How many tensors there are."""
    headers = read_headers(folder, names)
    if not isinstance(headers, Headers):
        raise TypeError(headers.because)
    return len(headers.tensors)


_WORK: Final[dict[str, Callable[[Path, list[str]], int]]] = {"parse": parse_only, "read": read}


def cpu_seconds(work: Callable[[Path, list[str]], int], folder: Path, names: list[str]) -> float:
    """CPU time of one run."""
    start = time.process_time()
    work(folder, names)
    return time.process_time() - start


def peak_mib(kind: str, folder: Path) -> float:
    """Peak memory of a process that does only this."""
    command = [sys.executable, __file__, "--only", kind, "--folder", str(folder)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """The ratio, the seconds and the memory; exit status 1 above the aim."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--only", choices=_WORK, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        _WORK[options.only](options.folder, sorted(path.name for path in options.folder.iterdir()))
        sys.stdout.write(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        names = write_checkpoint(folder)
        header_bytes, tensors = parse_only(folder, names), read(folder, names)
        times = [(cpu_seconds(parse_only, folder, names), cpu_seconds(read, folder, names)) for _ in range(options.runs)]
        floor, ours = median(parse for parse, _ in times), median(read for _, read in times)
        peaks = [peak_mib(kind, folder) for kind in _WORK]
    sys.stdout.write(f"{len(names)} shards, {tensors} tensors, {header_bytes / 1e6:.1f} MB of headers\n")
    sys.stdout.write(f"json.loads {floor:.3f} s, read_headers {ours:.3f} s: {ours / floor:.2f} times (aim {_AIM:g})\n")
    sys.stdout.write(f"peak memory {peaks[0]:.0f} and {peaks[1]:.0f} MiB\n")
    sys.exit(ours / floor > _AIM)


if __name__ == "__main__":
    main()
