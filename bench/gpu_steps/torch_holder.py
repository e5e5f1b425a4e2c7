"""A process with a CUDA context of torch: it looks at free memory, holds memory, and makes the cuBLAS handles that vLLM makes. Needs torch only.

`torch_holder.py UUID PYNVML`: the card for reading NVML from within, and the file of the module pynvml.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from typing import Any

from gpu_steps.answers import answer_lines

_held: list[Any] = []


def hello() -> dict[str, Any]:
    """Imports torch; makes no context."""
    import torch  # noqa: PLC0415 - a missing torch is an answer

    return {"pid": os.getpid(), "torch": torch.__version__, "cuda": torch.version.cuda}


def look() -> dict[str, int]:
    """CUDA's free and total bytes as vLLM reads them (torch.cuda.mem_get_info), and what torch's allocator keeps. The first look makes the context."""
    import torch  # noqa: PLC0415 - as above

    free_bytes, total_bytes = torch.cuda.mem_get_info()
    return {"free_bytes": free_bytes, "total_bytes": total_bytes, "torch_bytes": torch.cuda.memory_reserved()}


def properties() -> dict[str, Any]:
    """Total of the device properties, and whether CUDA calls the GPU integrated (vLLM counts host memory then)."""
    import torch  # noqa: PLC0415 - as above

    found = torch.cuda.get_device_properties(0)
    return {"total_bytes": found.total_memory, "integrated": bool(getattr(found, "is_integrated", False)), "name": found.name}


def hold(size_bytes: int) -> dict[str, int]:
    """Holds this much more, then looks."""
    import torch  # noqa: PLC0415 - as above

    _held.append(torch.empty(size_bytes, dtype=torch.uint8, device="cuda"))
    torch.cuda.synchronize()
    return look()


def multiply(library: str) -> dict[str, int]:
    """One product with `cublas` or `cublaslt`, then a look: its handle and workspace are there from then on."""
    import torch  # noqa: PLC0415 - as above

    torch.backends.cuda.preferred_blas_library(library)
    square = torch.ones((64, 64), dtype=torch.float16, device="cuda")
    torch.mm(square, square)
    torch.cuda.synchronize()
    return look()


def empty() -> dict[str, int]:
    """What vLLM does before it measures: collects garbage, gives back torch's cached blocks, looks."""
    import torch  # noqa: PLC0415 - as above

    gc.collect()
    torch.cuda.empty_cache()
    return look()


def lists() -> Any:
    """NVML's process lists, read from this process."""
    spec = importlib.util.spec_from_file_location("pynvml", sys.argv[2])
    if spec is None or spec.loader is None:
        msg = f"no module at {sys.argv[2]}"
        raise ImportError(msg)
    sys.modules["pynvml"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    from gpu_steps.nvml_reader import Reader  # noqa: PLC0415 - needs pynvml, which torch's interpreter may lack

    return Reader(sys.argv[1]).lists()


if __name__ == "__main__":
    answer_lines(
        {"hello": hello, "look": look, "properties": properties, "hold": hold, "multiply": multiply, "empty": empty, "lists": lists},
    )
