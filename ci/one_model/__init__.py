"""The model of a command line: its flags, its lane, its output and its report."""
