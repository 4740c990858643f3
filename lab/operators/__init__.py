"""The operator table and its page, made of what `test_upstream` gave."""
