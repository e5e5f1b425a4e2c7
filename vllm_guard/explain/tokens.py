"""What a line must hold to be looked at: the cheap test before all others."""

from __future__ import annotations

from typing import Final

# Every line that a signature, a stage or a setting is read from holds one of these until the server is ready; a test holds the signatures to it.
TOKENS: Final = (
    *(b" GCS", b" complete", b" not ", b", in ", b"-default args", b"/dev/shm", b"AF_UNIX", b"ASSERT", b"Buffer", b"CUDA", b"ConnectionPool"),
    *(b"EADDRINUSE", b"ERROR", b"ERR_NO_MEM", b"FAILED", b"GLIBC", b"GPU decoding", b"Gloo", b"KV cache", b"LLM engine (", b"Max retries", b"NCCL"),
    *(b"NOT_SUPPORTED", b"NVIDIA", b"No adapter", b"No compressed", b"No space", b"NoBinary", b"Not Found", b"Offline", b"OutOf", b"Pool(", b"Ray"),
    *(b"Repo id", b"SIGBUS", b"SIGKILL", b"Transformers does", b"VllmConfig", b"_dummy_", b"accuracy", b"ail", b"already", b"amespace(", b"annot"),
    *(b"apability", b"appears to", b"arger", b"at least one", b"bad_alloc", b"blocks: ", b"cache size", b"cheduled restart", b"compatible"),
    *(b"connectFull", b"denied", b"device", b"died", b"divis", b"driver", b"emory", b"ersion", b"exclusive", b"fatal", b"gated", b"git-lfs"),
    *(b"ill", b"imed out", b"imeout", b"imum", b"interface", b"ismatch", b"longer", b"looks like", b"maller", b"missing", b"must ", b"n't "),
    *(b"nable to", b"nexpected", b"nknown", b"no attribute", b"no module", b"no vLLM", b"nough", b"nrecogni", b"nsufficient", b"nsure the"),
    *(b"nterrupt", b"nvalid", b"o such file", b"oad", b"ostname", b"out of bounds", b"out of range", b"presence of", b"raph", b"reater"),
    *(b"require", b"required", b"restricted", b"returned no", b"rror", b"signal", b"size changed", b"specified", b"symbol", b"too large"),
    *(b"too old", b"torch_", b"uantization method", b"unique IP", b"unsatisfied", b"untagged", b"upport", b"valid attention", b"vicorn running"),
    *(b"visibility", b"vllm serve ", b"xceeds", b"xcept", b"xit", b'"MESSAGE":['),
)
# Once the server works, most lines of its log are about requests: only what can still go wrong then, and what begins another start, is looked at.
READY_TOKENS: Final = (
    *(b"emory", b"Killed", b" died", b"us error", b"ddress already in use"),
    *(b"vLLM API server version", b"cheduled restart job", b"Automatically detected platform", "█  version ".encode()),
)
# The line before says which field it is about.
JOINED: Final = b"nput should be"
