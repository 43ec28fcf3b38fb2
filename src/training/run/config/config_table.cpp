#include "training/run/config/config_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include <annulus/attention/sequence/mask.hpp>
#include <annulus/cluster/topology/topology.hpp>

#include "base/nearest.hpp"

namespace annulus::training {

namespace {

// The member that a key stands for, as a function without state; and a key with the name of its member.
#define ANNULUS_MEMBER(path) [](Config& config) -> Reference { return &config.path; }
#define ANNULUS_KEY(path, meaning, ...) \
  { #path, meaning, ANNULUS_MEMBER(path), __VA_ARGS__ }

using enum Fixed;

constexpr double most_seconds = 1e9;  // 30 years, which nanoseconds in 64 bits count
constexpr double most_steps = 1e12;
constexpr double most_tokens = 0x1p53;
constexpr double most_sequences = double(1 << 24);  // of an optimizer step

}  // namespace

const std::vector<Key>& config_table() {
  static const std::vector<Key> keys = {
      ANNULUS_KEY(run.folder, "where configuration, metrics, log and checkpoints of the run go", never),
      ANNULUS_KEY(run.device, "gpu, cpu, or auto: the GPU in a build for GPUs, else the CPU", never),
      ANNULUS_KEY(run.seed, "from which the initial parameters are drawn", in_run, 0),
      ANNULUS_KEY(run.stall_timeout,
                  "seconds a rank may wait for others before the run ends with a report; 0: for ever", never,
                  0, most_seconds),
      ANNULUS_KEY(run.stop_within,
                  "seconds after a signal in which the run has to end: the state before an optimizer step "
                  "that would take longer is saved; 0: any number",
                  never, 0, most_seconds),
      ANNULUS_KEY(run.peak_tflops,
                  "TFLOP/s that one rank's device can reach in train.dtype, against which MFU is stated; 0: "
                  "not stated",
                  never, 0),
      ANNULUS_KEY(run.tensorboard, "write event files for TensorBoard into run.folder", never),

      {"model.from",
       "weights that the run starts from, a folder in Hugging Face's format or a checkpoint; they give the "
       "other keys of the model; empty: initial values are drawn",
       ANNULUS_MEMBER(model_from), never},
      ANNULUS_KEY(model.vocabulary,
                  "entries of the embedding; 0 takes the vocabulary of the data, or of model.from; another "
                  "one than that of model.from gives embedding and LM head new rows, or drops the last ones",
                  in_lineage, 0),
      ANNULUS_KEY(model.layers, "transformer layers", in_lineage, 1),
      ANNULUS_KEY(model.hidden, "width of the residual stream", in_lineage, 1),
      ANNULUS_KEY(model.heads, "query heads", in_lineage, 1),
      ANNULUS_KEY(model.kv_heads, "key and value heads (grouped-query attention); divides model.heads",
                  in_lineage, 1),
      ANNULUS_KEY(model.head_dim, "width of a head, 16 to 256 and even, best a multiple of 8", in_lineage,
                  16),
      ANNULUS_KEY(model.ffn, "width of the feed-forward layer", in_lineage, 1),
      ANNULUS_KEY(model.rope_theta, "base of the rotary position embedding", in_lineage),
      ANNULUS_KEY(model.rope_fraction, "part of each head that positions turn, its first elements (Phi-3)",
                  in_lineage, 0, 1),
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
      {"model.rope_truncate",
       "of yarn: false begins and ends the ramp between dimensions, too, not at whole ones alone (gpt-oss)",
       ANNULUS_MEMBER(model.rope.truncate), in_lineage},
      ANNULUS_KEY(model.norm_epsilon, "added to the mean square in RMSNorm", in_lineage),
      ANNULUS_KEY(model.tied, "the LM head shares the embedding's weights", in_lineage),
      {"model.norms",
       "where the norms of attention and of the feed-forward layer stand: "
       "before, behind (OLMo 2) or both (Gemma)",
       ANNULUS_MEMBER(model.block.norms), in_lineage},
      {"model.gains_from_one", "norms multiply by 1 + w (Gemma), else by w",
       ANNULUS_MEMBER(model.block.gains_from_one), in_lineage},
      {"model.qkv_bias", "biases are added to q, k and v (Qwen2.5)", ANNULUS_MEMBER(model.block.qkv_bias),
       in_lineage},
      {"model.out_bias", "a bias is added to the product behind attention (gpt-oss)",
       ANNULUS_MEMBER(model.block.out_bias), in_lineage},
      {"model.qk_norm",
       "RMSNorms of q and k before the rotary positions: none, head (of every head, Qwen3) or heads (of all "
       "together, OLMo 2)",
       ANNULUS_MEMBER(model.block.qk_norm), in_lineage},
      ANNULUS_KEY(
          model.query_scale,
          "attention's scores are divided by its root (Gemma's query_pre_attn_scalar); 0: model.head_dim",
          in_lineage, 0),
      ANNULUS_KEY(model.soft_cap, "attention's scores become cap · tanh(score / cap) (Gemma 2); 0: they stay",
                  in_lineage, 0),
      ANNULUS_KEY(model.logit_cap, "the same of the LM head's logits", in_lineage, 0),
      {"model.activation", "of the feed-forward layer's gate: silu or gelu_tanh (Gemma)",
       ANNULUS_MEMBER(model.block.activation), in_lineage},
      {"model.scaled_embedding",
       "embeddings are multiplied by the root of model.hidden, in the type of the weights (Gemma)",
       ANNULUS_MEMBER(model.block.scaled_embedding), in_lineage},
      ANNULUS_KEY(model.pattern,
                  "kinds of layers, repeated and cut to the layers: '5*window:1023,0 theta=10000, causal' "
                  "(docs/models.md); [] makes all alike",
                  in_lineage),
      {"model.positions",
       "tokens of the longest sequence that the model is meant for; exports name it where "
       "data.sequence_length is shorter",
       ANNULUS_MEMBER(model_positions), never, 0},

      ANNULUS_KEY(data.shards, "token shard files, or folders of them (annulus-tokens pack)", never),
      ANNULUS_KEY(data.sets,
                  "in place of data.shards: sets of shards that sequences are drawn from by weight, [ { name "
                  "= 'books', shards = [ 'shards/books' ], weight = 2.0 }, … ]",
                  never),
      ANNULUS_KEY(data.sequence_length,
                  "tokens of one sequence, spread over the ranks of a context-parallel group", in_lineage, 1,
                  double(Mask::max_tokens)),
      ANNULUS_KEY(data.packing,
                  "stream: documents, one behind the other, are cut into sequences; best-fit: sequences hold "
                  "whole documents, with gaps behind them, and only longer ones are cut",
                  in_lineage),
      ANNULUS_KEY(data.seed, "from which the order of the sequences is drawn", in_lineage, 0),
      ANNULUS_KEY(data.shuffle, "false reads the sequences as stored", in_lineage),
      ANNULUS_KEY(data.verify, "compares the shards with their checksums while training runs", never),
      ANNULUS_KEY(data.validation,
                  "token shards, or folders of them, on which the loss is measured without learning from "
                  "them; NAME=PATH names a set",
                  never),
      ANNULUS_KEY(data.validation_length,
                  "tokens of one sequence of data.validation; 0: data.sequence_length", never, 0,
                  double(Mask::max_tokens)),

      ANNULUS_KEY(attention.schedule,
                  "how shards travel: ring, burst, topology-burst and others (docs/schedules.md), or auto",
                  never),
      ANNULUS_KEY(attention.layout, "contiguous, zigzag, striped, block-striped:B, balanced, or auto", never),
      ANNULUS_KEY(attention.cluster,
                  "file of links and kernels that auto chooses for; empty takes the default cluster", never),
      ANNULUS_KEY(attention.mask,
                  "causal, window:L,R, documents (from the data), joined by + (docs/masks.md)", in_run),
      ANNULUS_KEY(attention.kernel,
                  "automatic, portable, host_simd (CPU), mma, hopper (NVIDIA), or tensor_cores: a kernel on "
                  "them or an error",
                  never),
      ANNULUS_KEY(
          attention.deterministic,
          "false lets the kernel hopper sum dQ in any order: somewhat faster, not the same bits each time",
          never),
      ANNULUS_KEY(attention.overlap,
                  "false makes ranks wait for the transfers of a plan step before they compute: shows what "
                  "overlap is worth",
                  never),
      ANNULUS_KEY(attention.see_targets,
                  "true allows masks that show a token the later ones, which it is to predict: for measuring "
                  "speed alone",
                  in_run),
      ANNULUS_KEY(attention.sparsity,
                  "pairs that layers select anew in each pass, for instance "
                  "vertical-slash:recall=0.9,window=64 (docs/sparsity.md); empty takes all of the mask",
                  in_run),

      ANNULUS_KEY(sparsity.dense_updates,
                  "optimizer steps, the first ones, in which all layers take all pairs", in_run, 0,
                  most_steps),
      ANNULUS_KEY(sparsity.dense_layers,
                  "layers that always take all pairs, from 0: numbers and ranges, [ '0', '4-7' ]", in_run),
      ANNULUS_KEY(sparsity.keep_columns,
                  "keep K and V of the verticals of vertical-slash for the backward pass: more memory, and, "
                  "where queries travel in it, fewer bytes",
                  never),
      ANNULUS_KEY(sparsity.audit_every,
                  "optimizer steps from one audit of attention to the next, which attention.jsonl gets: "
                  "density, recall, entropy and gradients of each head; 0 is never",
                  never, 0, most_steps),
      ANNULUS_KEY(sparsity.audit_queries,
                  "queries of a sequence that an audit looks at, spread over it; 0 is all", never, 0,
                  Mask::max_tokens),

      ANNULUS_KEY(parallel.context,
                  "ranks of a context-parallel group; 0 is all; the groups are data-parallel", never, 0,
                  Topology::max_ranks),
      ANNULUS_KEY(parallel.zero,
                  "what lies in shards over the ranks (ZeRO): 0 nothing, 1 the optimizer, 2 gradients too, 3 "
                  "parameters too",
                  never, 0, 3),
      ANNULUS_KEY(parallel.shard,
                  "ranks that share one copy of what parallel.zero shards, consecutive ones; 0 is all ranks",
                  never, 0, Topology::max_ranks),
      ANNULUS_KEY(parallel.sums,
                  "of gradients over ranks: rank-order, or native: as NCCL or MPI likes best, with other "
                  "last bits",
                  never),
      ANNULUS_KEY(parallel.ranks_per_node,
                  "0 asks the machine; else overrides it, so that one machine can stand for several nodes",
                  never, 0, Topology::max_ranks),
      ANNULUS_KEY(parallel.transport,
                  "of GPU memory: nccl, mpi, or automatic: nccl where each rank has a GPU of its own", never),
      ANNULUS_KEY(
          parallel.copy_engines,
          "of GPUs carry what goes to other GPUs of the node, and take no SM; false leaves that to NCCL",
          never),
      ANNULUS_KEY(parallel.nvlink_multicast, "lets NCCL reduce inside NVLink's switches (NVLS)", never),
      ANNULUS_KEY(parallel.max_ctas,
                  "CTAs that an NCCL communicator may use (ncclConfig_t::maxCTAs), one communicator per "
                  "channel, two on several nodes; 0: NCCL's choice",
                  never, 0),
      ANNULUS_KEY(
          parallel.mixed_hardware,
          "true lets ranks compute on different GPU models or CPUs, whose results differ in their last bits",
          never),

      ANNULUS_KEY(
          memory.recompute,
          "what layers compute again in the backward pass instead of keeping it: none, selective (all but "
          "attention), sequence-selective (that, and attention of the earlier positions) or full; a list, a "
          "policy for each layer; or auto: the fastest that fits, with chunks and offload",
          never),
      ANNULUS_KEY(
          memory.store_fraction,
          "share of the positions, the later ones, of which sequence-selective keeps attention's output",
          never, 0, 1),
      ANNULUS_KEY(
          memory.layers_without_recompute,
          "number of last layers that keep everything, under any policy of memory.recompute for the others",
          never, 0),
      ANNULUS_KEY(memory.offload_activations,
                  "share of the layers whose kept activations wait in pinned memory of the host for the "
                  "backward pass; where some layers compute something again, a share of these",
                  never, 0, 1),
      ANNULUS_KEY(
          memory.chunk_rows,
          "rows that norms, projections and feed-forward layers work on at once; 0: all rows of a pass",
          never, 0, double(Mask::max_tokens)),
      ANNULUS_KEY(memory.lm_head_rows,
                  "rows whose logits the LM head and its loss hold at once; 0: as many as make fast products",
                  never, 0, double(Mask::max_tokens)),
      ANNULUS_KEY(memory.offload_optimizer,
                  "true keeps master weights and AdamW's moments in pinned memory of the host, which updates "
                  "them there",
                  never),

      ANNULUS_KEY(train.steps, "optimizer steps; 0: train.tokens or train.epochs says how many", never, 0,
                  most_steps),
      ANNULUS_KEY(train.tokens,
                  "tokens that the run reads, in place of train.steps, up to the end of the optimizer step "
                  "that reads the last",
                  never, 0, most_tokens),
      ANNULUS_KEY(train.epochs, "passes over the data, likewise; parts of one too, as in 0.5", never, 0,
                  most_steps),
      ANNULUS_KEY(train.micro_batches,
                  "sequences of a data-parallel group in one optimizer step (gradient accumulation)", never,
                  1, most_sequences),
      ANNULUS_KEY(
          train.sequences_per_pass,
          "of these, sequences that one forward and backward works on at once; divides train.micro_batches",
          never, 1, most_sequences),
      ANNULUS_KEY(train.ramp_start,
                  "sequences of the first optimizer step, all groups together, where batches grow up to "
                  "train.micro_batches of each group",
                  in_lineage, 0, most_sequences),
      ANNULUS_KEY(train.ramp_increment, "sequences by which they grow at a time", in_lineage, 0,
                  most_sequences),
      ANNULUS_KEY(
          train.ramp_sequences,
          "sequences that the run reads while they grow, as many at each size; 0: all steps read as many",
          in_lineage, 0, most_steps),
      ANNULUS_KEY(train.dtype, "of weights and activations in compute, f32 or bf16; master weights stay f32",
                  in_run),
      ANNULUS_KEY(train.lr, "peak learning rate", in_run, 0),
      ANNULUS_KEY(train.min_lr, "learning rate at the end of the schedule", in_run, 0),
      ANNULUS_KEY(train.schedule,
                  "of the learning rate behind the warm-up: cosine or linear down to train.min_lr, constant, "
                  "or wsd: constant, then a line down over train.decay_steps",
                  never),
      ANNULUS_KEY(
          train.decay_steps,
          "of wsd: the last optimizer steps of the schedule, in which the learning rate falls; 0: none",
          never, 0, most_steps),
      ANNULUS_KEY(train.warmup_steps, "optimizer steps of linear warm-up", in_run, 0, most_steps),
      ANNULUS_KEY(train.schedule_steps,
                  "optimizer steps until the learning rate is at train.min_lr and stays there; 0: "
                  "train.steps of the first start",
                  never, 0, most_steps),
      ANNULUS_KEY(train.optimizer,
                  "adamw, or muon: Muon on the matrices of layers, AdamW on the rest (docs/running.md)",
                  in_lineage),
      ANNULUS_KEY(train.momentum, "decay of Muon's sum of gradients", in_run, 0),
      ANNULUS_KEY(train.weight_decay, "share of lr by which tensors of train.decay shrink in a step", in_run,
                  0),
      ANNULUS_KEY(train.decay,
                  "tensors that weight decay shrinks: matrices (of layers), lm_head (of its own), embedding, "
                  "norms, biases, sinks; [] is none",
                  in_run),
      ANNULUS_KEY(train.beta1, "decay of AdamW's mean of gradients", in_run, 0),
      ANNULUS_KEY(train.beta2, "decay of AdamW's mean of squared gradients", in_run, 0),
      ANNULUS_KEY(train.epsilon, "added to the root of AdamW's mean square", in_run, 0),
      ANNULUS_KEY(train.clip_norm, "bound of the global gradient norm", in_run, 0),
      ANNULUS_KEY(train.skip_non_finite,
                  "optimizer steps in a row that may be left out because loss or gradient is not finite; one "
                  "more ends the run",
                  never, 0, most_steps),
      ANNULUS_KEY(train.log_every, "optimizer steps between progress lines", never, 1, most_steps),
      ANNULUS_KEY(train.parts_every,
                  "optimizer steps from one to the next whose time metrics.jsonl has by part (attention, "
                  "projections, optimizer, ...); 0 is never",
                  never, 0, most_steps),
      ANNULUS_KEY(train.check_replicas,
                  "optimizer steps between comparisons of all ranks' parameters and moments; 0: only when "
                  "the run starts and saves",
                  never, 0, most_steps),
      ANNULUS_KEY(train.validate_every,
                  "optimizer steps from one validation to the next (data.validation), which is made behind "
                  "the last step in any case; 0: only there",
                  never, 0, most_steps),
      ANNULUS_KEY(train.validate_sequences,
                  "sequences of each set of data.validation, evenly spread over it; 0: all of them", never, 0,
                  most_sequences),

      ANNULUS_KEY(checkpoint.every,
                  "optimizer steps between checkpoints; 0 saves at the end and on signals alone", never, 0,
                  most_steps),
      ANNULUS_KEY(checkpoint.keep, "checkpoints that stay; older ones are removed", never, 1, most_steps),
      ANNULUS_KEY(checkpoint.keep_every,
                  "beside these, checkpoints of optimizer steps that this divides are never removed; 0: none",
                  never, 0, most_steps),
  };
  return keys;
}

#undef ANNULUS_KEY
#undef ANNULUS_MEMBER

namespace {

/// What other programs, or earlier versions, call a key of ours; without sections, blanks between them.
struct Aliases {
  std::string_view key, names;
};

constexpr auto aliases = std::to_array<Aliases>({
    {"run.stall_timeout", "stall_limit"},
    {"parallel.max_ctas", "nccl_blocks"},
    {"train.lr", "learning_rate max_lr peak_lr"},
    {"train.min_lr", "min_learning_rate"},
    {"train.micro_batches",
     "batch_size global_batch_size per_device_train_batch_size gradient_accumulation_steps"},
    {"train.sequences_per_pass", "micro_batch_size"},
    {"train.schedule", "lr_scheduler lr_scheduler_type lr_decay_style"},
    {"train.schedule_steps", "lr_decay_iters"},
    {"train.decay_steps", "lr_wsd_decay_iters"},
    {"train.warmup_steps", "num_warmup_steps lr_warmup_iters warmup_ratio"},
    {"train.steps", "max_steps total_steps max_iters train_iters"},
    {"train.tokens", "max_tokens train_tokens"},
    {"train.epochs", "num_train_epochs num_epochs max_epochs"},
    {"train.ramp_start", "rampup_batch_size"},
    {"train.dtype", "precision mixed_precision torch_dtype bf16"},
    {"train.clip_norm", "grad_clip clip_grad max_grad_norm gradient_clip_val"},
    {"train.beta1", "adam_beta1"},
    {"train.beta2", "adam_beta2"},
    {"train.epsilon", "adam_epsilon eps"},
    {"train.weight_decay", "wd"},
    {"train.log_every", "logging_steps log_interval"},
    {"data.sequence_length",
     "seq_len seq_length max_seq_len max_length block_size context_length max_position_embeddings"},
    {"data.shards", "data_path dataset train_data"},
    {"data.packing", "packing_strategy packing_mode sample_packing bfd best_fit_decreasing"},
    {"data.sets", "blend data_blend datasets dataset_mixer mixture data_weights dataset_weights"},
    {"data.validation", "eval_data val_data valid_data validation_data eval_dataset"},
    {"train.validate_every", "eval_steps eval_interval eval_every val_check_interval evaluation_strategy"},
    {"train.validate_sequences", "eval_iters limit_val_batches eval_batches"},
    {"model.layers", "num_layers num_hidden_layers n_layer"},
    {"model.hidden", "hidden_size d_model n_embd dim"},
    {"model.heads", "num_attention_heads n_head"},
    {"model.kv_heads", "num_key_value_heads num_query_groups n_kv_heads"},
    {"model.ffn", "intermediate_size ffn_hidden_size d_ff"},
    {"model.vocabulary", "vocab_size"},
    {"model.norm_epsilon", "rms_norm_eps"},
    {"model.query_scale", "query_pre_attn_scalar"},
    {"model.activation", "hidden_act hidden_activation"},
    {"model.tied", "tie_word_embeddings"},
    {"model.qkv_bias", "attention_bias"},
    {"model.from", "model_name_or_path"},
    {"model.rope_theta", "rotary_base"},
    {"attention.mask", "sliding_window"},
    {"attention.kernel", "attn_implementation"},
    {"parallel.context", "context_parallel_size cp_size"},
    {"parallel.zero", "zero_stage"},
    {"memory.recompute", "gradient_checkpointing activation_checkpointing"},
    {"run.folder", "output_dir out_dir save"},
    {"run.device", "device_type"},
    {"checkpoint.every", "save_steps save_interval"},
    {"checkpoint.keep", "save_total_limit"},
});

std::string_view section_of(const Key& key) {
  const std::string_view name = key.name;
  return name.substr(0, name.find('.'));
}

std::string_view last_part(std::string_view name) {
  return name.substr(name.find_last_of('.') + 1);
}

}  // namespace

std::optional<SuggestedKey> suggest_key(std::string_view name) {
  const std::string_view last = last_part(name);
  const Key* best = nullptr;
  std::size_t least = 0;
  bool is_alias = false;
  // A key written into the wrong section is nearer than a similar key of the section that was named.
  const auto compare = [&](const Key& key, std::string_view known, bool alias) {
    const std::size_t edits = edit_distance(last, known);
    if (!is_near(edits, last)) return;
    const std::size_t score = 2 * edits + (name.starts_with(section_of(key)) ? 0 : 1);
    if (best != nullptr && score >= least) return;
    best = &key, least = score, is_alias = alias;
  };
  for (const Key& key : config_table()) compare(key, last_part(key.name), false);
  for (const Aliases& of : aliases) {
    const Key& key = *std::ranges::find(config_table(), of.key, &Key::name);
    for (std::string_view names = of.names; !names.empty();) {
      const std::size_t end = std::min(names.find(' '), names.size());
      compare(key, names.substr(0, end), true);
      names.remove_prefix(std::min(end + 1, names.size()));
    }
  }
  if (best == nullptr) return std::nullopt;
  return SuggestedKey{best->name, is_alias ? best->meaning : ""};
}

std::string suggested_key(std::string_view name) {
  const auto found = suggest_key(name);
  if (!found) return "";
  return found->meaning.empty() ? fmt::format("did you mean '{}'? ", found->key)
                                : fmt::format("did you mean '{}' ({})? ", found->key, found->meaning);
}

std::string suggested_section(std::string_view name) {
  const Key& best = *std::ranges::min_element(
      config_table(), {}, [&](const Key& key) { return edit_distance(name, section_of(key)); });
  const std::string_view section = section_of(best);
  if (!is_near(edit_distance(name, section), name)) return "";
  return fmt::format("did you mean [{}]? ", section);
}

}  // namespace annulus::training
