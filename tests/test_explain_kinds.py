"""What `explain` says of failed starts of many kinds: short logs in the wordings of many releases, and logs of starts that worked and look bad."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from vllm_guard.explain.diagnose import Diagnosis, diagnose
from vllm_guard.explain.signatures import read_signatures

SIGNATURES = read_signatures()
TAIL = (
    "[rank0]:[W1125 17:19:40.156408912 ProcessGroupNCCL.cpp:1524] Warning: WARNING: destroy_process_group() was not called before program exit",
    "(APIServer pid=1) Traceback (most recent call last):",
    '(APIServer pid=1)   File "/x/vllm/v1/engine/utils.py", line 903, in launch_core_engines',
    "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    "resource_tracker.py:224: UserWarning: resource_tracker: There appear to be 1 leaked shared_memory objects to clean up at shutdown",
)
V1 = "INFO 05-21 09:32:40 [core.py:58] Initializing a V1 LLM engine (v0.10.2) with config: model='m'"
V0 = "INFO 01-16 18:10:52 llm_engine.py:249] Initializing an LLM engine (v0.6.4.post1) with config: model='m', speculative_config=None"
LOADED = "INFO 05-21 09:32:42 [gpu_model_runner.py:1347] Model loading took 18.1450 GiB and 19.302626 seconds"
READY = "INFO:     Application startup complete."
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.02 GiB. GPU 0 has a total capacity of 23.57 GiB of which 235.88 MiB is free. "
    "Including non-PyTorch memory, this process has 23.33 GiB memory in use."
)
SHORT_POOL = (
    "ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is needed, which is larger than the available "
    "KV cache memory (4.20 GiB). Based on the available memory,  the estimated maximum model length is 34400."
)
# What starts say, too, that work.
NOISE = (
    "WARNING 05-05 00:54:01 [nixl_utils.py:34] NIXL is not available: ModuleNotFoundError: No module named 'nixl'",
    "WARNING 05-26 07:50:26 [topk_topp_sampler.py:69] FlashInfer is not available: ImportError. Falling back to the PyTorch-native implementation",
    "ERROR 08-21 08:11:47 [config.py:133] Error retrieving safetensors: Repo id must be in the form 'a/b', retrying 1 of 2",
    "'HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out.' thrown while requesting HEAD https://x, retrying in 1s",
    "[W820 18:57:52.292435752 socket.cpp:764] [c10d] The client socket has failed to connect to [localhost]:336 (errno: 99 - Cannot assign requested address)",
    "[W820 18:57:52.292435752 socket.cpp:200] [c10d] The hostname of the client socket cannot be retrieved. err=-3",
    "INFO 05-21 09:32:40 [utils.py:900] Port 29500 is already in use, trying port 29501",
    "/x/torch/cuda/__init__.py:61: FutureWarning: The pynvml package is deprecated. Please install nvidia-ml-py instead.",
    "Exception ignored in: <function Old.__del__ at 0x7f>",
    "Traceback (most recent call last):",
    "AttributeError: 'Old' object has no attribute 'engine'",
)


def frames(*names: str) -> tuple[str, ...]:
    """A traceback through functions of these names, the outermost first."""
    return ("Traceback (most recent call last):", *(f'  File "/x/vllm/v1/worker.py", line {number}, in {name}' for number, name in enumerate(names, 10)))


def hub(error: str, *rest: str) -> tuple[str, ...]:
    """The chain of exceptions that a failed download leaves."""
    chained = "The above exception was the direct cause of the following exception:"
    return (
        *frames("raise_for_status"),
        "requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://hub/api/models/x",
        chained,
        error,
        *rest,
    )


# name: lines, cause, what may be the first fix
KINDS: dict[str, tuple[tuple[str, ...], str, str]] = {
    # vLLM's gates
    "another process holds most of the card": (
        (V1, "ValueError: Free memory on device (3.12/23.64 GiB) on startup is less than desired GPU memory utilization (0.9, 21.28 GiB)."),
        "gate_free_memory",
        "free_gpu",
    ),
    "a desktop holds a little of the card": (
        (V1, "ValueError: Free memory on device cuda:0 (22.4/23.64 GiB) on startup is less than desired GPU memory utilization (0.95, 22.46 GiB)."),
        "gate_free_memory",
        "lower_utilization",
    ),
    "unified memory is a little short": (
        (V1, "ValueError: Free memory on device cuda:0 (102.2/121.69 GiB) on startup is less than desired GPU memory utilization (0.87, 105.87 GiB)."),
        "gate_free_memory",
        "lower_utilization free_host_memory",
    ),
    "the sentence of the gate was cut off": (
        ("ValueError: Free memory on device (5.92/79.19 GiB) on startup is",),
        "gate_free_memory",
        "free_gpu",
    ),
    "nothing is left for blocks in V0": (
        (V0, "ERROR 11-18 18:07:30 engine.py:366] ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"),
        "gate_cache_blocks",
        "raise_utilization quantize_or_smaller_model",
    ),
    "nothing is left and only the negative number tells": (
        (
            V1,
            LOADED,
            "INFO 05-21 09:33:00 [gpu_worker.py:276] Available KV cache memory: -2.14 GiB",
            "ERROR 05-21 09:33:00 [core.py:396] EngineCore failed to start.",
        ),
        "gate_cache_blocks",
        "raise_utilization quantize_or_smaller_model",
    ),
    "one sequence does not fit in V1": (
        (
            V1,
            SHORT_POOL,
        ),
        "gate_one_sequence",
        "lower_model_len",
    ),
    "one sequence does not fit in V0": (
        (V0, "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can be stored in KV cache (30272)."),
        "gate_one_sequence",
        "lower_model_len",
    ),
    "somebody released memory while 0.8 profiled": (
        ("AssertionError: Error in memory profiling. Initial free memory 15246950400, current free memory 15300000000. This happens when the GPU memory was",),
        "profiling_memory_released",
        "retry_when_steady",
    ),
    # out of memory
    "the driver has no memory for the context": (
        (V1, *frames("init_device", "set_device"), "torch.AcceleratorError: CUDA error: out of memory", "CUDA kernel errors might be asynchronously reported"),
        "oom_at_context",
        "free_gpu wait",
    ),
    "NCCL has no memory left for its first call": (
        (
            V1,
            *frames("init_device", "init_worker_distributed_environment"),
            "ncclUnhandledCudaError: Call to CUDA function failed.",
            "Cuda failure 'out of memory'",
        ),
        "oom_at_context distributed_setup",
        "free_gpu wait",
    ),
    "weights do not fit": (
        (V1, *frames("load_model", "initialize_model", "create_weights"), OOM),
        "oom_at_load",
        "quantize_or_smaller_model more_gpus",
    ),
    "weights do not fit while they are repacked": (
        (V1, "Loading safetensors checkpoint shards: 100% Completed | 4/4", *frames("load_model", "process_weights_after_loading"), OOM),
        "oom_at_load",
        "quantize_or_smaller_model more_gpus",
    ),
    "another process holds half of the card while weights load": (
        (
            V1,
            *frames("load_model"),
            f"{OOM} Process 4711 has 12.50 GiB memory in use. Process 4800 has 11.00 GiB memory in use.",
        ),
        "oom_at_load",
        "free_gpu",
    ),
    "a V0 worker has no memory while it loads": (
        ("(VllmWorkerProcess pid=9) ERROR 07-30 18:05:25 x.py:226] Exception in worker while processing method load_model: CUDA out of memory.",),
        "oom_at_load",
        "quantize_or_smaller_model more_gpus",
    ),
    "images of the profile run do not fit in V0": (
        (
            V0,
            "INFO 10-23 19:55:16 model_runner.py:1067] Loading model weights took 9.85 GB",
            *frames("determine_num_available_blocks", "profile_run", "forward"),
            OOM,
        ),
        "oom_at_profile",
        "lower_num_seqs lower_batched_tokens limit_multimodal",
    ),
    "the profile run of V1 does not fit": (
        (V1, LOADED, *frames("determine_available_memory", "profile_run", "_dummy_run", "forward"), OOM),
        "oom_at_profile",
        "lower_num_seqs lower_batched_tokens quantize_or_smaller_model",
    ),
    "a notebook shows the profile run": (
        ("File /opt/vllm/worker/worker.py:223, in Worker.determine_num_available_blocks(self)", "--> 223 self.model_runner.profile_run()", OOM),
        "oom_at_profile",
        "lower_num_seqs lower_batched_tokens limit_multimodal",
    ),
    "autotuning needs too much": (
        (V1, LOADED, *frames("compile_or_warm_up_model", "kernel_warmup", "flashinfer_autotune", "_dummy_run"), OOM),
        "oom_at_profile",
        "lower_num_seqs lower_batched_tokens quantize_or_smaller_model",
    ),
    "only marks tell that the profile run went on": (
        (V1, LOADED, "INFO 05-21 09:32:44 [backends.py:430] Dynamo bytecode transform time: 19.00 s", OOM),
        "oom_at_profile",
        "lower_num_seqs lower_batched_tokens quantize_or_smaller_model",
    ),
    "a dummy run inside the capture": (
        (V1, LOADED, *frames("compile_or_warm_up_model", "capture_model", "_capture_cudagraphs", "_dummy_run", "forward"), OOM),
        "oom_at_graph_capture",
        "enforce_eager",
    ),
    "a progress bar tells that graphs were captured": (
        (V0, "INFO 12-20 20:25:46 gpu_executor.py:57] # GPU blocks: 3852, # CPU blocks: 4096", "Capturing CUDA graph shapes:  40%|####      | 14/35", OOM),
        "oom_at_graph_capture",
        "enforce_eager",
    ),
    "the blocks could not be allocated": (
        (V1, LOADED, *frames("initialize_from_config", "initialize_kv_cache", "_allocate_kv_cache_tensors"), OOM),
        "oom_at_kv_allocation",
        "lower_utilization free_gpu",
    ),
    "the sampler's warm-up of V1": (
        (
            V1,
            *frames("compile_or_warm_up_model", "_dummy_sampler_run"),
            OOM,
            "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests.",
        ),
        "oom_at_sampler_warmup",
        "lower_num_seqs",
    ),
    "memory ran out when requests came": (
        (V1, READY, 'INFO:     10.0.0.1:5000 - "POST /v1/chat/completions HTTP/1.1" 200 OK', *frames("execute_model"), OOM),
        "oom_at_runtime",
        "lower_utilization",
    ),
    "a Jetson has no memory left and cannot say so": (
        (V1, *frames("load_model", "create_weights"), 'RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "/x/CUDACachingAllocator.cpp":838'),
        "oom_at_load",
        "quantize_or_smaller_model more_gpus",
    ),
    "a request of V0 has no memory, and the beginning is cut off": (
        (
            "INFO 12-19 09:33:44 model_runner_base.py:149] Completed writing input of failed execution to err.pkl.",
            *frames("run_engine_loop", "engine_step", "step_async", "execute_model", "forward"),
            OOM,
        ),
        "oom_at_runtime",
        "lower_utilization",
    ),
    "a request of V1 has no memory, and the beginning is cut off": (
        (*frames("run_busy_loop", "_process_engine_step", "step", "execute_model", "forward"), OOM),
        "oom_at_runtime",
        "lower_utilization",
    ),
    "a made-up request of the second runner": (
        (V1, LOADED, *frames("determine_available_memory", "profile_run", "_dummy_run", "execute_model", "forward"), OOM),
        "oom_at_profile",
        "lower_num_seqs lower_batched_tokens quantize_or_smaller_model",
    ),
    "an AMD card has no memory for weights": (
        (
            V1,
            *frames("load_model"),
            "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 19.98 GiB of which 0 bytes is free.",
        ),
        "oom_at_load",
        "quantize_or_smaller_model more_gpus",
    ),
    # the host
    "Ray killed the task for the node's memory": (
        ("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",),
        "host_out_of_memory",
        "more_host_memory",
    ),
    "a shell says Killed after the blocks were counted": (
        ("INFO 11-20 10:45:57 gpu_executor.py:102] # GPU blocks: 12453, # CPU blocks: 2730", "Killed"),
        "host_out_of_memory",
        "more_host_memory",
    ),
    "a V0 worker died of signal 9": (
        (
            "Loading safetensors checkpoint shards:  50% Completed | 4/8",
            "ERROR 03-31 15:46:00 multiproc_worker_utils.py:120] Worker VllmWorkerProcess pid 77 died, exit code: -9",
        ),
        "host_out_of_memory",
        "more_host_memory",
    ),
    "the engine's process died of signal 9": (
        ("RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore_DP0': -9}",),
        "host_out_of_memory",
        "more_host_memory",
    ),
    "the compiler of kernels was killed": (
        (*frames("build_and_load"), "RuntimeError: Ninja build failed. Ninja output:", "nvcc error   : 'cicc' died due to signal 9 (Kill signal)"),
        "host_out_of_memory",
        "more_host_memory fewer_build_jobs",
    ),
    "weights cannot be mapped": (
        ("RuntimeError: unable to mmap 4976698672 bytes from file </models/x/model-1.safetensors>: Cannot allocate memory (12)",),
        "host_out_of_memory",
        "more_host_memory",
    ),
    "shared memory of a container is full": (
        (
            "NCCL WARN Error: failed to extend /dev/shm/nccl-UbzKZ9 to 9637892 bytes",
            "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
        ),
        "shared_memory_full",
        "enlarge_shm",
    ),
    "tensors of a worker cannot be shared": (
        ("RuntimeError: unable to write to file </torch_1234_5678_0>: No space left on device (28)",),
        "shared_memory_full",
        "enlarge_shm",
    ),
    "the queue of the workers has no room": (
        ("RuntimeError: Insufficient space in /dev/shm for the queue: 160 MiB required, 64 MiB free. Increase /dev/shm (e.g. --shm-size or --ipc=host).",),
        "shared_memory_full",
        "enlarge_shm",
    ),
    "a bus error and nothing else": ((V1, "Bus error (core dumped)"), "shared_memory_full", "enlarge_shm"),
    # several processes and hosts
    "NCCL and no more": (
        (*frames("init_device", "ncclCommInitRank"), "RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)"),
        "distributed_setup",
        "read_nccl_debug",
    ),
    "Ray has fewer cards than asked for": (
        (
            "WARNING 03-30 14:11:45 [ray_utils.py:352] Tensor parallel size (16) exceeds available GPUs (8). This may result in Ray failures",
            "ValueError: Cannot provide a placement group of placement_group_specs=[{'GPU': 1.0}] within 1800 seconds.",
        ),
        "distributed_setup",
        "fix_cluster",
    ),
    "the first node does not answer": (
        ("[E socket.cpp:957] [c10d] The client socket has timed out after 60s while trying to connect to (10.1.16.222, 29400).",),
        "distributed_setup",
        "fix_hostname fix_cluster",
    ),
    "two nodes have one address": (
        ("RuntimeError: Every node should have a unique IP address. Got 2 nodes with node ids [...] and 1 unique IP addresses",),
        "distributed_setup",
        "fix_hostname",
    ),
    "Gloo is told an interface that is not there": (
        ("RuntimeError: [enforce fail at gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find address for: eth0",),
        "distributed_setup",
        "fix_hostname fix_cluster",
    ),
    "Ray has no room for the ranks": (
        ("ValueError: Not enough resources to allocate 4 placement groups, only created 2 placement groups. Available resources: {}",),
        "distributed_setup",
        "fix_cluster",
    ),
    "Ray of two releases": (
        ("RuntimeError: Version mismatch: The cluster was started with:", "    Ray: 2.43.0"),
        "distributed_setup",
        "fix_cluster",
    ),
    "an address of another host": (
        ("ERROR:    [Errno 99] error while attempting to bind on address ('10.1.2.3', 8000): cannot assign requested address",),
        "distributed_setup",
        "fix_hostname",
    ),
    "the port of torch's store is in use": (
        ("torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, code: -98, name: EADDRINUSE",),
        "port_in_use",
        "fix_port",
    ),
    "the port of the engine's socket is in use": (
        ("zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:5570')",),
        "port_in_use",
        "fix_port",
    ),
    "a socket was closed and the engine says why": (
        (
            "Task exception was never retrieved",
            "zmq.error.ZMQError: Operation not supported",
            "ERROR 12-08 10:00:00 engine.py:366] ValueError: No available memory for the cache blocks.",
            "RuntimeError: Engine process failed to start. See stack trace for the root cause.",
        ),
        "gate_cache_blocks",
        "raise_utilization quantize_or_smaller_model",
    ),
    "a socket was closed and nothing else is known": (
        ("Task exception was never retrieved", "zmq.error.ZMQError: Operation not supported", "RuntimeError: Engine process failed to start. See stack trace"),
        "ipc_unsupported",
        "fix_sandbox",
    ),
    "memory of another card cannot be opened": (
        (V1, "Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:453 'invalid argument'"),
        "ipc_unsupported",
        "fix_sandbox",
    ),
    # devices and drivers
    "docker was not told about the cards": (
        ('docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',),
        "no_gpu_visible",
        "fix_device_selection",
    ),
    "the container has no driver": (
        ("ImportError: libcuda.so.1: cannot open shared object file: No such file or directory",),
        "no_gpu_visible",
        "fix_device_selection",
    ),
    "no platform was found": (
        (
            "INFO 11-20 18:08:10 [__init__.py:220] No platform detected, vLLM is running on UnspecifiedPlatform",
            "WARNING 11-20 18:08:11 [_custom_ops.py:20] Failed to import from vllm._C with ImportError('libcudart.so.12: cannot open shared object file')",
            "RuntimeError: Failed to infer device type, please set the environment variable `VLLM_LOGGING_LEVEL=DEBUG`",
        ),
        "no_gpu_visible",
        "fix_device_selection",
    ),
    "a slice is named by its identity": (
        (
            "ValueError: invalid literal for int() with base 10: 'GPU-af7b61d8'",
            "ValidationError: Model architectures ['LlamaForCausalLM'] failed to be inspected",
        ),
        "device_selection_invalid",
        "fix_device_selection",
    ),
    "a short identity is not found": (
        ("vllm.third_party.pynvml.NVMLError_NotFound: Not Found",),
        "device_selection_invalid",
        "fix_device_selection",
    ),
    "more ranks than cards": (
        (*frames("init_device", "set_device"), "torch.AcceleratorError: CUDA error: invalid device ordinal"),
        "device_selection_invalid",
        "fix_device_selection",
    ),
    "the image needs a newer driver": (
        ("nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.9, please update your driver to a newer version",),
        "driver_too_old",
        "fix_driver",
    ),
    "driver and libraries differ": (
        (
            *frames("_lazy_init"),
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display driver / cuda driver combination",
        ),
        "driver_mismatch",
        "fix_driver",
    ),
    "the fabric manager does not run": (
        ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",),
        "driver_mismatch",
        "fix_driver",
    ),
    "kernels of this card are missing": (
        (V1, *frames("init_device"), "RuntimeError: CUDA error: no kernel image is available for execution on the device"),
        "gpu_arch_unsupported",
        "other_build",
    ),
    "kernels of this AMD card are missing": (
        (V1, *frames("load_model", "_compute_inv_freq"), "RuntimeError: HIP error: invalid device function"),
        "gpu_arch_unsupported",
        "other_build",
    ),
    "the toolkit does not know the card": (
        (*frames("build_and_load"), "RuntimeError: Ninja build failed. Ninja output:", "nvcc fatal   : Unsupported gpu architecture 'compute_120a'"),
        "gpu_arch_unsupported",
        "other_build other_backend",
    ),
    "FlashInfer has no architecture for the card": (
        (*frames("get_nvcc_flags_list"), "RuntimeError: No supported CUDA architectures found for major versions [10]."),
        "gpu_arch_unsupported",
        "other_build other_backend",
    ),
    "a kernel of Triton needs more shared memory than the card has": (
        (V1, "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 81920, Hardware limit: 65536. Reducing block sizes may help."),
        "gpu_arch_unsupported",
        "other_backend other_build",
    ),
    "Triton has no type for the card": (
        ("ValueError: type fp8e4nv not supported in this architecture. The supported fp8 dtypes are ('fp8e4b15', 'fp8e5')",),
        "gpu_arch_unsupported",
        "other_backend other_build",
    ),
    "a scheme of a quantization that the card cannot": (
        ("RuntimeError: ('Quantization scheme is not supported for ', 'the current GPU. Min capability: 80. ', 'Current capability: 75.')",),
        "gpu_arch_unsupported",
        "other_backend other_build",
    ),
    "a backend that was asked for and cannot": (
        ("ValueError: Selected backend FLASHMLA is not valid for this configuration. Reason: [compute capability not supported]",),
        "gpu_arch_unsupported",
        "other_backend",
    ),
    "no backend of attention remains": (
        ("ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(head_size=256). Reasons: {FLASH_ATTN: [compute capability]}",),
        "gpu_arch_unsupported",
        "other_backend other_build",
    ),
    "bfloat16 on an old card": (
        ("ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla T4 GPU has compute capability 7.5.",),
        "dtype_unsupported",
        "set_dtype",
    ),
    "bfloat16 with a quantization for float16": (
        ("  Value error, torch.bfloat16 is not supported for quantization method awq. Supported dtypes: [torch.float16] [type=value_error]",),
        "dtype_unsupported",
        "set_dtype",
    ),
    "CUDA was used before the fork": (
        ("RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start method",),
        "cuda_reinit_in_fork",
        "use_spawn",
    ),
    "a count of cards that torch did not expect": (
        ("torch.cuda.DeferredCudaCallError: CUDA call failed lazily at initialization with error: device >= 0 && device < num_gpus INTERNAL ASSERT FAILED",),
        "device_selection_invalid",
        "fix_device_selection",
    ),
    "a card that one process at a time may use": (
        (V1, *frames("init_device", "set_device"), "torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
        "device_selection_invalid",
        "fix_device_selection",
    ),
    "an index that is not among the visible": (
        ("IndexError: visible device ordinal 3 is out of range for CUDA_VISIBLE_DEVICES=0,1",),
        "device_selection_invalid",
        "fix_device_selection",
    ),
    "the driver fails without a reason": (
        ("RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env variable CUDA_VISIBLE_DEVICES",),
        "driver_mismatch",
        "fix_driver",
    ),
    "torch warns of the card, and another package is broken": (
        (
            "NVIDIA GB10 with CUDA capability sm_121 is not compatible with the current PyTorch installation.",
            "ImportError: flash_attn_2_cuda.so: undefined symbol: _ZNK3c106SymInt6sym_neERKS0_",
        ),
        "package_incompatible",
        "fix_packages",
    ),
    # the command line
    "a flag of another release": (("usage: vllm [-h] [-v]", "vllm: error: unrecognized arguments: --temperature 0.8"), "unknown_flag", "fix_flag"),
    "a subcommand that is none": (("vllm: error: argument subparser: invalid choice: 'server' (choose from serve, bench)",), "invalid_value", "fix_flag"),
    "JSON that cannot be read": (
        ("vllm serve: error: argument --compilation-config/-O: Value {'level: 3} cannot be converted to <function loads at 0x7f>.",),
        "invalid_value",
        "fix_flag",
    ),
    "a model is missing on the command line": (("vllm serve: error: the following arguments are required: model_tag",), "invalid_value", "fix_flag"),
    "tools without their parser": (("TypeError: Error: --enable-auto-tool-choice requires --tool-call-parser",), "invalid_value", "fix_flag"),
    "a parser that is none": (("KeyError: 'invalid tool call parser: llama (chose from { hermes,llama3_json })'",), "invalid_value", "fix_flag"),
    "a service of kubernetes named vllm": (
        ("ValueError: VLLM_PORT 'tcp://10.43.0.7:8000' appears to be a URI. This may be caused by a Kubernetes service discovery issue",),
        "invalid_value",
        "fix_flag",
    ),
    "code of the model is not trusted": (
        ("  Value error, The repository /m contains custom code which must be executed to correctly load the model. [type=value_error]",),
        "invalid_value",
        "fix_flag",
    ),
    "a longer length than the model's": (
        ("  Value error, User-specified max_model_len (65536) is greater than the derived max_model_len (max_position_embeddings=32768 or",),
        "invalid_value",
        "lower_model_len",
    ),
    "a batch that is smaller than the length": (
        (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for SchedulerConfig",
            "  Value error, max_num_batched_tokens (2048) is smaller than max_model_len (40960).",
        ),
        "batched_tokens_below_model_len",
        "raise_batched_tokens enable_chunked_prefill",
    ),
    "a setting that pydantic refuses in words that are not known": (
        ("pydantic_core._pydantic_core.ValidationError: 1 validation error for ParallelConfig", "  Value error, nothing of this is known [type=value_error]"),
        "invalid_value",
        "fix_flag",
    ),
    "two flags that exclude each other": (
        ("ValueError: --api-server-count=2 cannot be used with --headless (no API servers are started in headless mode).",),
        "invalid_value",
        "fix_flag",
    ),
    "heads do not divide": (
        ("  Value error, Total number of attention heads (28) must be divisible by tensor parallel size (8). [type=value_error]",),
        "parallel_size_does_not_divide",
        "fix_parallel_size",
    ),
    "quantized weights do not divide": (
        ("ValueError: Weight input_size_per_partition = 10944 is not divisible by min_thread_k = 128. Consider reducing tensor_parallel_size",),
        "parallel_size_does_not_divide",
        "fix_parallel_size",
    ),
    "quantized weights are not aligned": (
        ("ValueError: The input size is not aligned with the quantized weight shape. This can be caused by too large tensor parallel size.",),
        "parallel_size_does_not_divide",
        "fix_parallel_size",
    ),
    # the model
    "a repository that does not exist": (
        hub(
            "huggingface_hub.errors.RepositoryNotFoundError: 401 Client Error. (Request ID: Root=1)", "Repository Not Found for url: https://hub/api/models/x."
        ),
        "model_not_found",
        "fix_path",
    ),
    "a repository that is gated": (
        hub("huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: Root=1)", "OSError: You are trying to access a gated repo."),
        "model_access_denied",
        "get_access",
    ),
    "the hub cannot be reached": (
        (
            "requests.exceptions.ConnectionError: (MaxRetryError(\"HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /x\"))",
            "OSError: We couldn't connect to 'https://huggingface.co' to load this file, couldn't find it in the cached files",
        ),
        "model_not_found",
        "fix_path",
    ),
    "a folder that is none of a model": (
        ("ERROR 12-07 02:10:11 engine.py:366] Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/models/'. Use `repo_type` if needed.",),
        "model_not_found",
        "fix_path",
    ),
    "a folder without a configuration": (
        ("ValueError: Could not detect config format for no config file found. Ensure your model has either config.json or params.json.",),
        "model_incomplete",
        "redownload fix_path",
    ),
    "a GGUF file that is not there": (("FileNotFoundError: [Errno 2] No such file or directory: '/models/q4.gguf'",), "model_not_found", "fix_path"),
    "a download that broke off": (
        ("OSError: Consistency check failed: file should be of size 4976698672 but has size 31457280 (model-00001-of-00004.safetensors).",),
        "model_incomplete",
        "redownload",
    ),
    "files of git without their content": (("_pickle.UnpicklingError: invalid load key, 'v'.",), "model_incomplete", "redownload"),
    "no tokenizer in the folder": (
        ("OSError: Can't load tokenizer for '/models/x'. If you were trying to load it from 'https://hub', make sure",),
        "model_incomplete",
        "redownload fix_path",
    ),
    "an architecture of a newer release": (
        (
            "KeyError: 'qwen9'",
            "During handling of the above exception, another exception occurred:",
            "ValueError: The checkpoint you are trying to load has model type `qwen9` but Transformers does not recognize this architecture.",
        ),
        "architecture_unsupported",
        "upgrade_packages other_checkpoint",
    ),
    "an architecture that was taken out": (
        ("ValueError: Model architecture OldForCausalLM was supported in vLLM until v0.9, and is not supported anymore.",),
        "architecture_unsupported",
        "upgrade_packages other_checkpoint",
    ),
    "weights of a quantization that this model does not know": (
        (V1, *frames("load_model", "load_weights"), "KeyError: 'layers.0.mlp.down_proj.weight_scale'"),
        "architecture_unsupported",
        "other_checkpoint upgrade_packages",
    ),
    "an adapter that is not there": (
        ("ValueError: Loading lora x failed: No adapter found for /models/adapter",),
        "model_not_found",
        "fix_path",
    ),
    "an adapter with more than vLLM takes": (
        ("ValueError: base_model.model.lm_head.weight is unsupported LoRA weight",),
        "architecture_unsupported",
        "other_checkpoint upgrade_packages",
    ),
    "a cache that may not be written": (
        ("OSError: PermissionError at /.cache when downloading org/x. Check cache directory permissions. Common causes: 1) another user is downloading",),
        "model_access_denied",
        "fix_path",
    ),
    "a configuration that is no JSON": (
        ("pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig", "  Value error, Expecting value: line 1 column 1 (char 0)"),
        "model_incomplete",
        "redownload",
    ),
    # packages and tools
    "vLLM was built for another torch": (
        ("ImportError: /x/vllm/_C.abi3.so: undefined symbol: _ZN5torch3jit17parseSchemaOrNameERKSsb",),
        "package_incompatible",
        "fix_packages",
    ),
    "a tokenizer of a newer transformers": (
        (
            *frames("get_cached_tokenizer"),
            "AttributeError: Qwen2Tokenizer has no attribute all_special_tokens_extended. Did you mean: 'num_special_tokens_to_add'?",
        ),
        "package_incompatible",
        "fix_packages",
    ),
    "a tokenizer's file of a newer release": (
        ("Exception: data did not match any variant of untagged enum ModelWrapper at line 757479 column 3",),
        "package_incompatible",
        "fix_packages",
    ),
    "two parts of FlashInfer differ": (
        ("RuntimeError: flashinfer-cubin version (0.6.13) does not match flashinfer version (0.6.14). Please install the same version of both packages.",),
        "package_incompatible",
        "fix_packages",
    ),
    "torch without CUDA": (("AssertionError: Torch not compiled with CUDA enabled",), "package_incompatible", "fix_packages"),
    "the operators of vLLM are missing": (
        (
            "WARNING 06-13 11:42:20 _custom_ops.py:11] Failed to import from vllm._C with ModuleNotFoundError(\"No module named 'vllm._C'\")",
            "AttributeError: '_OpNamespace' '_C' object has no attribute 'rms_norm'",
        ),
        "package_incompatible",
        "fix_packages",
    ),
    "no headers of Python": (
        (
            LOADED,
            "/x/main.c:5:10: fatal error: Python.h: No such file or directory",
            "subprocess.CalledProcessError: Command '['/usr/bin/gcc', '/x/main.c']'",
        ),
        "compiler_missing",
        "install_compiler",
    ),
    "the linker does not find the driver's library": (
        ("/usr/bin/ld: cannot find -lcuda: No such file or directory", "collect2: error: ld returned 1 exit status"),
        "compiler_missing",
        "install_compiler",
    ),
    "no nvcc for FlashInfer": (
        ("RuntimeError: Ninja build failed. Ninja output:", "/bin/sh: 1: /usr/local/cuda/bin/nvcc: not found"),
        "compiler_missing",
        "install_compiler",
    ),
    "only the tail of the parent": (
        ("INFO 05-21 09:32:40 [core.py:58] x", "ERROR 05-21 09:32:40 [core.py:396] EngineCore failed to start."),
        "log_incomplete",
        "more_log",
    ),
    "somebody pressed a key": ((V1, LOADED, "^CTraceback (most recent call last):", "KeyboardInterrupt"), "interrupted", "none"),
}

# What looks bad in starts that worked, or that nobody can name.
NO_CAUSE: dict[str, tuple[str, ...]] = {
    "noise, and then nothing": (V1, *NOISE),
    "noise, then it is ready": (V1, *NOISE, READY),
    "a backend that is passed over": (
        "ERROR 04-26 12:03:57 [fa_utils.py:145] Cannot use FA version 2 is not supported due to FA2 is only supported on devices with compute capability >= 8",
        V1,
    ),
    "an ordinary end": (
        V1,
        READY,
        "INFO:     Shutting down",
        "ERROR 06-26 23:10:17 [async_llm.py:420] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",
        "UserWarning: resource_tracker: There appear to be 1 leaked semaphore objects to clean up at shutdown",
        "nanobind: leaked 2 instances!",
    ),
    "a request with an error": (
        V1,
        READY,
        "ERROR 07-30 17:42:47 [serving_chat.py:932] Traceback (most recent call last):",
        "ERROR 07-30 17:42:47 [serving_chat.py:932] TypeError: can only concatenate str (not 'list') to str",
        'INFO:     10.0.0.1:5000 - "POST /v1/chat/completions HTTP/1.1" 400 Bad Request',
    ),
    "V0 speaks of memory while it captures": (
        V0,
        "INFO 04-24 08:27:56 [model_runner.py:1456] Capturing cudagraphs for decoding. If out-of-memory error occurs during cudagraph capture, consider",
        READY,
    ),
    "illegal access when requests came": (V1, READY, "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"),
    "an exception that nobody knows, and what follows from it": (
        V1,
        *frames("init_device", "UvaBuffer"),
        "RuntimeError: UVA is not available",
        "AttributeError: 'GPUModelRunner' object has no attribute 'model'",
    ),
    "numbers of an environment": ("[pip3] numpy==2.3.5", "Error codes: 803 lines", "GPU0     X      PIX     SYS     0-7,32-39       0               N/A"),
}


def bare(line: str) -> str:
    """The line as a terminal shows it."""
    return line


def composed(line: str) -> str:
    """The line as docker compose shows it, in colours."""
    return f"\x1b[36mvllm-1  | \x1b[0m{line}"


def in_a_pod(line: str) -> str:
    """The line as kubernetes stores it."""
    return f"2026-03-11T17:57:31.011162295Z stderr F {line}"


def quoted(line: str) -> str:
    """The line as it is quoted in a thread, with the colours of Ray as a viewer writes them."""
    return f"> ^[[36m(RayWorkerWrapper pid=2247, ip=)^[[0m {line}"


def nested(line: str) -> str:
    """The line of a worker whose engine wraps what it says."""
    return f"[2026-08-21T19:42:40Z] (EngineCore_0 pid=392) (VllmWorker TP1 pid=392) {line}"


def as_json(line: str) -> str:
    """The line as docker stores it."""
    return json.dumps({"log": line + "\n", "stream": "stderr", "time": "2026-03-11T17:57:31.011162295Z"})


WRITTEN = (bare, composed, in_a_pod, quoted, nested, as_json)


def diagnosed(lines: tuple[str, ...], written: Callable[[str], str]) -> Diagnosis:
    """The diagnosis of these lines."""
    return diagnose([("\n".join(map(written, lines)) + "\n").encode()], SIGNATURES)


@pytest.mark.parametrize("written", WRITTEN, ids=lambda each: each.__name__)
@pytest.mark.parametrize(("lines", "causes", "fixes"), KINDS.values(), ids=KINDS)
def test_each_kind_of_failure_has_its_cause_and_its_first_fix(lines: tuple[str, ...], causes: str, fixes: str, written: Callable[[str], str]) -> None:
    """The cause is named, whatever stands in front of the lines, whatever was lived with before and whatever the parents say at the end."""
    for log in (lines, (*lines, *TAIL), (*NOISE, *lines, *TAIL)):
        found = diagnosed(log, written)
        assert found.cause in causes.split(), found
        assert found.fixes[0].action in fixes.split(), found


@pytest.mark.parametrize("written", WRITTEN, ids=lambda each: each.__name__)
@pytest.mark.parametrize("lines", NO_CAUSE.values(), ids=NO_CAUSE)
def test_what_only_looks_bad_has_no_cause(lines: tuple[str, ...], written: Callable[[str], str]) -> None:
    """A start that worked, or a failure that nobody knows, gets no cause: a wrong one is worse than none."""
    assert diagnosed(lines, written).cause is None


@pytest.mark.parametrize(
    ("lines", "causes"), [row[:2] for row in KINDS.values() if len(row[0]) == 1], ids=[name for name, row in KINDS.items() if len(row[0]) == 1]
)
def test_records_that_lost_their_line_ends_are_told_apart(lines: tuple[str, ...], causes: str) -> None:
    """A log that was pasted as one line: what is said as information is not the cause, the error behind it is."""
    said = lines[0] if " ERROR " in lines[0] or lines[0].startswith("ERROR ") else f"ERROR 05-21 09:32:41 [core.py:396] {lines[0]}"
    assert diagnosed((f"{V1} {LOADED} {said} ERROR 05-21 09:32:42 [core.py:396] EngineCore failed to start.",), bare).cause in causes.split()
