#include "bench/attention/cases/options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "bench/attention/check/check.hpp"
#include "bench/attention/local/ring_steps.hpp"
#include "bench/commands.hpp"
#include "common/conventions.hpp"

namespace annulus::bench {

using options::Shared;
using options::SharedOptions;

namespace {

/// Validators that leave the help texts as they are.
CLI::Validator one_of(std::vector<std::string> known) {
  return CLI::IsMember(std::move(known)).description("");
}
const CLI::Validator not_negative = app::at_least(0).description("");

/// What a case is: options with several values.
void add_cases(CLI::App& command, SharedOptions& shared, SweepOptions& o) {
  shared.add(Shared::schedule_or_auto, o.schedules);
  shared.add(Shared::layout_or_auto, o.layouts);
  shared.add(Shared::mask, o.masks, "; documents without offsets: those of --data");
  shared.add(Shared::tokens, o.tokens);
  command
      .add_option("--tokens-per-rank", o.tokens_per_rank,
                  "Tokens per rank, instead of --tokens: for weak scaling")
      ->expected(1, -1)
      ->transform(options::in_units());
  command
      .add_option("--ranks", o.ranks,
                  "Ranks of a case, the first of the job while the others wait; default: all")
      ->expected(1, -1)
      ->default_str("");
  shared.add(Shared::heads, o.heads);
  shared.add(Shared::kv_heads, o.kv_heads);
  shared.add(Shared::dtype, o.dtypes);
  command
      .add_option("--overlap", o.overlap,
                  "Overlap of transfers with compute: on, off (a rank waits for transfers before it "
                  "computes) or both")
      ->check(one_of({"on", "off", "both"}));
}

/// What all cases have in common.
void add_common(CLI::App& command, SharedOptions& shared, SweepOptions& o) {
  shared.add(Shared::head_dim, o.common.head_dim, ": 16 to 256 in multiples of 8");
  shared.add(Shared::v_head_dim, o.common.v_head_dim);
  shared.add(Shared::batch, o.common.batch);
  shared.add(Shared::placement, o.placement);
  command.add_option("--pass", o.pass, "Passes: forward (the latency of a first token) or both")
      ->check(one_of({"forward", "both"}));
  shared.add(Shared::kernel, o.common.kernel);
  command
      .add_option(
          "--soft-cap", o.common.soft_cap,
          "Soft cap of the scores, which become CAP * tanh(score / CAP) before they are masked; 0: none")
      ->check(not_negative);
  command.add_flag(
      "--sinks", o.common.sinks,
      "A random sink for each head, a logit that joins the softmax of all rows, and its gradient");
  command.add_option(
      "--sparsity", o.common.sparsity,
      "Dynamic sparse attention: the pairs are selected anew in each forward pass, for instance "
      "vertical-slash:recall=0.9,window=64 (docs/sparsity.md)");
  shared.add(Shared::seed, o.common.seed,
             ": values of Q, K, V and dO depend on it and on their position in the sequence only");
  command
      .add_option("--inputs", o.common.inputs,
                  "Values of Q and K: random, or vertical-slash, whose scores have lines as those of trained "
                  "models do (docs/sparsity.md)")
      ->check(one_of({"random", "vertical-slash"}));
  command.add_option("--warm-up", o.common.warm_up, "Runs before those that are timed")->check(not_negative);
  shared.add(Shared::repetitions, o.common.repetitions);
  command
      .add_option(
          "--stall-timeout", o.common.stall_timeout,
          "Seconds that a rank may wait for others at a time, then all ranks report their plan step and "
          "plan, and end; 0: for ever")
      ->check(not_negative);
  shared.add(Shared::ranks_per_node_of_job, o.ranks_per_node);
  o.common.transport.add_to(shared);
}

void add_measurements(CLI::App& command, SweepOptions& o) {
  command.add_option("--spin", o.common.spin,
                     "Rates F,B in TFLOP/s of the forward and backward pass: local kernels take that time "
                     "instead of computing, to show what transfers cost beside kernels of that speed");
  command
      .add_option("--spin-free", o.common.spin_free,
                  "SMs that the kernels of --spin leave to transfers; bound NCCL to them by --max-ctas, or "
                  "the kernels wait for it")
      ->check(not_negative);
  command.add_flag("--compute-only", o.common.compute_only,
                   "Also time every pass without its transfers: what the rest of the time is spent on");
  command.add_option("--cluster", o.topology,
                     "Source of links and kernel rates, for predictions and auto: a cluster file "
                     "(docs/formats/cluster.md), measure (takes a second for each number of ranks) or none");
  command
      .add_option("--check", o.common.check,
                  "Comparison with double precision before timing: every row (reference), some rows of every "
                  "head (sampled), or what the length allows (automatic, also without a value). " +
                      tolerance_text())
      ->check(one_of({"none", "automatic", "reference", "sampled"}))
      ->expected(0, 1)
      ->default_str("automatic");
  command.add_option("--tolerance", o.common.tolerance, "Tolerance of --check; default: by dtype")
      ->check(not_negative);
}

void add_files(CLI::App& command, SharedOptions& shared, SweepOptions& o) {
  shared.add(Shared::json, o.json,
             " after every case: configuration, topology, times, traffic "
             "and errors (docs/formats/annulus-bench.md)");
  shared.add(Shared::csv, o.csv, ", after every case");
  shared.add(Shared::html, o.html, ": strong and weak scaling and a table of all cases");
  command.add_flag("--resume", o.resume,
                   "Keep the cases that --json holds already, of the same build and configuration, and run "
                   "the others");
  command.add_option(
      "--dump", o.common.dump,
      "HDF5 file to write for a single case: q, k, v, do, out, lse, dq, dk, dv in fp32 and global token "
      "order, (batch, heads, tokens, head_dim); with --sparsity and up to 4096 tokens the selected pairs as "
      "allowed, (batch, heads, tokens, tokens)");
  command
      .add_option("--data", o.common.data,
                  "Token shards, files or folders: Q, K and V become a seeded embedding of their tokens, "
                  "and the mask term 'documents' takes their boundaries")
      ->expected(1, -1);
  command
      .add_option("--vocabulary-embedding-seed", o.common.embedding_seed,
                  "Seed of the embedding of --data; default: --seed")
      ->check(options::without_sign);
}

void add_local(CLI::App& command, AttentionOptions& o) {
  command.add_flag("--local", o.local,
                   "Instead: the local kernel alone, without ranks, always checked first. On a GPU the steps "
                   "of a ring, on the host whole passes beside OpenBLAS' sgemm on the same cores");
  command
      .add_option(
          "--steps", o.steps,
          fmt::format("Steps of a ring to time with --local: {} or all; on the host instead of sgemm and "
                      "whole passes; default: all on a GPU, none on the host",
                      fmt::join(ring_step_names(), ", ")))
      ->expected(1, -1)
      ->default_str("");
  command
      .add_option("--pause", o.pause,
                  "Seconds without work before each of the --repetitions of a single call of --steps, and "
                  "seconds of the same work before the sustained rate is taken")
      ->check(CLI::Range(0.0, 60.0).description(""));
  command.add_option("--sustained", o.sustained, "Seconds of calls for the sustained rate of --steps")
      ->check(CLI::Range(1e-6, 60.0).description(""));
}

}  // namespace

void add_attention(CLI::App& app, Command& chosen) {
  auto [command, o] = add_command(
      app, chosen, "attention",
      "Attention over MPI ranks: every combination of the values given, timed and, with --check, compared "
      "with double precision first. Options marked ... "
      "take several values (docs/benchmarking.md).",
      run_attention);
  SharedOptions shared(command);
  const auto group = [&command = command](const char* name) { command.option_defaults()->group(name); };
  group("Cases: every combination of these values");
  add_cases(command, shared, o);
  group("What all cases have in common");
  add_common(command, shared, o);
  group("What is measured");
  add_measurements(command, o);
  group("Files");
  add_files(command, shared, o);
  group("The local kernel alone");
  add_local(command, o.common);
  command.footer(
      "Examples:\n"
      "  mpirun -n 4 annulus-bench attention --schedule ring burst --layout zigzag striped --tokens 4k "
      "--check\n"
      "  mpirun -n 8 annulus-bench attention --schedule auto --tokens 64k --ranks 1 2 4 8 --html "
      "strong.html\n"
      "  mpirun -n 8 annulus-bench attention --tokens-per-rank 8k --ranks 1 2 4 8 --html weak.html\n"
      "  annulus-bench attention --local --tokens 16k --heads 32 --kv-heads 8 --dtype bf16");
}

}  // namespace annulus::bench
