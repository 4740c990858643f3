"""Devices: what goes to them as a bundle, and running it there."""
