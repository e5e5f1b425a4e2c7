"""What `gpu_check.py` measures on a machine with an NVIDIA GPU: one module per step, and the programs that it starts beside itself."""
