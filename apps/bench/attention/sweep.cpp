#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/base/error.hpp>
#include <annulus/prediction/simulator/choose.hpp>

#include "attention/comm/agreement.hpp"
#include "base/kokkos/execution/threads.hpp"
#include "bench/attention/local_attention.hpp"
#include "bench/attention/measure/measure.hpp"
#include "bench/attention/results.hpp"
#include "bench/commands.hpp"
#include "bench/report/columns.hpp"
#include "common/job_parts.hpp"
#include "common/process.hpp"
#include "common/text.hpp"
#include "training/io/atomic.hpp"
#include "training/io/logging.hpp"

namespace annulus::bench {

namespace {

/// The first ranks of a topology.
Topology first_of(const Topology& all, int ranks) {
  std::vector<int> nodes;
  for (int node = 0; node < all.nodes() && ranks > 0; ++node) {
    nodes.push_back(std::min(ranks, all.ranks_on(node)));
    ranks -= nodes.back();
  }
  return Topology(nodes);
}

std::string name_of(const AttentionOptions& o) {
  return fmt::format("{} {} {}, {} tokens, {} heads ({} kv), {}, {} ranks{}{}", o.schedule, o.layout, o.mask,
                     o.tokens, o.heads, o.key_value_heads(), o.dtype, o.ranks,
                     o.overlap ? "" : ", without overlap",
                     o.spin.empty() ? "" : fmt::format(", kernels spin ({} TFLOP/s)", o.spin));
}

/// What starts this on `ranks` ranks, as a shell takes it: the launcher, where there are several, and the
/// arguments of this process.
std::string command_line(int ranks) {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string text = ranks > 1 ? app::launcher(ranks) : "", word;
  while (std::getline(file, word, '\0')) text += (text.empty() ? "" : " ") + app::shell_word(word);
  return text;
}

constexpr std::string_view measured_source = "links and kernel rates of this run";

bool is_planned(const AttentionOptions& o) {
  return o.schedule == simulator::automatic || o.layout == simulator::automatic;
}

/// All cases, one after the other, on all ranks of the job.
class Sweep {
 public:
  /// `sharing`: ranks that run on the cores of this one.
  Sweep(const SweepOptions& options, comm::Communicator& world, int sharing)
      : options_(options),
        world_(world),
        sharing_(sharing),
        cases_(cases_of(options, world.size())),
        parts_(world) {
    if (world.rank() == 0) results_.emplace(options, cases_.size() > 1);
  }

  int run() {
    if (options_.topology != "measure") machine_of(cases_.front());  // a bad file is told first
    for (std::size_t i = 0; i < cases_.size(); ++i) {
      const auto made = make(cases_[i]);
      if (const auto* reason = std::get_if<std::string>(&made)) {
        require(cases_.size() > 1, "{}", *reason);
        if (world_.rank() == 0) refuse(i, *reason);
      } else {
        run(i, std::get<BenchCase>(made));
      }
    }
    if (world_.rank() == 0 && cases_.size() > 1) print_end();
    return failed_ ? 1 : 0;
  }

 private:
  /// What predictions and `auto` stand on: the same on all ranks of the job.
  const PredictionSource& machine_of(const AttentionOptions& o) {
    const bool measured = options_.topology == "measure";
    const bool planned = is_planned(o);
    std::string key = measured ? fmt::format("{}", o.ranks) : "";
    if (measured && planned)
      key += fmt::format(" {} {} {} {}", o.dtype, o.tokens, o.heads, o.key_value_heads());
    const auto [entry, is_new] = machines_.try_emplace(key);
    if (!is_new) return entry->second;
    if (!measured) return entry->second = read_machine(options_.topology);
    std::string text;
    comm::Communicator& members = parts_.of(o.ranks);
    if (world_.rank() < o.ranks) text = simulator::to_text(measure_machine(members, o, planned));
    parts_.end(o.ranks);
    auto size = static_cast<std::int64_t>(text.size());
    const Queue queue{HostExec()};
    world_.broadcast(queue, &size, sizeof size, 0);
    text.resize(static_cast<std::size_t>(size));
    world_.broadcast(queue, text.data(), text.size(), 0);
    return entry->second = {simulator::parse_cluster(text, "the measured cluster"), false,
                            std::string(measured_source)};
  }

  /// PredictionSource::source without measuring.
  std::string source_of_predictions(const AttentionOptions& o) {
    return options_.topology == "measure" ? std::string(measured_source) : machine_of(o).source;
  }

  /// The case, or why it cannot be served. The same on all ranks.
  std::variant<BenchCase, std::string> make(const AttentionOptions& o) {
    const bool has_kernel = o.heads % o.key_value_heads() == 0;  // else make_case says what is wrong
    const simulator::Cluster cluster =
        is_planned(o) && has_kernel ? machine_of(o).cluster.value() : simulator::default_cluster();
    std::variant<BenchCase, std::string> made;
    try {
      made = make_case(o, first_of(world_.topology(), o.ranks), cluster);
    } catch (const Error& error) {
      made = std::string(error.what());
    }
    // Files may be there on one machine and not on another: then the ranks that lack one say so.
    const bool refused = made.index() == 1;
    const auto some = world_.all_reduce_value<std::int32_t>(refused ? 1 : 0, comm::ReduceOp::max);
    const auto all = world_.all_reduce_value<std::int32_t>(refused ? 1 : 0, comm::ReduceOp::min);
    if (some != all) {
      if (refused) fail("{}", std::get<std::string>(made));
      world_.barrier();  // those ranks end all
    }
    return made;
  }

  /// Another case of the sweep is what `auto` stands for here.
  bool is_repeated(const AttentionOptions& asked, const AttentionOptions& chosen) {
    if (!is_planned(asked)) return false;
    const std::string name = name_of(chosen);
    const bool listed =
        std::ranges::any_of(cases_, [&](const AttentionOptions& other) { return name_of(other) == name; });
    return listed || !chosen_.insert(name).second;
  }

  void run(std::size_t i, const BenchCase& c) {
    const AttentionOptions& o = c.options;
    const bool repeated = is_repeated(cases_[i], o);
    if (is_planned(cases_[i])) note_asked(cases_[i], o);
    if (repeated) {
      if (world_.rank() == 0) {
        tell(i, fmt::format("auto chose {}, a case of its own: {}", name_of(o), name_of(cases_[i])));
      }
      return;
    }
    comm::Communicator& members = parts_.of(o.ranks);
    const nlohmann::json* const earlier =
        world_.rank() == 0 ? results_->earlier(c, machinery_of(c, members), source_of_predictions(o))
                           : nullptr;
    const bool is_done =
        world_.all_reduce_value<std::int32_t>(earlier != nullptr ? 1 : 0, comm::ReduceOp::max);
    if (world_.rank() == 0) tell(i, fmt::format("{}{}", name_of(o), is_done ? ": done before" : ""));
    if (is_done) {
      if (world_.rank() == 0) keep(nlohmann::json(*earlier), o);
      return;
    }
    if (world_.rank() == 0) warn(c);
    const PredictionSource& machine = machine_of(cases_[i]);
    std::int32_t failed = 0;
    if (world_.rank() < o.ranks) {
      const CaseReport report = measure(c, members, machine);
      failed = report.check && !report.check->passed() ? 1 : 0;
      if (world_.rank() == 0) {
        if (cases_.size() == 1) fmt::print("{}", to_table(report));
        nlohmann::json of_case = to_json(report);
        of_case["run"] = run_json(o);
        keep(std::move(of_case), o);
        if (failed != 0) logging::error("--check failed: a relative error is beyond the tolerance");
      }
    }
    failed = parts_.end(o.ranks, failed);
    failed_ = failed_ || failed != 0;
  }

  // Rank 0 alone.

  void tell(std::size_t i, const std::string& text) const {
    if (cases_.size() > 1) logging::info("case {} of {}: {}", i + 1, cases_.size(), text);
  }

  // Once a reason, not once a case.
  void warn(const BenchCase& c) {
    const std::string warning = kernel_warning(c);
    if (!warning.empty() && warned_.insert(warning).second)
      logging::warn("{} (--kernel tensor_cores makes an error of this)", warning);
    const double cores = cores_per_rank(c.options);
    if (threads() > cores && warned_.insert("cores").second)
      logging::warn(
          "{} ranks of {} threads share {} cores: times are those of ranks that wait for one another's cores "
          "(start fewer ranks, or set OMP_NUM_THREADS)",
          std::min(c.options.ranks, sharing_), threads(), available_cores().size());
  }

  void refuse(std::size_t i, const std::string& reason) {
    tell(i, fmt::format("{}: unsupported: {}", name_of(cases_[i]), reason));
    results_->refuse(cases_[i], reason);
  }

  /// The case is what `asked`, with auto in it, became.
  void note_asked(const AttentionOptions& asked, const AttentionOptions& chosen) {
    if (world_.rank() != 0) return;
    const std::string name = name_of(chosen);
    std::string& all = asked_[name];
    const std::string text = fmt::format("{}, {}", asked.schedule, asked.layout);
    if (("; " + all + "; ").find("; " + text + "; ") != std::string::npos) return;
    all += (all.empty() ? "" : "; ") + text;
    if (const auto kept = kept_.find(name); kept != kept_.end()) results_->mark(kept->second, all);
  }

  /// Logical cores that a rank of a case has for itself.
  double cores_per_rank(const AttentionOptions& o) const {
    return static_cast<double>(available_cores().size()) / std::min(o.ranks, sharing_);
  }
  static int threads() { return Kokkos::DefaultHostExecutionSpace().concurrency(); }

  nlohmann::json run_json(const AttentionOptions& o) const {
    return {{"date", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))},
            {"host", comm::machine_name()},
            {"command", command_line(world_.size())},
            {"cores_per_rank", cores_per_rank(o)},
            {"more_threads_than_cores", threads() > cores_per_rank(o)}};
  }

  void keep(nlohmann::json of_case, const AttentionOptions& o) {
    of_case.erase("asked");  // of an earlier run
    if (const auto asked = asked_.find(name_of(o)); asked != asked_.end()) of_case["asked"] = asked->second;
    kept_.emplace(name_of(o), results_->cases().size());
    results_->add(std::move(of_case));
    if (cases_.size() == 1) return;
    const std::vector<nlohmann::json> last{results_->cases().back()};
    if (results_->cases().size() == 1) print_line([](const ResultColumn& column) { return column.heading; });
    for_passes(last, [&](const nlohmann::json& of, const std::string& pass) {
      print_line([&](const ResultColumn& column) { return text_of(column, value_of(column, of, pass)); });
    });
  }

  template <class Text>
  static void print_line(const Text& text_of_column) {
    constexpr std::array<const char*, 3> first = {"schedule", "layout", "mask"};
    std::string line;
    for (const ResultColumn& column : columns()) {
      if (column.heading == nullptr) continue;
      const bool is_left = std::ranges::find(first, std::string(column.name)) != first.end();
      const std::size_t width = std::max<std::size_t>(std::string(column.heading).size(), is_left ? 16 : 8);
      line += is_left ? fmt::format("{:<{}}  ", text_of_column(column), width)
                      : fmt::format("{:>{}}  ", text_of_column(column), width);
    }
    fmt::print("{}\n", line);
    std::fflush(stdout);
  }

  void print_end() const {
    int failed = 0;
    for (const nlohmann::json& c : results_->cases())
      failed += c["check"].is_object() && c["check"]["passed"] == false ? 1 : 0;
    fmt::print("{} cases, {} unsupported, {} failed their check\n", results_->cases().size(),
               results_->unsupported().size(), failed);
    for (const nlohmann::json& r : results_->unsupported()) {
      fmt::print("unsupported: {} {} {}, {} tokens, {} ranks: {}\n", r["schedule"].get<std::string>(),
                 r["layout"].get<std::string>(), r["mask"].get<std::string>(),
                 r["tokens"].get<std::int64_t>(), r["ranks"].get<int>(), r["reason"].get<std::string>());
    }
  }

  const SweepOptions& options_;
  comm::Communicator& world_;
  int sharing_;
  std::vector<AttentionOptions> cases_;
  app::JobParts parts_;
  std::map<std::string, PredictionSource> machines_;
  std::set<std::string> chosen_;              // what `auto` has stood for
  std::set<std::string> warned_;              // of slow kernels and shared cores
  std::map<std::string, std::string> asked_;  // by what auto has become, what was asked; on rank 0
  std::map<std::string, std::size_t> kept_;   // by its name, a case's place in the results; on rank 0
  std::optional<Results> results_;            // on rank 0
  bool failed_ = false;
};

}  // namespace

int run_attention(SweepOptions& options, const comm::MpiEnvironment& mpi) {
  check_options(options, mpi.size());
  if (mpi.rank() == 0) {
    for (const std::string& file : {options.json, options.csv, options.html, options.common.dump})
      if (!file.empty()) io::require_writable(file);
  }
  if (options.common.local) return run_local_attention(cases_of(options, mpi.size()).front(), options.json);
  mpi.set_stall_timeout(std::chrono::seconds(options.common.stall_timeout));
  comm::Facts facts;
  const bool is_file = options.topology != "measure" && options.topology != "none";
  facts.add("what --cluster stands for", is_file ? "a file" : options.topology,
            "start every rank with the same arguments");
  comm::require_agreement(*mpi.world(1), facts);
  const auto world = options.common.transport.connect(mpi, options.ranks_per_node);
  return Sweep(options, *world, mpi.ranks_sharing_cores()).run();
}

}  // namespace annulus::bench
