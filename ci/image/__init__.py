"""The containers that sessions run in: what is in them, building, comparing and entering them."""

CACHE = "/var/cache/qnn-ci"
"""The only writable folder of an image: home, store and caches."""
