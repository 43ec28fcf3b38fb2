#include "train/config_table.hpp"

#include <algorithm>
#include <numeric>
#include <string_view>

namespace annulus::train {

namespace {

// The member that a key stands for, as a function without state.
#define ANNULUS_MEMBER(path) [](Config& config) -> Reference { return &config.path; }

using enum Fixed;

const std::vector<Key>& table() {
  static const std::vector<Key> keys = {
      {"run.folder", "where configuration, metrics, log and checkpoints of the run go",
       ANNULUS_MEMBER(run.folder), never},
      {"run.device", "gpu, cpu, or auto: the GPU in a build for GPUs, else the CPU",
       ANNULUS_MEMBER(run.device), never},
      {"run.seed", "from which the initial parameters are drawn", ANNULUS_MEMBER(run.seed), in_run, 0},
      {"run.stall_timeout",
       "seconds a rank may wait for others before the run ends with a report; 0: for ever",
       ANNULUS_MEMBER(run.stall_timeout), never, 0},
      {"run.stop_within",
       "seconds after a signal in which the run has to end: the state before an optimizer step that would "
       "take "
       "longer is saved; 0: any number",
       ANNULUS_MEMBER(run.stop_within), never, 0},
      {"run.peak_tflops",
       "TFLOP/s that one rank's device can reach in train.dtype, against which MFU is stated; 0: not stated",
       ANNULUS_MEMBER(run.peak_tflops), never, 0},

      {"model.from",
       "weights that the run starts from, a folder in Hugging Face's format or a checkpoint; they give the "
       "other keys of the model; empty: initial values are drawn",
       ANNULUS_MEMBER(model_from), never},
      {"model.vocabulary", "entries of the embedding; 0 takes the vocabulary of the data",
       ANNULUS_MEMBER(model.vocabulary), in_lineage, 0},
      {"model.layers", "transformer layers", ANNULUS_MEMBER(model.layers), in_lineage, 1},
      {"model.hidden", "width of the residual stream", ANNULUS_MEMBER(model.hidden), in_lineage, 1},
      {"model.heads", "query heads", ANNULUS_MEMBER(model.heads), in_lineage, 1},
      {"model.kv_heads", "key and value heads (grouped-query attention); divides model.heads",
       ANNULUS_MEMBER(model.kv_heads), in_lineage, 1},
      {"model.head_dim", "width of a head, 16 to 256 in multiples of 8", ANNULUS_MEMBER(model.head_dim),
       in_lineage, 16},
      {"model.ffn", "width of the SwiGLU", ANNULUS_MEMBER(model.ffn), in_lineage, 1},
      {"model.rope_theta", "base of the rotary position embedding", ANNULUS_MEMBER(model.rope_theta),
       in_lineage},
      {"model.rope_scaling",
       "how its frequencies change for longer sequences than those trained on: none, linear, llama3 or yarn",
       ANNULUS_MEMBER(model.rope.name), in_lineage},
      {"model.rope_factor", "of linear, llama3 and yarn: the new length over the old one",
       ANNULUS_MEMBER(model.rope.factor), in_lineage, 1},
      {"model.rope_original_length", "of llama3 and yarn: tokens of the sequences trained on",
       ANNULUS_MEMBER(model.rope.original_length), in_lineage, 0},
      {"model.rope_low_frequency_factor",
       "of llama3: wavelengths above the original length over this are divided by the factor",
       ANNULUS_MEMBER(model.rope.low_frequency_factor), in_lineage, 0},
      {"model.rope_high_frequency_factor",
       "of llama3: wavelengths below the original length over this are kept",
       ANNULUS_MEMBER(model.rope.high_frequency_factor), in_lineage, 0},
      {"model.rope_beta_fast", "of yarn: dimensions with more turns over the original length are kept",
       ANNULUS_MEMBER(model.rope.beta_fast), in_lineage, 0},
      {"model.rope_beta_slow", "of yarn: dimensions with fewer turns are divided by the factor",
       ANNULUS_MEMBER(model.rope.beta_slow), in_lineage, 0},
      {"model.rope_attention_factor", "of yarn: multiplies cos and sin; 0: 0.1 ln(model.rope_factor) + 1",
       ANNULUS_MEMBER(model.rope.attention_factor), in_lineage, 0},
      {"model.norm_epsilon", "added to the mean square in RMSNorm", ANNULUS_MEMBER(model.norm_epsilon),
       in_lineage},
      {"model.tied", "the LM head shares the embedding's weights", ANNULUS_MEMBER(model.tied), in_lineage},
      {"model.qkv_bias", "biases are added to q, k and v (Qwen2.5)", ANNULUS_MEMBER(model.qkv_bias),
       in_lineage},
      {"model.qk_norm", "an RMSNorm of every head of q and k before the rotary positions (Qwen3)",
       ANNULUS_MEMBER(model.qk_norm), in_lineage},
      {"model.positions",
       "tokens of the longest sequence that the model is meant for; exports name it where "
       "data.sequence_length is shorter",
       ANNULUS_MEMBER(model_positions), never, 0},

      {"data.shards", "token shard files, or folders of them (annulus-tokens pack)",
       ANNULUS_MEMBER(data.shards), never},
      {"data.sequence_length", "tokens of one sequence, spread over the ranks of a context-parallel group",
       ANNULUS_MEMBER(data.sequence_length), in_lineage, 1},
      {"data.seed", "from which the order of the sequences is drawn", ANNULUS_MEMBER(data.seed), in_lineage,
       0},
      {"data.shuffle", "false reads the sequences as stored", ANNULUS_MEMBER(data.shuffle), in_lineage},
      {"data.verify", "compares the shards with their checksums while training runs",
       ANNULUS_MEMBER(data.verify), never},

      {"attention.schedule",
       "how shards travel: ring, burst, topology-burst and others (docs/schedules.md), or auto",
       ANNULUS_MEMBER(attention.schedule), never},
      {"attention.layout", "contiguous, zigzag, striped, block-striped:B, or auto",
       ANNULUS_MEMBER(attention.layout), never},
      {"attention.cluster",
       "file of links and kernels that auto chooses for; empty takes the default cluster",
       ANNULUS_MEMBER(attention.cluster), never},
      {"attention.mask", "causal, window:L,R, documents (from the data), joined by + (docs/masks.md)",
       ANNULUS_MEMBER(attention.mask), in_run},
      {"attention.kernel",
       "automatic, portable, host_simd (CPU), mma, hopper (NVIDIA), or tensor_cores: a kernel on them or an "
       "error",
       ANNULUS_MEMBER(attention.kernel), never},
      {"attention.deterministic",
       "false lets the kernel hopper sum dQ in any order: somewhat faster, not the same bits each time",
       ANNULUS_MEMBER(attention.deterministic), never},
      {"attention.overlap",
       "false makes ranks wait for the transfers of a plan step before they compute: shows what overlap is "
       "worth",
       ANNULUS_MEMBER(attention.overlap), never},
      {"attention.see_targets",
       "true allows masks that show a token the later ones, which it is to predict: for measuring speed "
       "alone",
       ANNULUS_MEMBER(attention.see_targets), in_run},
      {"attention.sparsity",
       "pairs that layers select anew in each pass, for instance vertical-slash:recall=0.9,window=64 "
       "(docs/sparsity.md); empty takes all of the mask",
       ANNULUS_MEMBER(attention.sparsity), in_run},

      {"sparsity.dense_updates", "optimizer steps, the first ones, in which all layers take all pairs",
       ANNULUS_MEMBER(sparsity.dense_updates), in_run, 0},
      {"sparsity.dense_layers",
       "layers that always take all pairs, from 0: numbers and ranges, [ '0', '4-7' ]",
       ANNULUS_MEMBER(sparsity.dense_layers), in_run},
      {"sparsity.audit_every",
       "optimizer steps from one audit of recall to the next: one head of each layer over all pairs, in one "
       "pass; 0 is never",
       ANNULUS_MEMBER(sparsity.audit_every), never, 0},

      {"parallel.context", "ranks of a context-parallel group; 0 is all; the groups are data-parallel",
       ANNULUS_MEMBER(parallel.context), never, 0},
      {"parallel.zero",
       "what lies in shards over the ranks (ZeRO): 0 nothing, 1 the optimizer, 2 gradients too, 3 parameters "
       "too",
       ANNULUS_MEMBER(parallel.zero), never, 0},
      {"parallel.shard",
       "ranks that share one copy of what parallel.zero shards, consecutive ones; 0 is all ranks",
       ANNULUS_MEMBER(parallel.shard), never, 0},
      {"parallel.sums",
       "of gradients over ranks: rank-order, or native: as NCCL or MPI likes best, faster, other last bits",
       ANNULUS_MEMBER(parallel.sums), never},
      {"parallel.ranks_per_node",
       "0 asks the machine; else overrides it, so that one machine can stand for several nodes",
       ANNULUS_MEMBER(parallel.ranks_per_node), never, 0},
      {"parallel.transport",
       "of GPU memory: nccl, mpi, or automatic: nccl where each rank has a GPU of its own",
       ANNULUS_MEMBER(parallel.transport), never},
      {"parallel.nvlink_multicast", "lets NCCL reduce inside NVLink's switches (NVLS)",
       ANNULUS_MEMBER(parallel.nvlink_multicast), never},
      {"parallel.max_ctas",
       "CTAs that an NCCL communicator may use (ncclConfig_t::maxCTAs), one communicator per channel, two on "
       "several nodes; 0: NCCL's choice",
       ANNULUS_MEMBER(parallel.max_ctas), never, 0},
      {"parallel.mixed_hardware",
       "true lets ranks compute on different GPU models or CPUs, whose results differ in their last bits",
       ANNULUS_MEMBER(parallel.mixed_hardware), never},

      {"memory.recompute",
       "what layers compute again in the backward pass instead of keeping it: none, selective (all but "
       "attention), sequence-selective (that, and attention of the earlier positions) or full; a list, a "
       "policy "
       "for each layer; or auto: the fastest that fits, with chunks and offload",
       ANNULUS_MEMBER(memory.recompute), never},
      {"memory.store_fraction",
       "share of the positions, the later ones, of which sequence-selective keeps attention's output",
       ANNULUS_MEMBER(memory.store_fraction), never, 0},
      {"memory.layers_without_recompute",
       "number of last layers that keep everything, under any policy of memory.recompute for the others",
       ANNULUS_MEMBER(memory.layers_without_recompute), never, 0},
      {"memory.offload_activations",
       "share of the layers whose kept activations wait in pinned memory of the host for the backward pass; "
       "where some layers compute something again, a share of these",
       ANNULUS_MEMBER(memory.offload_activations), never, 0},
      {"memory.chunk_rows",
       "rows that norms, projections and feed-forward layers work on at once; 0: all rows of a pass",
       ANNULUS_MEMBER(memory.chunk_rows), never, 0},
      {"memory.lm_head_rows",
       "rows whose logits the LM head and its loss hold at once; 0: as many as make fast products",
       ANNULUS_MEMBER(memory.lm_head_rows), never, 0},
      {"memory.offload_optimizer",
       "true keeps master weights and AdamW's moments in pinned memory of the host, which updates them there",
       ANNULUS_MEMBER(memory.offload_optimizer), never},

      {"train.steps", "optimizer steps", ANNULUS_MEMBER(train.steps), never, 1},
      {"train.micro_batches",
       "sequences of a data-parallel group in one optimizer step (gradient accumulation)",
       ANNULUS_MEMBER(train.micro_batches), never, 1},
      {"train.sequences_per_pass",
       "of these, sequences that one forward and backward works on at once; divides train.micro_batches",
       ANNULUS_MEMBER(train.sequences_per_pass), never, 1},
      {"train.dtype", "of weights and activations in compute, f32 or bf16; master weights stay f32",
       ANNULUS_MEMBER(train.dtype), in_run},
      {"train.lr", "peak learning rate", ANNULUS_MEMBER(train.lr), in_run, 0},
      {"train.min_lr", "learning rate at the end of the cosine", ANNULUS_MEMBER(train.min_lr), in_run, 0},
      {"train.warmup_steps", "optimizer steps of linear warm-up", ANNULUS_MEMBER(train.warmup_steps), in_run,
       0},
      {"train.schedule_steps",
       "optimizer steps until the learning rate is at train.min_lr and stays there; 0: train.steps of the "
       "first start",
       ANNULUS_MEMBER(train.schedule_steps), never, 0},
      {"train.weight_decay", "of AdamW, on matrices alone", ANNULUS_MEMBER(train.weight_decay), in_run, 0},
      {"train.beta1", "decay of AdamW's mean of gradients", ANNULUS_MEMBER(train.beta1), in_run, 0},
      {"train.beta2", "decay of AdamW's mean of squared gradients", ANNULUS_MEMBER(train.beta2), in_run, 0},
      {"train.epsilon", "added to the root of AdamW's mean square", ANNULUS_MEMBER(train.epsilon), in_run, 0},
      {"train.clip_norm", "bound of the global gradient norm", ANNULUS_MEMBER(train.clip_norm), in_run, 0},
      {"train.log_every", "optimizer steps between progress lines", ANNULUS_MEMBER(train.log_every), never,
       1},
      {"train.check_replicas",
       "optimizer steps between comparisons of all ranks' parameters and moments; 0: only when the run "
       "starts and saves",
       ANNULUS_MEMBER(train.check_replicas), never, 0},

      {"checkpoint.every", "optimizer steps between checkpoints; 0 saves at the end and on signals alone",
       ANNULUS_MEMBER(checkpoint.every), never, 0},
      {"checkpoint.keep", "checkpoints that stay; older ones are removed", ANNULUS_MEMBER(checkpoint.keep),
       never, 1},
      {"checkpoint.keep_every",
       "beside these, checkpoints of optimizer steps that this divides are never removed; 0: none",
       ANNULUS_MEMBER(checkpoint.keep_every), never, 0},
  };
  return keys;
}

#undef ANNULUS_MEMBER

// Levenshtein's distance of the first hundred characters: no key has as many.
std::size_t distance(std::string_view a, std::string_view b) {
  a = a.substr(0, 100);
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

std::string_view section_of(const Key& key) {
  const std::string_view name = key.name;
  return name.substr(0, name.find('.'));
}

std::string_view last_part(std::string_view name) {
  return name.substr(name.find_last_of('.') + 1);
}

}  // namespace

const std::vector<Key>& config_table() {
  return table();
}

const Key& nearest_key(const std::string& name) {
  // A key written into the wrong section is nearer than a similar key of the section that was named.
  const auto score = [&](const Key& key) {
    return std::min(distance(name, key.name), distance(last_part(name), last_part(key.name)) + 1);
  };
  return *std::min_element(table().begin(), table().end(),
                           [&](const Key& a, const Key& b) { return score(a) < score(b); });
}

std::string nearest_section(const std::string& name) {
  return std::string(
      section_of(*std::min_element(table().begin(), table().end(), [&](const Key& a, const Key& b) {
        return distance(name, section_of(a)) < distance(name, section_of(b));
      })));
}

}  // namespace annulus::train
