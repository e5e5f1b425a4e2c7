"""The model hub, asked for the few files that tell what a model needs, before it is on this disk."""
