#include "attention/comm/agreement.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include <annulus/base/kokkos/tensor.hpp>
#include <annulus/base/version.hpp>

#include "attention/comm/gather_lists.hpp"
#include "attention/comm/reductions/difference.hpp"
#include "attention/comm/watchdog.hpp"
#include "base/fingerprint.hpp"

namespace annulus::comm {

namespace {

constexpr std::size_t longest_value = 200;  // of a fact, in bytes

/// Machine and facts, each text closed by a zero. A rank of another version may tell other keys, and in
/// another order, but no other form.
std::string to_bytes(const Facts& facts) {
  std::string bytes = machine_name() + '\0';
  for (const Facts::Fact& fact : facts.all())
    bytes += fact.key + '\0' + fact.value + '\0' + fact.remedy + '\0';
  return bytes;
}

RankFacts from_bytes(std::string_view bytes) {
  const auto next = [&] {
    const std::size_t end = std::min(bytes.find('\0'), bytes.size());
    std::string text(bytes.substr(0, end));
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
    return text;
  };
  RankFacts told;
  told.machine = next();
  while (!bytes.empty()) {
    std::string key = next(), value = next(), remedy = next();
    told.facts.push_back({std::move(key), std::move(value), std::move(remedy)});
  }
  return told;
}

}  // namespace

void Facts::add(std::string key, std::string_view value, std::string_view remedy) {
  std::string kept(value);
  if (kept.size() > longest_value) {
    Fingerprint fingerprint;
    fingerprint.add(value);
    std::size_t end = longest_value / 2;
    while (end > 0 && (static_cast<unsigned char>(kept[end]) & 0xC0u) == 0x80u)
      --end;  // not inside a UTF-8 character
    kept.resize(end);
    kept += fmt::format("… ({} characters, fingerprint {:016x})", value.size(), fingerprint.value());
  }
  all_.push_back({std::move(key), std::move(kept), std::string(remedy)});
}

void Facts::add(const Facts& others) {
  all_.insert(all_.end(), others.all_.begin(), others.all_.end());
}

std::uint64_t Facts::fingerprint() const {
  Fingerprint fingerprint;
  for (const Fact& fact : all_) {
    fingerprint.add(fact.key);
    fingerprint.add(fact.value);
  }
  return fingerprint.value();
}

Facts program_facts() {
  constexpr std::string_view remedy = "start the same build of the program on every rank";
  Facts facts;
  facts.add("the program's version", version(), remedy);
  facts.add("the program's git hash", git_hash(), remedy);
  return facts;
}

void require_agreement(Communicator& communicator, const Facts& facts) {
  const Watchdog::ActivityScope activity(communicator.watchdog(), "the comparison of what ranks go by");
  const std::uint64_t mine = facts.fingerprint();
  std::vector<std::uint64_t> all(static_cast<std::size_t>(communicator.size()));
  communicator.all_gather(HostExec(), &mine, all.data(), sizeof mine);
  if (std::ranges::all_of(all, [&](std::uint64_t other) { return other == mine; })) return;
  std::vector<RankFacts> told;
  for (const std::string& bytes : gather_lists(communicator, to_bytes(facts)))
    told.push_back(from_bytes(bytes));
  fail("{}", difference_text(told));
}

void throw_together(Communicator& communicator, const std::string& problem) {
  constexpr std::size_t longest = 2048;  // bytes of a message; longer ones are cut
  for (int rank = 0; const std::string& text : gather_lists(communicator, problem.substr(0, longest))) {
    if (!text.empty()) fail("{} (found on rank {})", text, rank);
    ++rank;
  }
}

std::string machine_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

}  // namespace annulus::comm
