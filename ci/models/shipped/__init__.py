"""The shipped models are small and seeded, and written here so that nothing is downloaded.

A factory takes the case's arguments and returns the module in eval mode and its inputs: a tuple of tensors,
or a function from a torch.Generator to one, which calibration and the compared inferences call anew."""
