"""Qualcomm AI Hub runs a context binary on a hosted phone. Its client runs in an environment of its own."""
