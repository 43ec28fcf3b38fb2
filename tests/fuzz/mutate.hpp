#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace annulus::fuzz {

using Input = std::vector<std::uint8_t>;

/// Changes stored inputs at random, the same way for the same seed.
class Mutator {
 public:
  Mutator(const std::vector<Input>& corpus, std::uint64_t seed, std::size_t max_size)
      : corpus_(corpus), random_(seed), max_size_(max_size) {}

  /// One of the corpus after one to eight changes, `max_size` bytes at most.
  Input next();

 private:
  std::size_t below(std::size_t bound) { return bound == 0 ? 0 : random_() % bound; }
  const Input& any() { return corpus_[below(corpus_.size())]; }
  void change(Input& input);
  void insert(Input& input, const std::uint8_t* data, std::size_t size);

  const std::vector<Input>& corpus_;
  std::mt19937_64 random_;
  std::size_t max_size_;
};

}  // namespace annulus::fuzz
