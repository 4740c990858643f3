"""This package reads the user's model: its factory, .pt2 or .onnx, its samples, its own packages."""
