"""The time that a program will take on a phone, by what QNN estimates and phones measured."""
