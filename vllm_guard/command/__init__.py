"""The vLLM command line as vLLM itself reads it: pure."""
