"""`bundle`: exactly the files that a device needs, checked as one, with scripts to push and run them."""
