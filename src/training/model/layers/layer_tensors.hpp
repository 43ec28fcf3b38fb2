#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>

#include <annulus/training/model/config.hpp>

/// The arrays between the kernels of a model: which there are, how large, and what a layer keeps of them.
namespace annulus::model {

/// What a rank computes at once. Rows are the tokens of one sequence after those of the other.
struct Extent {
  std::int64_t sequences = 1, tokens = 0;  // of each sequence, on this rank
  std::int64_t rows() const { return sequences * tokens; }
};

/// Rows that norms, projections and feed-forward layers work on at once.
struct Chunk {
  std::int64_t first, count;
};

/// T is the type of the model; chunk: the rows of a chunk.
enum class Tensor : std::uint8_t {
  // What layers keep.
  input,                  // T (rows, hidden)
  joined,                 // T (rows, heads·head_dim): attention's output
  lse,                    // fp32 (sequences, heads, tokens)
  attention_inverse_rms,  // fp32 (rows)
  q,                      // T (sequences, heads, tokens, padded_head_dim), rotated
  k,                      // T (sequences, kv_heads, tokens, padded_head_dim), rotated
  v,                      // T (sequences, kv_heads, tokens, padded_head_dim)
  middle,                 // T (rows or chunk, hidden): the residual stream after attention
  ffn_inverse_rms,        // fp32 (rows or chunk)
  gate_up,                // T (rows or chunk, 2·ffn)
  qkv,                    // T (rows or chunk, (heads + 2·kv_heads)·head_dim): products, or gradients
  attention_delta,        // T (rows or chunk, hidden): what attention adds, before the norm behind it
  attention_delta_rms,    // fp32 (rows or chunk): inverse
  ffn_delta,              // T (rows or chunk, hidden): what the feed-forward layer adds, likewise
  ffn_delta_rms,          // fp32 (rows or chunk): inverse
  late_joined,            // T (sequences, late tokens, heads·head_dim): of the later positions alone
  late_lse,               // fp32 (sequences, heads, late tokens)
  // Inside a layer, of all rows.
  out,    // fp32 (sequences, heads, tokens, padded_head_dim): attention's output, as it accumulates
  d_out,  // T like q
  d,      // fp32 (sequences, heads, tokens): rowsum(dO∘O)
  d_q,    // fp32 like q
  d_k,    // fp32 like k
  d_v,    // fp32 like v
  // Inside a layer, of a chunk.
  normed,        // T (chunk, hidden)
  ffn,           // T (chunk, ffn)
  d_ffn,         // T (chunk, ffn)
  d_normed,      // T (chunk, hidden)
  d_delta,       // T (chunk, hidden): gradient of attention_delta or ffn_delta
  d_joined,      // T (chunk, heads·head_dim)
  norm_partial,  // fp32 (blocks of the chunk, hidden)
  qkv_partial,   // fp32 (blocks of the chunk, (heads + 2·kv_heads)·head_dim)
  joint_sums,    // fp32 (chunk, 4): sums over all heads of q and of k (HeadNorm)
  // Between the layers.
  last,              // T (rows, hidden): output of the last layer
  last_inverse_rms,  // fp32 (rows)
  last_normed,       // T (rows, hidden): what the LM head reads
  d_last_normed,     // T (rows, hidden)
  row_partial,       // fp32 (blocks of the rows, hidden)
  logits,            // fp32 (rows of a tile of the LM head, vocabulary with padding)
  d_residual,        // T (rows, hidden): gradient of the residual stream
  count
};
inline constexpr int tensor_count = static_cast<int>(Tensor::count);

/// Tensors by name.
class TensorSet {
 public:
  constexpr TensorSet() = default;
  template <class... Tensors>
  constexpr TensorSet(Tensor first, Tensors... others)  // NOLINT(google-explicit-constructor)
      : bits_((bit(first) | ... | bit(others))) {}
  constexpr bool has(Tensor tensor) const { return (bits_ & bit(tensor)) != 0; }
  constexpr TensorSet operator|(TensorSet other) const {
    TensorSet both;
    both.bits_ = bits_ | other.bits_;
    return both;
  }
  template <class Use>
  void for_each(const Use& use) const {
    for (int i = 0; i < tensor_count; ++i)
      if (has(static_cast<Tensor>(i))) use(static_cast<Tensor>(i));
  }

 private:
  static constexpr std::uint64_t bit(Tensor tensor) { return std::uint64_t{1} << static_cast<int>(tensor); }
  std::uint64_t bits_ = 0;
};

/// What a layer keeps for its backward pass.
TensorSet kept_by(const Config& config, Recompute policy);

/// Where a tensor of the backward pass takes the place of one that the layer has kept and no longer needs.
struct Replacement {
  Tensor tensor, kept;  // of the same size
};
/// Under selective attention's output is read for the last time before Q, K and V are formed again.
std::optional<Replacement> replacement_in_backward(Recompute policy);
/// What the backward pass of a layer finds or puts in the layer's own memory.
TensorSet own_in_backward(const Config& config, Recompute policy);

/// Sizes of the arrays of a rank.
struct Shapes {
  Config config;
  Extent extent;
  std::int64_t early = 0;       // tokens of each sequence that lie before ActivationOptions::early_positions
  std::int64_t chunk_rows = 0;  // at most the rows
  int element = 4;              // bytes of T
  std::int64_t logit_elements = 0;

  Shapes(const Config& config, const Extent& extent, std::int64_t early, const ActivationOptions& options,
         int element, bool on_host);

  std::int64_t late() const { return extent.tokens - early; }
  std::int64_t q_width() const { return config.q_width(); }
  std::int64_t kv_width() const { return config.kv_width(); }
  std::int64_t qkv_width() const { return config.qkv_width(); }
  /// Elements of a token in attention's arrays.
  std::int64_t attention_width(int heads) const { return std::int64_t{heads} * config.padded_head_dim(); }

  /// Size of `tensor`; of those with rows or chunk, with all rows or with those of a chunk.
  std::int64_t bytes(Tensor tensor, bool all_rows) const;

  /// action(chunk), from the first rows on; once where there is no row.
  void for_chunks(const std::function<void(Chunk)>& action) const;
};

/// Arrays begin at multiples of so many bytes.
inline constexpr std::int64_t array_alignment = 256;
constexpr std::int64_t aligned(std::int64_t bytes) {
  return (bytes + array_alignment - 1) / array_alignment * array_alignment;
}

/// Bytes from the start of a block of memory at which its tensors lie.
struct Placement {
  std::array<std::int64_t, tensor_count> offset{};
  std::int64_t bytes = 0;  // of the block
};

/// What a layer of this policy keeps, one tensor behind the other, and what takes the place of one.
Placement placement_of_kept(const Shapes& shapes, Recompute policy);

}  // namespace annulus::model
