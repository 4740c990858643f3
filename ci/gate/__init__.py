"""The gate: the stages that decide a pull request, and the table of them (manifests/gate.toml)."""
