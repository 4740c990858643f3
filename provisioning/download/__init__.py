"""Files from servers."""
