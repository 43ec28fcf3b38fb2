#include "bench/attention/cases/options.hpp"

#include <fmt/format.h>

#include <annulus/plan/schedules.hpp>

#include "bench/attention/check/verify.hpp"
#include "bench/attention/local/ring_steps.hpp"

namespace annulus::bench {

namespace {

/// Of a seed: the library would read "-1" as the largest number.
std::string without_sign(const std::string& text) {
  if (!text.starts_with('-')) return "";
  return fmt::format("{} is negative: give a number from 0 to 2^64 - 1", text);
}

void add_cases(CLI::App& command, SweepOptions& o) {
  const auto list = [&](const char* name, auto& values, const std::string& text) {
    return command.add_option(name, values, text)->expected(1, -1);
  };
  list("--schedule", o.schedules,
       fmt::format("How the ranks exchange shards: {}; auto: what the planner chooses",
                   fmt::join(plan::schedule_names(), ", ")));
  list("--layout", o.layouts,
       "How tokens are dealt out: contiguous, zigzag, striped or block-striped:B; auto: what the planner "
       "chooses");
  list("--mask", o.masks,
       "full, causal, window:L,R, dilated:W,D, documents:0,A,B,… (documents alone with --data) or "
       "blocks:SIZE,FILE; joined by +");
  list("--tokens", o.tokens, "Length of the whole sequence");
  list("--tokens-per-rank", o.tokens_per_rank,
       "Instead of --tokens: a length for each rank, for weak scaling");
  list("--ranks", o.ranks, "Ranks of a case, the first of the job; the others wait. Without it: all")
      ->default_str("");
  list("--heads", o.heads, "Query heads");
  list("--kv-heads", o.kv_heads, "Key and value heads; 0: as many as query heads");
  list("--dtype", o.dtypes, "Storage of Q, K, V and dO: f32, bf16 or f16");
  command.add_option("--overlap", o.overlap,
                     "on, off (a rank waits for transfers before it computes) or both");
}

void add_files(CLI::App& command, SweepOptions& o) {
  command.add_option("--json", o.json,
                     "Write configuration, topology, times, traffic and errors to this file, after every "
                     "case (docs/formats/annulus-bench.md)");
  command.add_option("--csv", o.csv, "Write a row for each case and pass to this file, after every case");
  command.add_option("--html", o.html, "Write a page with strong and weak scaling and a table of all cases");
  command.add_flag("--resume", o.resume,
                   "Keep the cases that --json holds already, of the same build and configuration, and run "
                   "the others");
  command.add_option(
      "--dump", o.common.dump,
      "Of a single case: write q, k, v, do, out, lse, dq, dk, dv to this HDF5 file: fp32, global token "
      "order, (batch, heads, tokens, head_dim)");
}

void add_local(CLI::App& command, AttentionOptions& o) {
  command.add_flag("--local", o.local,
                   "Instead: the local kernel alone, without ranks, always checked first. On a GPU the steps "
                   "of a ring, on the host whole passes beside OpenBLAS' sgemm on the same cores");
  command
      .add_option("--steps", o.steps,
                  fmt::format("Of --local: which steps of a ring to time: {} or all; on the host instead of "
                              "sgemm and whole passes. Without it: all on a GPU, none on the host",
                              fmt::join(ring_step_names(), ", ")))
      ->expected(1, -1)
      ->default_str("");
  command.add_option(
      "--pause", o.pause,
      "Of --steps: seconds without work before each of the --repetitions of a single call, and "
      "seconds of the same work before the sustained rate is taken");
  command.add_option("--sustained", o.sustained, "Of --steps: seconds of calls for the sustained rate");
}

}  // namespace

CLI::App* add_attention_command(CLI::App& app, SweepOptions& o) {
  CLI::App* command = app.add_subcommand(
      "attention",
      "Attention over MPI ranks: every combination of the values given, timed and, with --check, compared "
      "with double precision first. Options in the plural take several values "
      "(docs/attention-benchmark.md).");
  command->option_defaults()->always_capture_default();
  add_cases(*command, o);
  command->add_option("--head-dim", o.common.head_dim, "16 to 256 in multiples of 8");
  command->add_option("--batch", o.common.batch, "Sequences");
  command->add_option(
      "--placement", o.placement,
      "Of hybrid:HxC, instead of its last word: head-first keeps the exchange of heads inside "
      "a node where it fits, context-first the ring");
  command->add_option("--pass", o.pass, "forward (the latency of a first token) or both");
  command->add_option(
      "--kernel", o.common.kernel,
      "automatic, portable, host_simd, mma, hopper, or tensor_cores: a kernel on them or an error");
  command
      ->add_option(
          "--seed", o.common.seed,
          "Of the values of Q, K, V and dO, which depend on it and their place in the sequence alone")
      ->check(without_sign);
  command->add_option("--warm-up", o.common.warm_up, "Runs before those that are timed");
  command->add_option("--repetitions", o.common.repetitions, "Timed runs");
  command->add_option("--stall-limit", o.common.stall_limit,
                      "Seconds that a rank may wait for others at a time: then all say in which step of "
                      "which plan they are, and end; 0: for ever");
  command->add_option("--ranks-per-node", o.ranks_per_node,
                      "Pretend that this many consecutive ranks share a node; 0: what the machine says");
  o.common.transport.add_to(*command);
  command->add_option("--spin", o.common.spin,
                      "Instead of computing, local kernels take the time of F,B TFLOP/s in the forward and "
                      "backward pass: what transfers cost beside kernels of that speed");
  command->add_option("--spin-free", o.common.spin_free,
                      "Multiprocessors that the kernels of --spin leave to transfers; bound NCCL to them by "
                      "--nccl-blocks, or the kernels wait for it");
  command->add_flag("--compute-only", o.common.compute_only,
                    "Also time every pass without its transfers: what the rest of the time is spent on");
  command->add_option("--topology", o.topology,
                      "For predictions and auto: a file with links and kernels (docs/formats/cluster.md), "
                      "measure (takes a second for each number of ranks) or none");
  command
      ->add_option("--check", o.check,
                   "Compare with double precision first: the whole result (reference), some rows of every "
                   "head (sampled), or what the length allows (automatic, also without a value). " +
                       tolerance_text())
      ->expected(0, 1)
      ->default_str("automatic");
  command->add_option("--tolerance", o.common.tolerance, "Of --check, instead of the one of the type");
  add_files(*command, o);
  command
      ->add_option("--data", o.common.data,
                   "Token shards, files or folders: Q, K and V become a seeded embedding of their tokens, "
                   "and the mask "
                   "term 'documents' takes their boundaries")
      ->expected(1, -1);
  command
      ->add_option("--vocabulary-embedding-seed", o.common.embedding_seed,
                   "Of the embedding of --data; else --seed")
      ->check(without_sign);
  add_local(*command, o.common);
  return command;
}

}  // namespace annulus::bench
