"""The laboratory's models: those of lab/suites, which every night runs and the default suite does not."""
