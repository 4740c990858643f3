"""Each lane is a way from a model to the NPU. Lanes do not import each other."""
