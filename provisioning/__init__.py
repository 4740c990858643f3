"""Turn a manifest into verified trees and an environment. Knows nothing of ci/."""
