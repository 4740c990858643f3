"""Processes that import something heavy once and then serve one order after another.

Orders are JSON lines on a worker's stdin. Replies are JSON lines on a separate pipe. What libraries print
goes to the log that the order names. `parent` is the stage's side, `child` the process's,
and `watched_fork` does one order: it sees what the work touches, and ends it when its time is up.
Workers of one kind are forked from one `fork_server`, so that they import once; `forked` finds or starts it.
"""
