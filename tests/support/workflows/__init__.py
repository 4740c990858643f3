"""GitHub's runner in miniature: it runs our workflows here, for the tests that hold them.

It knows what our workflows use. What it does not know (a key, a function, an action, an input) is an error
and never silently ignored: extend it when a workflow needs more.
"""
