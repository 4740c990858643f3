"""Named work in child processes, kept under the digest of its inputs."""
