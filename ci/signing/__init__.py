"""Signatures of Hexagon libraries: what they are, whether they hold, and making them."""
