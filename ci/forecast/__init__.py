"""What a phone will take for a program, without a phone: the forecast, and how it is fitted."""
