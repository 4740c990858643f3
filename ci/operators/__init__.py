"""The measured table of operators: recorded, looked up and rendered."""
