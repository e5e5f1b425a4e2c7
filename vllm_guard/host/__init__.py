"""Readers of this host: NVML, processes, memory, devices, the vLLM install."""
