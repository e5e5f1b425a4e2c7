"""Put in front of `vllm serve`: starts it when it can, says what it changed, and says who holds the memory when it cannot."""

__version__ = "0.1.0"
