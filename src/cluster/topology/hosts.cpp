// The lists that Slurm writes: hosts, counts, switches.
#include <algorithm>
#include <cstdint>
#include <map>

#include <annulus/base/error.hpp>

#include "base/parse_number.hpp"
#include "base/printable.hpp"
#include "cluster/topology/job.hpp"

namespace annulus {
namespace {

// A few characters can stand for more hosts, ranks and letters than memory holds. No cluster has as many.
constexpr std::size_t most_hosts = 1 << 16, most_letters = 255;
constexpr std::int64_t most_of_counts = 1 << 22;
constexpr std::size_t most_levels = 64;  // of switches

/// Pieces between commas that stand in no brackets.
std::vector<std::string_view> split(std::string_view list) {
  std::vector<std::string_view> parts;
  std::size_t begin = 0;
  int depth = 0;
  for (std::size_t i = 0; i <= list.size(); ++i) {
    if (i == list.size() || (list[i] == ',' && depth == 0)) {
      if (i > begin) parts.push_back(list.substr(begin, i - begin));
      begin = i + 1;
    } else if (list[i] == '[') {
      ++depth;
    } else if (list[i] == ']') {
      --depth;
    }
  }
  return parts;
}

int number(std::string_view text, std::string_view whole) {
  const int value = parse_number<int>(text).value_or(-1);
  require(value >= 0, "'{}' is no list that Slurm writes: '{}' is not a number", whole, text);
  return value;
}

/// Appends what one item stands for: a prefix, a range in brackets, and a rest that may have brackets again.
void expand(std::string_view item, const std::string& before, std::string_view whole,
            std::vector<std::string>& hosts) {
  const std::size_t open = item.find('['), close = item.find(']');
  require((open == item.npos) == (close == item.npos) && (open == item.npos || open < close),
          "'{}' is no list of hosts: its brackets do not match", whole);
  if (open == item.npos) {
    hosts.push_back(before + std::string(item));
    require(hosts.back().size() <= most_letters,
            "'{}' is no list of hosts: a name has more than {} characters", whole, most_letters);
    require(hosts.size() <= most_hosts, "'{}' are more than {} hosts", whole, most_hosts);
    return;
  }
  const std::string prefix = before + std::string(item.substr(0, open));
  const std::vector<std::string_view> ranges = split(item.substr(open + 1, close - open - 1));
  require(!ranges.empty(), "'{}' is no list of hosts: brackets with nothing in them", whole);
  require(prefix.size() <= most_letters, "'{}' is no list of hosts: a name has more than {} characters",
          whole, most_letters);
  for (const std::string_view range : ranges) {
    const std::size_t dash = range.find('-');
    const std::string_view low = range.substr(0, dash);
    const int first = number(low, whole),
              last = dash == range.npos ? first : number(range.substr(dash + 1), whole);
    require(first <= last && last - first < static_cast<int>(most_hosts),
            "'{}' is no list of hosts: the range {} runs backwards or is too long", whole, range);
    for (std::int64_t i = first; i <= last; ++i) {
      std::string digits = std::to_string(i);
      if (digits.size() < low.size() && low.size() <= most_letters)
        digits.insert(0, low.size() - digits.size(), '0');
      expand(item.substr(close + 1), prefix + digits, whole, hosts);
    }
  }
}

/// The value of KEY=VALUE in a line of `scontrol`; empty without it.
std::string_view value_of(std::string_view line, std::string_view key) {
  for (std::size_t at = 0; (at = line.find(key, at)) != line.npos; at += key.size()) {
    const std::size_t value = at + key.size();
    if ((at == 0 || line[at - 1] == ' ') && value < line.size() && line[value] == '=')
      return line.substr(value + 1, line.find_first_of(" \r", value) - value - 1);
  }
  return {};
}

}  // namespace

std::vector<std::string> expand_hosts(std::string_view text) {
  const std::string list = printable(text);
  std::vector<std::string> hosts;
  for (const std::string_view item : split(list)) expand(item, "", list, hosts);
  return hosts;
}

std::vector<int> expand_counts(std::string_view list, std::string_view name) {
  std::vector<int> counts;
  std::int64_t sum = 0;
  for (const std::string_view item : split(list)) {
    const std::size_t open = item.find("(x");
    const std::string whole = std::string(name) + "=" + std::string(list);
    const int count = number(item.substr(0, open), whole);
    int times = 1;
    if (open != item.npos) {
      require(item.ends_with(')'), "'{}' is no list of counts: a bracket is missing", whole);
      times = number(item.substr(open + 2, item.size() - open - 3), whole);
    }
    require(counts.size() + static_cast<std::size_t>(times) <= most_hosts, "{} lists more than {} nodes",
            name, most_hosts);
    require(count >= 1 && times >= 1, "{} has an entry of 0: every node of a job has some", whole);
    sum += std::int64_t{count} * times;
    require(sum <= most_of_counts, "{} are more than {} in all", whole, most_of_counts);
    counts.insert(counts.end(), static_cast<std::size_t>(times), count);
  }
  return counts;
}

std::vector<LeafSwitch> parse_switches(std::string_view text) {
  std::vector<LeafSwitch> leaves;
  std::map<std::string, std::string, std::less<>> parent;
  std::size_t hosts = 0;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const std::string name = printable(value_of(line, "SwitchName"));
    if (name.empty()) continue;
    if (const std::string_view below = value_of(line, "Switches"); !below.empty()) {
      for (const std::string& child : expand_hosts(below)) parent[child] = name;
    } else if (const std::string_view nodes = value_of(line, "Nodes"); !nodes.empty()) {
      leaves.push_back({.name = name, .path = name, .hosts = expand_hosts(nodes)});
      hosts += leaves.back().hosts.size();
    }
    require(hosts + parent.size() <= most_hosts,
            "the switches of scontrol show topology have more than {} nodes and switches below them",
            most_hosts);
  }
  for (LeafSwitch& leaf : leaves) {
    // No further than any tree goes: a topology file that goes round in circles ends here too.
    auto above = parent.find(leaf.name);
    for (std::size_t level = 0; above != parent.end() && level < most_levels; ++level) {
      leaf.path = above->second + "." + leaf.path;
      above = parent.find(above->second);
    }
  }
  return leaves;
}

}  // namespace annulus
