"""From a manifest to verified trees and an environment. Knows nothing of ci/."""
