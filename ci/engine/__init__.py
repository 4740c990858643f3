"""How work is remembered, scheduled, supervised and shown. Knows no stage."""
