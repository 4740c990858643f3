"""What the partitioner decides of a model, and which operators a partition fails at."""
