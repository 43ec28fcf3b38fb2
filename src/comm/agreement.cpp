#include <annulus/comm/agreement.hpp>

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <annulus/base/fingerprint.hpp>
#include <annulus/base/version.hpp>
#include <annulus/core/tensor.hpp>

namespace annulus::comm {

namespace {

constexpr std::size_t longest_value = 200;  // of a fact, in bytes
constexpr std::size_t most_values = 4;      // of one key in a message
constexpr std::size_t most_keys = 4;        // that are named beside the first

/// What one rank has told.
struct Told {
  std::string machine;
  std::vector<Facts::Fact> facts;

  const Facts::Fact* find(const std::string& key) const {
    const auto found = std::ranges::find(facts, key, &Facts::Fact::key);
    return found == facts.end() ? nullptr : &*found;
  }
};

/// Machine and facts, each text closed by a zero. A rank of another version may tell other keys, and in
/// another order, but no other form.
std::string to_bytes(const Facts& facts) {
  std::string bytes = machine_name() + '\0';
  for (const Facts::Fact& fact : facts.all())
    bytes += fact.key + '\0' + fact.value + '\0' + fact.remedy + '\0';
  return bytes;
}

Told from_bytes(std::string_view bytes) {
  const auto next = [&] {
    const std::size_t end = std::min(bytes.find('\0'), bytes.size());
    std::string text(bytes.substr(0, end));
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
    return text;
  };
  Told told;
  told.machine = next();
  while (!bytes.empty()) {
    std::string key = next(), value = next(), remedy = next();
    told.facts.push_back({std::move(key), std::move(value), std::move(remedy)});
  }
  return told;
}

/// The keys of all ranks: those of rank 0 first.
std::vector<std::string> all_keys(const std::vector<Told>& ranks) {
  std::vector<std::string> keys;
  std::set<std::string> known;
  for (const Told& rank : ranks)
    for (const Facts::Fact& fact : rank.facts)
      if (known.insert(fact.key).second) keys.push_back(fact.key);
  return keys;
}

/// The ranks of each value, those of fewer ranks first.
using Camps = std::vector<std::pair<std::string, std::vector<int>>>;
Camps camps_of(const std::vector<Told>& ranks, const std::string& key) {
  std::map<std::string, std::vector<int>> by_value;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const Facts::Fact* const fact = ranks[rank].find(key);
    by_value[fact == nullptr ? "unknown" : fact->value].push_back(static_cast<int>(rank));
  }
  Camps camps(by_value.begin(), by_value.end());
  std::ranges::sort(camps, {}, [](const auto& camp) {
    return std::pair(camp.second.size(), -camp.second.front());  // of equal camps that of rank 0 comes last
  });
  return camps;
}

/// " (node7)", where the job has several machines and these ranks are on few.
std::string machines_text(const std::vector<Told>& ranks, const std::vector<int>& of) {
  std::set<std::string> all, here;
  for (const Told& rank : ranks) all.insert(rank.machine);
  for (const int rank : of) here.insert(ranks[static_cast<std::size_t>(rank)].machine);
  if (all.size() == 1 || here.size() > 3) return "";
  return fmt::format(" ({})", fmt::join(here, ", "));
}

std::string message_of(const std::vector<Told>& ranks) {
  std::optional<std::string> first;
  std::vector<std::string> others;
  for (const std::string& key : all_keys(ranks)) {
    if (camps_of(ranks, key).size() == 1) continue;
    if (!first)
      first = key;
    else
      others.push_back(key);
  }
  if (!first) return "ranks disagree about what they are to agree on: start the same program on every rank";
  std::string text = fmt::format("ranks disagree about {}: ", *first);
  const Camps camps = camps_of(ranks, *first);
  const std::size_t told = camps.size() <= most_values ? camps.size() : most_values - 1;
  for (std::size_t i = 0; i < told; ++i)
    text += fmt::format("{}{} on {}{}", i == 0 ? "" : ", ", camps[i].first, ranks_text(camps[i].second),
                        machines_text(ranks, camps[i].second));
  if (told < camps.size()) text += fmt::format(", and {} other values", camps.size() - told);
  for (const Told& rank : ranks)
    if (const Facts::Fact* const fact = rank.find(*first)) {
      text += "; " + fact->remedy;
      break;
    }
  if (others.empty()) return text;
  const std::size_t named = std::min(others.size(), most_keys);
  text += fmt::format(" (they disagree about {} too",
                      fmt::join(others.begin(), others.begin() + static_cast<std::ptrdiff_t>(named), ", "));
  if (named < others.size()) text += fmt::format(", and {} more", others.size() - named);
  return text + ")";
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
  const Watch::Doing doing(communicator.watch(), "the comparison of what ranks go by");
  const Queue host{HostExec()};
  const auto ranks = static_cast<std::size_t>(communicator.size());
  std::string bytes = to_bytes(facts);
  using Hello = std::array<std::uint64_t, 2>;  // fingerprint and bytes of the facts
  const Hello mine{facts.fingerprint(), bytes.size()};
  std::vector<Hello> hellos(ranks);
  communicator.all_gather(host, mine.data(), hellos.data(), sizeof mine);
  if (std::ranges::all_of(hellos, [&](const Hello& hello) { return hello[0] == mine[0]; })) return;

  std::size_t longest = 0;
  for (const Hello& hello : hellos) longest = std::max<std::size_t>(longest, hello[1]);
  bytes.resize(longest);
  std::string all(longest * ranks, '\0');
  communicator.all_gather(host, bytes.data(), all.data(), longest);
  std::vector<Told> told;
  for (std::size_t rank = 0; rank < ranks; ++rank)
    told.push_back(from_bytes(std::string_view(all).substr(rank * longest, hellos[rank][1])));
  fail("{}", message_of(told));
}

void throw_together(Communicator& communicator, const std::string& problem) {
  const auto failed = communicator.all_reduce_value<std::int64_t>(problem.empty() ? 0 : 1, ReduceOp::max);
  if (failed == 0) return;
  constexpr std::size_t length = 2048;  // of a message; longer ones are cut
  std::array<char, length> mine{};
  std::copy_n(problem.begin(), std::min(problem.size(), length - 1), mine.begin());
  std::vector<char> all(length * static_cast<std::size_t>(communicator.size()));
  communicator.all_gather(HostExec(), mine.data(), all.data(), length);
  for (int rank = 0; rank < communicator.size(); ++rank) {
    const char* text = all.data() + length * static_cast<std::size_t>(rank);
    if (*text != '\0') fail("{} (found on rank {})", text, rank);
  }
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0, end = 0; i < ranks.size(); i = end) {
    for (end = i + 1; end < ranks.size() && ranks[end] == ranks[end - 1] + 1; ++end) {
    }
    if (i > 0) text += ", ";
    text += std::to_string(ranks[i]);
    if (end - i > 1) text += (end - i == 2 ? ", " : "-") + std::to_string(ranks[end - 1]);
  }
  return text;
}

std::string machine_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

}  // namespace annulus::comm
