#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include <annulus/base/error.hpp>
#include <annulus/base/version.hpp>

#include "bench/commands.hpp"
#include "bench/common/noise.hpp"
#include "bench/common/samples.hpp"
#include "bench/common/times.hpp"
#include "bench/gemms/lm_head_check.hpp"
#include "common/output/output_json.hpp"
#include "options/checks.hpp"
#include "options/shared.hpp"
#include "training/io/atomic.hpp"
#include "training/linalg/matmul.hpp"
#include "training/loss/lm_head.hpp"

namespace annulus::bench {

namespace {

struct LmHeadArguments {
  std::int64_t tokens = 1024, vocabulary = 4096, hidden = 256;
  std::int64_t sequence_tile = 0, workspace_mib = 0;  ///< 0: the library chooses
  std::string dtype = "bf16";
  int repetitions = 5;
  std::uint64_t seed = 1;
  std::string json;  ///< empty: none
};

using nlohmann::json;
using Exec = Kokkos::DefaultExecutionSpace;
using linalg::matmul;
using linalg::Op;

template <class T>
class LmHeadBenchmark {
 public:
  explicit LmHeadBenchmark(const LmHeadArguments& o)
      : tokens_(o.tokens),
        vocabulary_(o.vocabulary),
        seed_(o.seed),
        hidden_(random_matrix<T>(exec_, "hidden", o.tokens, o.hidden, o.seed, 1.0f)),
        // logits of deviation 1.5
        weight_(random_matrix<T>(exec_, "weight", o.vocabulary, o.hidden, o.seed + 1,
                                 1.5f / std::sqrt(static_cast<float>(o.hidden)))),
        d_hidden_(random_matrix<T>(exec_, "d_hidden", o.tokens, o.hidden, o.seed + 2, 1.0f)),
        d_weight_(Owned<Array2<float, Exec>>::zeroed(exec_, MemoryCategory::gradients,
                                                     "annulus::bench::d_weight", o.vocabulary, o.hidden)),
        targets_("annulus::bench::targets", static_cast<std::size_t>(o.tokens)),
        head_({.sequence_tile = o.sequence_tile, .workspace_bytes = o.workspace_mib << 20}) {}

  json check() {
    const std::vector<std::int64_t> tokens = sampled_indices(tokens_);
    set_targets(&tokens);
    pass();
    fence();
    const auto host = [](const auto& owned) {
      return Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), owned.view());
    };
    HeadSample<T> sample{.hidden = host(hidden_),
                         .d_hidden = host(d_hidden_),
                         .weight = host(weight_),
                         .d_weight = host(d_weight_),
                         .tokens = tokens,
                         .entries = sampled_indices(vocabulary_),
                         .loss_sum = head_.take(exec_).loss_sum,
                         .grad_scale = grad_scale()};
    for (const std::int64_t token : tokens) {
      sample.targets.push_back(target_of(token));
      sample.entries.push_back(target_of(token));
    }
    return check_head(sample);
  }

  void set_all_targets() { set_targets(nullptr); }
  void pass() {
    head_.forward_backward(exec_, *hidden_, *weight_, targets_,
                           {.scale = grad_scale(), .d_hidden = *d_hidden_, .d_weight = *d_weight_});
  }
  /// The GEMMs of a pass alone, whole.
  void logits() {
    make_product_operands();
    matmul<Exec, T, float>(exec_, {.op_b = Op::transpose}, *hidden_, *weight_, *logits_);
  }
  void d_hidden() { matmul<Exec, T, T>(exec_, {}, *d_logits_, *weight_, *d_hidden_); }
  void d_weight() {
    matmul<Exec, T, float>(exec_, {.op_a = Op::transpose, .beta = 1.0f}, *d_logits_, *hidden_, *d_weight_);
  }
  void fence() { exec_.fence("annulus::bench: lm-head"); }
  std::int64_t workspace_bytes() const { return head_.workspace_bytes(); }

 private:
  float grad_scale() const { return 1.0f / static_cast<float>(tokens_); }
  std::int32_t target_of(std::int64_t token) const {
    return static_cast<std::int32_t>((token * 7919 + 17 * static_cast<std::int64_t>(seed_)) % vocabulary_);
  }
  // Those of `places`, all others ignored; nullptr: all.
  void set_targets(const std::vector<std::int64_t>* places) {
    const auto host = Kokkos::create_mirror_view(targets_);
    for (std::int64_t token = 0; token < tokens_; ++token)
      host(token) = places == nullptr || std::ranges::binary_search(*places, token) ? target_of(token)
                                                                                    : loss::ignored_target;
    Kokkos::deep_copy(targets_, host);
  }
  void make_product_operands() {
    if (logits_.allocated()) return;
    logits_ = Owned<Array2<float, Exec>>::uninitialized(exec_, MemoryCategory::activations,
                                                        "annulus::bench::logits", tokens_, vocabulary_);
    d_logits_ = random_matrix<T>(exec_, "d_logits", tokens_, vocabulary_, seed_ + 3, 1e-5f);
  }

  Exec exec_;
  std::int64_t tokens_, vocabulary_;
  std::uint64_t seed_;
  Owned<Array2<T, Exec>> hidden_, weight_, d_hidden_;
  Owned<Array2<float, Exec>> d_weight_;
  Array1<std::int32_t, Exec> targets_;
  Owned<Array2<float, Exec>> logits_;  // (tokens, vocabulary), of the GEMMs alone
  Owned<Array2<T, Exec>> d_logits_;    // like logits_
  loss::LmHeadLoss<Exec, T> head_;
};

json times_of(const RepeatedTimes& times, double flops) {
  return {{"seconds", times.median()},
          {"seconds_min", times.least()},
          {"seconds_max", times.most()},
          {"tflops", flops / times.median() * 1e-12}};
}

template <class T>
json measure(const LmHeadArguments& o) {
  LmHeadBenchmark<T> test(o);
  json report = {{"check", test.check()}};
  test.set_all_targets();
  RepeatedTimes head, gemms, logits, d_hidden, d_weight;
  const auto time = [&test](const auto& work) {
    test.fence();
    const Kokkos::Timer timer;
    work();
    test.fence();
    return timer.seconds();
  };
  for (int round = 0; round <= o.repetitions; ++round) {
    const double pass = time([&] { test.pass(); });
    const double parts[] = {time([&] { test.logits(); }), time([&] { test.d_hidden(); }),
                            time([&] { test.d_weight(); })};
    if (round == 0) continue;  // warms up
    head.add(pass);
    gemms.add(parts[0] + parts[1] + parts[2]);
    logits.add(parts[0]);
    d_hidden.add(parts[1]);
    d_weight.add(parts[2]);
  }
  const double flops =
      2.0 * static_cast<double>(o.tokens) * static_cast<double>(o.vocabulary) * static_cast<double>(o.hidden);
  report["head"] = times_of(head, 3 * flops);
  report["gemms"] = times_of(gemms, 3 * flops);
  report["gemms"]["logits"] = times_of(logits, flops);
  report["gemms"]["d_hidden"] = times_of(d_hidden, flops);
  report["gemms"]["d_weight"] = times_of(d_weight, flops);
  report["ratio"] = head.median() / gemms.median();
  report["workspace_bytes"] = test.workspace_bytes();
  return report;
}

void print(const LmHeadArguments& o, const json& report) {
  fmt::print("{} tokens, vocabulary {}, hidden {}, {}, on {}\n", o.tokens, o.vocabulary, o.hidden, o.dtype,
             Exec::name());
  const auto line = [](const char* name, const json& entry) {
    fmt::print("  {:<12} {:>9.2f} ms {:>8.2f} TFLOP/s  ({:.2f} to {:.2f} ms)\n", name,
               1e3 * entry["seconds"].get<double>(), entry["tflops"].get<double>(),
               1e3 * entry["seconds_min"].get<double>(), 1e3 * entry["seconds_max"].get<double>());
  };
  line("head", report["head"]);
  line("GEMMs", report["gemms"]);
  for (const char* name : {"logits", "d_hidden", "d_weight"}) line(name, report["gemms"][name]);
  fmt::print(
      "  head over GEMMs {:.3f}; workspace {:.1f} MiB; "
      "errors: loss {:.1e}, d_hidden {:.1e}, d_weight {:.1e}\n",
      report["ratio"].get<double>(), report["workspace_bytes"].get<double>() / (1 << 20),
      report["check"]["loss"].get<double>(), report["check"]["d_hidden"].get<double>(),
      report["check"]["d_weight"].get<double>());
}

/// Checks the head's results against double precision on sampled rows, then times a pass in rounds with its
/// three matrix products alone, each whole in one call of linalg::matmul; on one rank.
int run_lm_head(LmHeadArguments& o, const comm::MpiEnvironment& mpi) {
  require(mpi.size() == 1, "lm-head measures one rank, but there are {}: start it without mpirun",
          mpi.size());
  for (const auto& [name, value] : {std::pair("--tokens", o.tokens), std::pair("--vocabulary", o.vocabulary),
                                    std::pair("--hidden", o.hidden)})
    options::require_positive(name, value);
  options::check_matrix("--tokens and --hidden", o.tokens, o.hidden);
  options::check_matrix("--vocabulary and --hidden", o.vocabulary, o.hidden);
  options::check_matrix("--tokens and --vocabulary", o.tokens, o.vocabulary);
  require(o.sequence_tile >= 0 && o.workspace_mib >= 0 && o.workspace_mib < (std::int64_t{1} << 30),
          "--sequence-tile {} and --workspace-mib {} must not be negative: 0 lets the library choose",
          o.sequence_tile, o.workspace_mib);
  const DType dtype = parse_dtype(o.dtype, "--dtype");
  require(dtype == DType::f32 || dtype == DType::bf16, "--dtype is {}: the LM head takes f32 or bf16",
          o.dtype);
  if (!o.json.empty()) io::require_writable(o.json);
  json report = dtype == DType::f32 ? measure<float>(o) : measure<bfloat16>(o);
  report["config"] = {{"tokens", o.tokens},
                      {"vocabulary", o.vocabulary},
                      {"hidden", o.hidden},
                      {"dtype", o.dtype},
                      {"sequence_tile", o.sequence_tile},
                      {"workspace_mib", o.workspace_mib},
                      {"repetitions", o.repetitions},
                      {"seed", o.seed}};
  report["execution_space"] = Exec::name();
  report["threads"] = HostExec().concurrency();
  report["git_hash"] = git_hash();
  print(o, report);
  app::write_output(o.json, std::move(report));
  return 0;
}

}  // namespace

void add_lm_head(CLI::App& app, Command& chosen) {
  auto [command, o] = add_command(
      app, chosen, "lm-head",
      "The LM head with its loss and all gradients, compared with its three GEMMs alone "
      "(docs/benchmarking.md). Results are checked against double precision on sampled rows first.",
      run_lm_head);
  options::SharedOptions shared(command);
  command.add_option("--tokens", o.tokens, "Rows of hidden states");
  command.add_option("--vocabulary", o.vocabulary, "Rows of the weight");
  command.add_option("--hidden", o.hidden, "Columns of both");
  command.add_option("--dtype", o.dtype, "Type of hidden states, weight and d_hidden: f32 or bf16");
  command.add_option("--sequence-tile", o.sequence_tile, "Tokens whose logits exist at a time; 0: chosen");
  command.add_option("--workspace-mib", o.workspace_mib, "MiB that those logits may take; 0: chosen");
  shared.add(options::Shared::repetitions, o.repetitions, ": rounds, after one that warms up");
  shared.add(options::Shared::seed, o.seed);
  shared.add(options::Shared::json, o.json, ": the measurements");
}

}  // namespace annulus::bench
