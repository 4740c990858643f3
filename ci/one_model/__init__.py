"""One model of a command line: its flags, its lane, and what is written and said of it."""
