#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string>

#include <annulus/prediction/simulator/cluster.hpp>

#include "base/config/parse.hpp"
#include "base/config/section.hpp"

namespace annulus::simulator {
namespace {

using config::Section;

constexpr const char* keys_advice = "the keys of a cluster file are those of docs/formats/cluster.md";

constexpr int most_ranks = Topology::max_ranks;

/// The tables of a list, if it is there.
template <class Entry>
void read_list(const Section& file, const char* name, std::string_view origin,
               Entry (*read_entry)(const Section&), std::vector<Entry>& to) {
  const toml::node* const node = file.find(name);
  if (node == nullptr) return;
  const toml::array* const list = node->as_array();
  if (list == nullptr || !list->is_homogeneous<toml::table>())
    file.reject(*node, "{0} must be a list of tables: write [[{0}]] and its keys below", name);
  to.clear();
  for (const toml::node& entry : *list) to.push_back(read_entry({*entry.as_table(), name, origin}));
}

void read_link(const Section& section, Link& link) {
  section.read("bandwidth", link.bandwidth, 0, false);
  section.read("latency", link.latency, 0, true);
}

Topology read_topology(const Section& section) {
  const toml::node& per_node = section.need("ranks_per_node");
  const toml::node& nodes = section.need("nodes");
  const auto count = section.integer(nodes, "nodes", 1, most_ranks);
  std::vector<int> ranks;
  if (const toml::array* list = per_node.as_array()) {
    for (const toml::node& entry : *list)
      ranks.push_back(static_cast<int>(section.integer(entry, "ranks_per_node", 1, most_ranks)));
    if (std::ssize(ranks) != count)
      section.reject(per_node,
                     "cluster.ranks_per_node lists {} nodes, but cluster.nodes is {}: make them agree",
                     ranks.size(), count);
  } else {
    const auto each = section.integer(per_node, "ranks_per_node", 1, most_ranks);
    ranks.assign(static_cast<std::size_t>(count), static_cast<int>(each));
  }
  std::int64_t sum = 0;
  for (const int each : ranks) sum += each;
  if (sum > most_ranks)
    section.reject(nodes, "the cluster has {} ranks: at most {} are possible", sum, most_ranks);
  return Topology(ranks);
}

DType read_dtype(const Section& section, const toml::node& node) {
  return section.choice(node, "dtype", {DType::f32, DType::bf16, DType::f16});
}

KernelRate read_kernel(const Section& section) {
  section.allow({"pass", "dtype", "head_dim", "rows", "mask", "rate"});
  KernelRate kernel;
  kernel.pass = section.choice(section.need("pass"), "pass", {plan::Pass::forward, plan::Pass::backward});
  if (const toml::node* node = section.find("dtype")) kernel.dtype = read_dtype(section, *node);
  kernel.head_dim = static_cast<int>(section.integer(section.need("head_dim"), "head_dim", 1, 1 << 16));
  section.read("rows", kernel.rows, 0, Mask::max_tokens);
  if (const toml::node* node = section.find("mask"))
    kernel.mask = section.choice(*node, "mask", {BlockMask::full, BlockMask::causal});
  kernel.rate = section.number(section.need("rate"), "rate", 0, false);
  return kernel;
}

GemmRate read_gemm(const Section& section) {
  section.allow({"dtype", "width", "rate"});
  GemmRate gemm;
  if (const toml::node* node = section.find("dtype")) gemm.dtype = read_dtype(section, *node);
  section.read("width", gemm.width, 0, std::int64_t{1} << 40);
  gemm.rate = section.number(section.need("rate"), "rate", 0, false);
  return gemm;
}

Cluster read(const toml::table& table, std::string_view origin) {
  const Section file(table, "", origin);
  file.allow({"cluster", "intra_node", "inter_node", "memory", "kernel", "gemm", "guessed"});
  Cluster cluster = default_cluster();
  file.read("guessed", cluster.guessed);
  file.in("cluster", [&](const Section& section) {
    section.allow({"nodes", "ranks_per_node"});
    cluster.topology = read_topology(section);
  });
  file.in("intra_node", [&](const Section& section) {
    section.allow({"bandwidth", "latency"});
    read_link(section, cluster.intra_node);
  });
  file.in("inter_node", [&](const Section& section) {
    section.allow({"bandwidth", "latency", "nics_per_node", "rank_bandwidth"});
    read_link(section, cluster.inter_node);
    section.read("nics_per_node", cluster.nics_per_node, 0, most_ranks);
    section.read("rank_bandwidth", cluster.rank_bandwidth, 0, true);
  });
  file.in("memory", [&](const Section& section) {
    section.allow({"bandwidth", "host_copy_bandwidth", "host_bandwidth"});
    section.read("bandwidth", cluster.memory.device, 0, false);
    section.read("host_copy_bandwidth", cluster.memory.host_copy, 0, false);
    section.read("host_bandwidth", cluster.memory.host, 0, false);
  });
  read_list(file, "kernel", origin, read_kernel, cluster.kernels);
  for (const plan::Pass pass : {plan::Pass::forward, plan::Pass::backward}) {
    if (std::ranges::find(cluster.kernels, pass, &KernelRate::pass) == cluster.kernels.end())
      file.reject(*file.find("kernel"), "no [[kernel]] has pass = \"{}\": add one", plan::name_of(pass));
  }
  read_list(file, "gemm", origin, read_gemm, cluster.gemms);
  cluster.check();
  return cluster;
}

/// The shortest decimal number that is read back as the same double, with an exponent divisible by 3.
std::string number_text(double value) {
  std::array<char, 32> buffer{};
  const auto end =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::scientific);
  const std::string text(buffer.data(), end.ptr);  // d.ddde±xx
  const std::size_t e = text.find('e');
  std::string digits = text.substr(0, e);
  std::erase(digits, '.');
  const int exponent = std::stoi(text.substr(e + 1)), shift = ((exponent % 3) + 3) % 3;
  const auto whole = static_cast<std::size_t>(1 + shift);
  if (digits.size() < whole) digits.resize(whole, '0');
  std::string number = digits.substr(0, whole);
  if (digits.size() > whole) number.append(1, '.').append(digits, whole);
  if (exponent != shift) return number + fmt::format("e{}", exponent - shift);
  return digits.size() > whole ? number : number + ".0";  // not an integer of TOML
}

std::string comment_text(std::string_view lines) {
  std::string text;
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    text += fmt::format("#{}{}\n", line.empty() ? "" : " ", line);
    lines.remove_prefix(std::min(lines.size(), line.size() + 1));
  }
  return text;
}

std::string topology_text(const Topology& topology) {
  std::vector<int> ranks;
  for (int node = 0; node < topology.nodes(); ++node) ranks.push_back(topology.ranks_on(node));
  return fmt::format("\n[cluster]\nnodes = {}\nranks_per_node = {}\n", topology.nodes(),
                     topology.is_uniform() ? fmt::to_string(ranks.front()) : fmt::format("{}", ranks));
}

std::string link_text(const char* name, const Link& link, std::string_view comment) {
  return fmt::format("\n{}[{}]\nbandwidth = {}\nlatency = {}\n", comment_text(comment), name,
                     number_text(link.bandwidth), number_text(link.latency));
}

std::string kernel_text(const KernelRate& kernel) {
  std::string text = fmt::format("\n[[kernel]]\npass = \"{}\"\n", plan::name_of(kernel.pass));
  if (kernel.dtype) text += fmt::format("dtype = \"{}\"\n", name_of(*kernel.dtype));
  text += fmt::format("head_dim = {}\nrows = {}\n", kernel.head_dim, kernel.rows);
  if (kernel.mask) text += fmt::format("mask = \"{}\"\n", name_of(*kernel.mask));
  return text + fmt::format("rate = {}\n", number_text(kernel.rate));
}

std::string memory_text(const MemoryRates& memory, std::string_view comment) {
  return fmt::format("\n{}[memory]\nbandwidth = {}\nhost_copy_bandwidth = {}\nhost_bandwidth = {}\n",
                     comment_text(comment), number_text(memory.device), number_text(memory.host_copy),
                     number_text(memory.host));
}

std::string gemm_text(const GemmRate& gemm) {
  std::string text = "\n[[gemm]]\n";
  if (gemm.dtype) text += fmt::format("dtype = \"{}\"\n", name_of(*gemm.dtype));
  return text + fmt::format("width = {}\nrate = {}\n", gemm.width, number_text(gemm.rate));
}

}  // namespace

std::string to_text(const Cluster& cluster, const ClusterComments& comments) {
  cluster.check();
  std::string text = comment_text(comments.file);
  if (cluster.guessed) text += fmt::format("{}guessed = true\n", text.empty() ? "" : "\n");
  if (cluster.topology) text += topology_text(*cluster.topology);
  text += link_text("intra_node", cluster.intra_node, comments.intra_node);
  text += link_text("inter_node", cluster.inter_node, comments.inter_node);
  text += fmt::format("nics_per_node = {}\n", cluster.nics_per_node);
  if (cluster.rank_bandwidth > 0)
    text += fmt::format("rank_bandwidth = {}\n", number_text(cluster.rank_bandwidth));
  text += memory_text(cluster.memory, comments.memory);
  if (!comments.kernels.empty()) text += fmt::format("\n{}", comment_text(comments.kernels));
  for (const KernelRate& kernel : cluster.kernels) text += kernel_text(kernel);
  if (!comments.gemms.empty()) text += fmt::format("\n{}", comment_text(comments.gemms));
  for (const GemmRate& gemm : cluster.gemms) text += gemm_text(gemm);
  return text;
}

Cluster parse_cluster(std::string_view text, std::string_view origin) {
  return read(config::parse(text, origin, keys_advice), origin);
}

std::string rates_text(const Cluster& cluster, const std::filesystem::path& file) {
  return file.string() + (cluster.guessed ? " (guessed, not measured: annulus-bench links measures)" : "");
}

Cluster read_cluster(const std::filesystem::path& path) {
  return read(config::parse_file(path, keys_advice), path.string());
}

}  // namespace annulus::simulator
