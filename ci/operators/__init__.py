"""What is known of operators: the measured table, recorded, looked up and rendered; and where they run."""
