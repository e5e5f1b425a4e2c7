"""The whole thing without a GPU and without vLLM."""
