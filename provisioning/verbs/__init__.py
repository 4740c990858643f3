"""One module a verb of `python -m provisioning`."""
