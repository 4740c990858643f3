"""Lock files of this repository's environments, and hashes of what profiles pin."""
