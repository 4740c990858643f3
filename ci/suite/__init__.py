"""The one way of a program through every lane: suite, plan, steps, judgement, accepted results."""
