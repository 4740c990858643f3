"""GitHub's runner in miniature: it runs our workflows here, for the tests of what another repository gets.

How the files are written is held by actionlint, their schemas and zizmor.
"""
