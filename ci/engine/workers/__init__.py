"""Processes that import something heavy once and then serve one order after another.

Orders go as JSON lines to a worker's stdin, replies come as JSON lines on a pipe of their own; what libraries
print goes to the log that the order names. `parent` is the side of the stage, `child` that of the process.
"""
