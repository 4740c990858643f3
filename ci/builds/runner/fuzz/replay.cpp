// Replaces libFuzzer where it is not installed: mutates seed files for a bounded number of rounds.
//   fuzz_NAME SEED ROUNDS FILE...

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;
constexpr size_t kLongest = 4096;

Bytes mutated(Bytes bytes, const std::vector<Bytes>& seeds, std::mt19937_64& random) {
  const auto below = [&](size_t bound) { return bound == 0 ? 0 : static_cast<size_t>(random() % bound); };
  for (size_t steps = 1 + below(8); steps > 0; --steps) {
    const size_t at = below(bytes.size() + 1);
    const auto position = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    switch (below(6)) {
      case 0:
        bytes.insert(position, static_cast<uint8_t>(random()));
        break;
      case 1:
        if (at < bytes.size()) {
          bytes.erase(position);
        }
        break;
      case 2:
        if (at < bytes.size()) {
          bytes[at] ^= static_cast<uint8_t>(1u << below(8));
        }
        break;
      case 3:
        if (at < bytes.size()) {
          constexpr char interesting[] = "\0\n\r\t \"\\#=-,()[]09\xff";
          bytes[at] = static_cast<uint8_t>(interesting[below(sizeof interesting - 1)]);
        }
        break;
      case 4:
        bytes.resize(at);
        break;
      default: {
        const Bytes& other = seeds[below(seeds.size())];
        const size_t from = below(other.size());
        const size_t count = below(other.size() - from + 1);
        const Bytes piece(
            other.begin() + static_cast<std::ptrdiff_t>(from), other.begin() + static_cast<std::ptrdiff_t>(from + count));
        bytes.insert(position, piece.begin(), piece.end());
      }
    }
  }
  bytes.resize(std::min(bytes.size(), kLongest));
  return bytes;
}

} // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: %s SEED ROUNDS FILE...\n", argv[0]);
    return 2;
  }
  std::mt19937_64 random(std::strtoull(argv[1], nullptr, 10));
  const size_t rounds = std::strtoull(argv[2], nullptr, 10);
  std::vector<Bytes> seeds;
  for (int i = 3; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    LLVMFuzzerTestOneInput(seeds.back().data(), seeds.back().size());
  }
  for (size_t round = 0; round < rounds; ++round) {
    const Bytes input = mutated(seeds[random() % seeds.size()], seeds, random);
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("%zu rounds\n", rounds);
  return 0;
}
