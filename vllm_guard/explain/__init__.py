"""Why a start failed: a log in, its first cause out."""
