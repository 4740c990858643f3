"""One suite on several QNN builds, side by side: what an upgrade changes before it is made."""
