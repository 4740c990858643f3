"""Signing the Hexagon libraries that LPAI loads: by the Hexagon SDK's elfsigner, or as a rehearsal."""
