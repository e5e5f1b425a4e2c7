"""What guards promise their vLLM on a card until that has taken it: two starts at once read the same free memory."""
