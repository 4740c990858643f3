"""All stages' reports together: collected, and rendered for people and for machines."""
