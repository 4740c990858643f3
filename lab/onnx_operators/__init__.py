"""The suite of ONNX's operators: which node test each has, chosen from the installed onnx."""
