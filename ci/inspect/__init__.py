"""What is inside finished programs, read from their bytes alone, and whether a QNN runtime can load them."""
