"""The containers that sessions run in: what is in them (`plan`), building, comparing and entering them."""
