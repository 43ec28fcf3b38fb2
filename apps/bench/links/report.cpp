#include "bench/links/report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <set>

#include <annulus/base/version.hpp>

#include "bench/common/sample_json.hpp"
#include "common/output/cluster_json.hpp"
#include "common/output/output_json.hpp"

namespace annulus::bench {

using measurement::LinkPoint;
using measurement::Pairing;
using measurement::Sample;
using nlohmann::json;
using simulator::LinkClass;

namespace {

constexpr std::array both_classes = {LinkClass::intra_node, LinkClass::inter_node};
constexpr std::array all_patterns = {Pairing::one_way, Pairing::both_ways, Pairing::all, Pairing::ring};

/// Half of the range of the repetitions over their median, in percent.
double spread(const Sample& s) {
  return 50 * (s.max - s.min) / s.median;
}

std::string size_text(std::int64_t bytes) {
  constexpr std::array units = {"B", "KiB", "MiB", "GiB"};
  std::size_t unit = 0;
  while (bytes % 1024 == 0 && bytes > 0 && unit + 1 < units.size()) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{} {}", bytes, units[unit]);
}

/// The distinct hosts, and what the nodes are.
std::string place(const LinksReport& report) {
  const std::set<std::string> hosts(report.hosts.begin(), report.hosts.end());
  const bool emulated = static_cast<int>(hosts.size()) < report.topology.nodes();
  return fmt::format("{} on {} host{} ({}){}", report.topology.to_string(), hosts.size(),
                     hosts.size() == 1 ? "" : "s", fmt::join(hosts, ", "),
                     emulated ? "; nodes are emulated: links between them are links of the host" : "");
}

std::string with(const LinksReport& report) {
  return fmt::format("{}; {} thread{} of {} per rank", report.transport, report.threads,
                     report.threads == 1 ? "" : "s", report.execution_space);
}

std::string fit_text(const LinksReport& report, LinkClass link, const measurement::LinkFit& fit) {
  if (report.measured.links.timings(link, Pairing::all).size() == 1)
    return "one size of message, so that the latency is taken as 0";
  return fmt::format("latency + bytes / bandwidth is off by {:.0f}% (median), {:.0f}% (most)",
                     100 * fit.median_error, 100 * fit.largest_error);
}

/// Sizes of the messages that a link is fitted to.
std::string sizes_text(const LinksReport& report, LinkClass link) {
  const auto timings = report.measured.links.timings(link, Pairing::all);
  return fmt::format("Messages of {} to {}", size_text(static_cast<std::int64_t>(timings.front().bytes)),
                     size_text(static_cast<std::int64_t>(timings.back().bytes)));
}

std::string source_of_the_rest(const LinksReport& report) {
  return report.base.empty() ? "not measured: the defaults"
                             : fmt::format("not measured: as in {}", report.base);
}

std::string nics_text(const LinksReport& report) {
  const int nics = report.result.cluster.nics_per_node;
  const std::string shared =
      nics == 0 ? "every rank has its own NIC"
                : fmt::format("the ranks of a node share {} NIC{}", nics, nics == 1 ? "" : "s");
  const double most = report.result.cluster.rank_bandwidth;
  return most == 0 ? shared : fmt::format("{}, of which one alone reaches {:.4g} GB/s", shared, 1e-9 * most);
}

const LinkPoint* find(const LinksReport& report, LinkClass link, Pairing pattern, std::int64_t bytes) {
  for (const LinkPoint& point : report.measured.links.points) {
    if (point.link == link && point.pattern == pattern && point.bytes == bytes) return &point;
  }
  return nullptr;
}

std::string link_table(const LinksReport& report, LinkClass link) {
  std::set<std::int64_t> sizes;
  std::vector<Pairing> patterns;
  for (const Pairing pattern : all_patterns) {
    const auto timings = report.measured.links.timings(link, pattern);
    if (timings.empty()) continue;
    patterns.push_back(pattern);
    for (const auto& timing : timings) sizes.insert(static_cast<std::int64_t>(timing.bytes));
  }
  if (patterns.empty()) return "";
  std::string text = fmt::format("\n{}: µs of a message, GB/s of a sender, spread\n{:>10}",
                                 link == LinkClass::intra_node ? "inside nodes" : "between nodes", "bytes");
  for (const Pairing pattern : patterns) text += fmt::format("  {:>26}", name_of(pattern));
  for (const std::int64_t bytes : sizes) {
    text += fmt::format("\n{:>10}", size_text(bytes));
    for (const Pairing pattern : patterns) {
      const LinkPoint* const p = find(report, link, pattern, bytes);
      text += p == nullptr ? fmt::format("  {:>26}", "-")
                           : fmt::format("  {:>11.1f} {:>8.3f} ±{:>3.0f}%", 1e6 * p->seconds.median,
                                         1e-9 * p->bandwidth(), spread(p->seconds));
    }
  }
  return text + "\n";
}

std::string kernel_table(const LinksReport& report) {
  if (report.measured.kernels.points.empty()) return "";
  std::string text =
      fmt::format("\nkernels, all ranks at once\n{:>10} {:>6} {:>9} {:>8} {:>7} {:>11} {:>10}  spread\n",
                  "pass", "dtype", "head_dim", "rows", "mask", "ms", "GFLOP/s");
  for (const auto& p : report.measured.kernels.points) {
    text += fmt::format("{:>10} {:>6} {:>9} {:>8} {:>7} {:>11.3f} {:>10.2f}  ±{:.0f}%\n",
                        plan::name_of(p.pass), name_of(p.dtype), p.head_dim, p.rows, name_of(p.mask),
                        1e3 * p.seconds.median, 1e-9 * p.rate(), spread(p.seconds));
  }
  return text;
}

std::string product_table(const LinksReport& report) {
  if (report.measured.products.points.empty()) return "";
  std::string text = fmt::format(
      "\nproducts of a linear layer (y, dx, dw), all ranks "
      "at once\n{:>6} {:>8} {:>8} {:>11} {:>10}  spread\n",
      "dtype", "width", "tokens", "ms", "GFLOP/s");
  for (const auto& p : report.measured.products.points) {
    text += fmt::format("{:>6} {:>8} {:>8} {:>11.3f} {:>10.2f}  ±{:.0f}%\n", name_of(p.dtype), p.width,
                        p.tokens, 1e3 * p.seconds.median, 1e-9 * p.rate(), spread(p.seconds));
  }
  return text;
}

std::string memory_line(const LinksReport& report) {
  std::vector<std::string> rates;
  const auto add = [&](const char* what, const std::optional<double>& rate) {
    if (rate) rates.push_back(fmt::format("{} {:.4g} GB/s", what, 1e-9 * *rate));
  };
  const measurement::MemoryMeasurement& memory = report.measured.memory;
  add("kernels of training", memory.device);
  add("copies to and from the host", memory.host_copy);
  add("AdamW on the host", memory.host);
  return rates.empty() ? "" : fmt::format("memory: {}\n", fmt::join(rates, ", "));
}

std::string memory_comment(const LinksReport& report) {
  const measurement::MemoryMeasurement& memory = report.measured.memory;
  if (!memory.device) return "Memory: " + source_of_the_rest(report) + ".";
  std::string text =
      "Kernels of norms, rotary positions, SwiGLU and heads; host: AdamW with memory.offload_optimizer.";
  if (!memory.host_copy) text += "\nhost_copy_bandwidth: " + source_of_the_rest(report) + ".";
  return text;
}

json optional_json(const std::optional<double>& value) {
  return value ? json(*value) : json(nullptr);
}

json fit_json(const std::optional<measurement::LinkFit>& fit) {
  if (!fit) return nullptr;
  return {{"bandwidth", fit->link.bandwidth},
          {"latency", fit->link.latency},
          {"median_error", fit->median_error},
          {"largest_error", fit->largest_error}};
}

}  // namespace

std::string to_table(const LinksReport& report) {
  const simulator::Cluster& c = report.result.cluster;
  std::string text = fmt::format("{}\n{}\n", place(report), with(report));
  for (const LinkClass link : both_classes) text += link_table(report, link);
  text += kernel_table(report) + product_table(report) + "\n" + memory_line(report);
  if (report.result.intra_node)
    text += fmt::format("inside a node: {:.4g} GB/s, {:.4g} µs; {}\n", 1e-9 * c.intra_node.bandwidth,
                        1e6 * c.intra_node.latency,
                        fit_text(report, LinkClass::intra_node, *report.result.intra_node));
  if (report.result.inter_node)
    text += fmt::format("between nodes: {:.4g} GB/s per NIC, {:.4g} µs, {}; {}\n",
                        1e-9 * c.inter_node.bandwidth, 1e6 * c.inter_node.latency, nics_text(report),
                        fit_text(report, LinkClass::inter_node, *report.result.inter_node));
  for (const auto* notes :
       {&report.measured.links.notes, &report.measured.kernels.notes, &report.measured.products.notes})
    for (const std::string& note : *notes) text += fmt::format("note: {}\n", note);
  return text;
}

simulator::ClusterComments comments(const LinksReport& report) {
  simulator::ClusterComments c;
  c.file = fmt::format("Measured by annulus-bench links, annulus {} ({}).\n{}.\n{}.", version(), git_hash(),
                       place(report), with(report));
  c.intra_node =
      report.result.intra_node
          ? fmt::format("{}, all ranks of all nodes at once; {}.", sizes_text(report, LinkClass::intra_node),
                        fit_text(report, LinkClass::intra_node, *report.result.intra_node))
          : "No node has two ranks; " + source_of_the_rest(report) + ".";
  c.inter_node =
      report.result.inter_node
          ? fmt::format("{}, all ranks at once; {}; {}.", sizes_text(report, LinkClass::inter_node),
                        nics_text(report), fit_text(report, LinkClass::inter_node, *report.result.inter_node))
          : "There is one node; " + source_of_the_rest(report) + ".";
  c.kernels = report.measured.kernels.points.empty() ? "Kernels: " + source_of_the_rest(report) + "."
                                                     : "Kernels: all ranks at once.";
  c.memory = memory_comment(report);
  const auto& products = report.measured.products.points;
  c.gemms = products.empty() ? "Products: " + source_of_the_rest(report) + "."
                             : fmt::format(
                                   "Products of {} tokens with square weights (y, dx and dw together), "
                                   "all ranks at once.",
                                   products.front().tokens);
  return c;
}

json to_json(const LinksReport& report) {
  json links = json::array(), kernels = json::array(), products = json::array(), nodes = json::array();
  for (const LinkPoint& p : report.measured.links.points) {
    links.push_back({{"link_class", simulator::name_of(p.link)},
                     {"pattern", name_of(p.pattern)},
                     {"bytes", p.bytes},
                     {"seconds", to_json(p.seconds)},
                     {"bandwidth", p.bandwidth()}});
  }
  for (const auto& p : report.measured.kernels.points) {
    kernels.push_back({{"pass", plan::name_of(p.pass)},
                       {"dtype", name_of(p.dtype)},
                       {"head_dim", p.head_dim},
                       {"rows", p.rows},
                       {"mask", name_of(p.mask)},
                       {"flops", p.flops},
                       {"seconds", to_json(p.seconds)},
                       {"rate", p.rate()}});
  }
  for (const auto& p : report.measured.products.points) {
    products.push_back({{"dtype", name_of(p.dtype)},
                        {"width", p.width},
                        {"tokens", p.tokens},
                        {"flops", p.flops()},
                        {"seconds", to_json(p.seconds)},
                        {"rate", p.rate()}});
  }
  const measurement::MemoryMeasurement& memory = report.measured.memory;
  for (int node = 0; node < report.topology.nodes(); ++node) nodes.push_back(report.topology.ranks_on(node));
  json all = app::output_head("annulus-bench links");
  all.update({{"topology",
               {{"ranks", report.topology.ranks()},
                {"ranks_per_node", nodes},
                {"hosts", report.hosts},
                {"communicator", report.transport},
                {"execution_space", report.execution_space},
                {"threads_per_rank", report.threads}}},
              {"links", links},
              {"kernels", kernels},
              {"products", products},
              {"memory",
               {{"bandwidth", optional_json(memory.device)},
                {"host_copy_bandwidth", optional_json(memory.host_copy)},
                {"host_bandwidth", optional_json(memory.host)}}},
              {"fits",
               {{"intra_node", fit_json(report.result.intra_node)},
                {"inter_node", fit_json(report.result.inter_node)}}},
              {"nics_per_node", report.result.cluster.nics_per_node},
              {"rank_bandwidth", report.result.cluster.rank_bandwidth},
              {"notes",
               {{"links", report.measured.links.notes},
                {"kernels", report.measured.kernels.notes},
                {"products", report.measured.products.notes}}},
              {"cluster", simulator::to_text(report.result.cluster)}});
  return all;
}

}  // namespace annulus::bench
