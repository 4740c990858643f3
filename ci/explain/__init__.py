"""This package explains why a program differs from its model: which operator is at fault, and what was tried
against it."""
