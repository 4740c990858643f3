"""The site: the hand-written pages, and pages of what is known, made from data."""
