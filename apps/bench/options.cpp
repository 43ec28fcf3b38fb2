#include "bench/options.hpp"

#include <fmt/format.h>

#include <annulus/attention/local.hpp>
#include <annulus/base/dtype.hpp>
#include <annulus/base/error.hpp>
#include <annulus/plan/schedules.hpp>
#include <annulus/sequence/layout.hpp>

#include "bench/verify.hpp"

namespace annulus::bench {

CLI::App* add_attention_command(CLI::App& app, AttentionOptions& o) {
  CLI::App* command = app.add_subcommand("attention",
                                         "Attention over MPI ranks, forward and backward: one case, timed "
                                         "and, with --check, compared with a reference in "
                                         "double precision.");
  command->option_defaults()->always_capture_default();
  command->add_option(
      "--schedule", o.schedule,
      fmt::format("How the ranks exchange shards: {}", fmt::join(plan::schedule_names(), ", ")));
  command->add_option("--layout", o.layout,
                      "How tokens are dealt out: contiguous, zigzag, striped or block-striped:B");
  command->add_option(
      "--mask", o.mask,
      "full, causal, window:L,R, dilated:W,D, documents:0,A,B,… (documents alone with --data) or "
      "blocks:SIZE,FILE; joined by +");
  command->add_option("--tokens", o.tokens, "Length of the whole sequence");
  command->add_option("--heads", o.heads, "Query heads");
  command->add_option("--kv-heads", o.kv_heads, "Key and value heads; 0: as many as query heads");
  command->add_option("--head-dim", o.head_dim, "16 to 256 in multiples of 8");
  command->add_option("--batch", o.batch, "Sequences");
  command->add_option("--dtype", o.dtype, "Storage of Q, K, V and dO: f32, bf16 or f16");
  command->add_option("--kernel", o.kernel, "automatic, portable or host_simd");
  command->add_option(
      "--seed", o.seed,
      "Of the values of Q, K, V and dO, which depend on it and their place in the sequence alone");
  command->add_option("--repetitions", o.repetitions, "Timed runs, after one that is not");
  command->add_option("--ranks-per-node", o.ranks_per_node,
                      "Pretend that this many consecutive ranks share a node; 0: what the machine says");
  command->add_flag("--check", o.check, "Compare with the reference first. " + tolerance_text());
  command->add_option("--tolerance", o.tolerance, "Of --check, instead of the one of the type");
  command->add_option("--json", o.json,
                      "Write configuration, topology, times, traffic and errors to this file");
  command->add_option(
      "--dump", o.dump,
      "Write q, k, v, do, out, lse, dq, dk, dv to this HDF5 file: fp32, global token order, (batch, heads, "
      "tokens, head_dim)");
  command
      ->add_option("--data", o.data,
                   "Token shards, files or folders: Q, K and V become a seeded embedding of their tokens, "
                   "and the mask "
                   "term 'documents' takes their boundaries")
      ->expected(1, -1);
  command->add_option("--vocabulary-embedding-seed", o.embedding_seed,
                      "Of the embedding of --data; else --seed");
  command->add_flag("--local", o.local,
                    "Instead: the local kernel alone, without ranks, beside OpenBLAS' sgemm on the same "
                    "cores; always checked first");
  return command;
}

void check_options(const AttentionOptions& o, int ranks) {
  const auto positive = [](const char* name, std::int64_t value) {
    require(value >= 1, "{} is {}: it must be at least 1", name, value);
  };
  positive("--tokens", o.tokens);
  positive("--heads", o.heads);
  positive("--batch", o.batch);
  positive("--repetitions", o.repetitions);
  require(o.kv_heads >= 0, "--kv-heads is {}: it must be positive, or 0 for as many as --heads", o.kv_heads);
  require(o.heads % o.key_value_heads() == 0,
          "--heads {} is not divisible by --kv-heads {}: every kv head serves equally many query heads",
          o.heads, o.kv_heads);
  attention::check_head_dim(o.head_dim, "--head-dim");
  const DType type = parse_dtype(o.dtype, "--dtype");
  require(type == DType::f32 || type == DType::bf16 || type == DType::f16,
          "--dtype {}: attention stores f32, bf16 or f16", o.dtype);
  require(!o.local || ranks == 1, "--local measures one process, but there are {} ranks: leave mpirun out",
          ranks);
  require(!o.local || (o.dump.empty() && o.data.empty()),
          "--local measures random inputs and writes no tensors: leave --data and --dump out");
  plan::check_schedule(o.schedule, "--schedule");
  Layout::parse(o.layout, "--layout");
  require(o.ranks_per_node >= 0 && o.ranks_per_node <= ranks,
          "--ranks-per-node is {}, but there are {} ranks: give a number between 1 and that, or 0 for what "
          "the machine "
          "says",
          o.ranks_per_node, ranks);
  require(!o.tolerance || *o.tolerance >= 0, "--tolerance is {}: it must not be negative",
          o.tolerance.value_or(0));
  require(!o.tolerance || o.check, "--tolerance is of use with --check only");
  require(!o.embedding_seed || !o.data.empty(), "--vocabulary-embedding-seed is of use with --data only");
}

}  // namespace annulus::bench
