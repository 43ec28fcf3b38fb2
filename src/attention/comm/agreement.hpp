#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <annulus/attention/comm/communicator.hpp>

/// What ranks make sure of together before they rely on it. Every function here is collective and throws on
/// all ranks or on none, within the time of a small collective: ranks that differ would otherwise wait for
/// messages that never come, or compute different things without a word.
namespace annulus::comm {

/// What a rank goes by: keys with their values, in the order in which differences are to be told.
class Facts {
 public:
  struct Fact {
    std::string key, value, remedy;
  };

  /// `remedy` ends the message of a difference: "give every rank the same configuration". Long values are
  /// cut, with their length and fingerprint in the place of the rest.
  void add(std::string key, std::string_view value, std::string_view remedy);
  template <class T>
  requires std::is_arithmetic_v<T>
  void add(std::string key, T value, std::string_view remedy) {
    add(std::move(key), fmt::format("{}", value), remedy);
  }
  /// The facts of `others`, behind the ones that are here.
  void add(const Facts& others);

  const std::vector<Fact>& all() const { return all_; }
  /// Hash of keys and values (Fingerprint).
  std::uint64_t fingerprint() const;

 private:
  std::vector<Fact> all_;
};

/// The version and git hash of the library that a rank runs.
Facts program_facts();

/// Throws Error, the same on all ranks, unless all have the same facts. The message names the first key that
/// differs, the values, which ranks have which (and the machines of the fewer ones, where there are
/// several), and the remedy; then what else differs. Costs an all-gather of 8 bytes a rank; only on a
/// difference the facts themselves are exchanged.
void require_agreement(Communicator& communicator, const Facts& facts);

/// Throws Error on all ranks when `problem` (a message, or nothing) is not empty on one: the message of the
/// lowest such rank.
void throw_together(Communicator& communicator, const std::string& problem);

/// "rank 3", "ranks 0, 2-7": `ranks` are in increasing order.
std::string ranks_text(const std::vector<int>& ranks);

/// The name of this machine, for messages about one of many.
std::string machine_name();

}  // namespace annulus::comm
