"""A decision as text, bars and JSON."""
