"""The stages: functions from an environment to artifacts and findings. Never downloads."""
