"""The budget, the batch, the gates and the decision: pure."""
