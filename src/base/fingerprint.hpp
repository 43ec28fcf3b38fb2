#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace annulus {

/// 64 bits by which two ranks find out whether they hold the same: what is added counts in its order, and
/// sequences that differ in one number always have other fingerprints. Against accidents, not attacks.
class Fingerprint {
 public:
  void add(std::uint64_t word) { value_ = joined(value_, word); }

  void add(std::string_view text) {
    add(std::uint64_t{text.size()});
    for (; !text.empty(); text.remove_prefix(text.size() < 8 ? text.size() : 8)) {
      std::uint64_t word = 0;
      std::memcpy(&word, text.data(), text.size() < 8 ? text.size() : 8);
      add(word);
    }
  }

  /// Four sums side by side, since each waits for its last product: a million numbers take less than a
  /// millisecond.
  void add(std::span<const std::int64_t> numbers) {
    std::array<std::uint64_t, 4> lanes{1, 2, 3, 4};
    const std::size_t fours = numbers.size() / 4 * 4;
    for (std::size_t i = 0; i < fours; i += 4)
      for (std::size_t lane = 0; lane < 4; ++lane)
        lanes[lane] = joined(lanes[lane], static_cast<std::uint64_t>(numbers[i + lane]));
    for (std::size_t i = fours; i < numbers.size(); ++i)
      lanes[i - fours] = joined(lanes[i - fours], static_cast<std::uint64_t>(numbers[i]));
    add(std::uint64_t{numbers.size()});
    for (const std::uint64_t lane : lanes) add(lane);
  }

  std::uint64_t value() const { return value_; }

 private:
  /// One to one in each argument.
  static constexpr std::uint64_t joined(std::uint64_t value, std::uint64_t word) {
    value = (value ^ word) * 0x9e3779b97f4a7c15u;
    return value ^ (value >> 32);
  }

  std::uint64_t value_ = 0xcbf29ce484222325u;
};

}  // namespace annulus
