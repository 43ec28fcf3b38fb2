#include "training/model/model_arrays.hpp"

#include <cmath>
#include <numeric>
#include <optional>
#include <set>

#include <annulus/base/error.hpp>

#include "training/linalg/matmul.hpp"
#include "training/loss/lm_head.hpp"
#include "training/model/layers/layer_lifetimes.hpp"
#include "training/model/layers/layer_passes.hpp"
#include "training/model/layers/outer_passes.hpp"
#include "training/model/lm_head_options.hpp"
#include "training/model/ops/token_upload.hpp"
#include "training/model/pass_parts.hpp"

namespace annulus::model {

namespace {

/// The passes of a model; which type and device they work on makes no difference.
std::vector<Lifetimes> lifetimes(const Shapes& shapes, const ActivationOptions& options) {
  using Layer = LayerPasses<HostExec, float>;
  const OuterPasses<HostExec, float> outer(shapes);
  std::vector<Lifetimes> passes;
  const auto add_forward = [&](Recompute policy) {
    Lifetimes& forward = passes.emplace_back(kept_by(shapes.config, policy));
    Layer(shapes, policy, options.early_positions > 0).forward(forward, nullptr);
    forward.behind(Tensor::last);
  };
  if (options.forward_only) {
    add_forward(options.of(0));
    Lifetimes& loss = passes.emplace_back(TensorSet());
    loss.before(Tensor::last);
    outer.evaluate(loss, nullptr);
    return passes;
  }
  for (const Recompute policy : std::set<Recompute>(options.recompute.begin(), options.recompute.end())) {
    const Layer layer(shapes, policy, options.early_positions > 0);
    add_forward(policy);
    Lifetimes& backward = passes.emplace_back(own_in_backward(shapes.config, policy));
    backward.before(Tensor::d_residual);
    layer.backward(backward, nullptr);
    backward.behind(Tensor::d_residual);
    if (const std::optional<Replacement> replacement = replacement_in_backward(policy)) {
      Lifetimes all{TensorSet()};
      layer.backward(all, nullptr);
      require(all.of(replacement->kept).last < all.of(replacement->tensor).first,
              "the backward pass of a layer under {} needs a tensor whose place another one has taken",
              name_of(policy));
    }
  }
  Lifetimes& loss = passes.emplace_back(TensorSet());
  loss.before(Tensor::last);
  outer.loss(loss, nullptr);
  loss.behind(Tensor::d_residual);
  Lifetimes& embedding = passes.emplace_back(TensorSet());
  embedding.before(Tensor::d_residual);
  outer.embedding_backward(embedding, nullptr);
  return passes;
}

/// Forward, gradient of the input, gradient of the weight.
void add_products(std::vector<linalg::ProductSize>& to, const WeightMatrix& weight, std::int64_t rows,
                  bool fp32_result) {
  to.push_back({rows, weight.out, weight.in, fp32_result});
  to.push_back({rows, weight.in, weight.out});
  to.push_back({weight.out, weight.in, rows, true});
}

}  // namespace

ActivationLayout activation_layout(const Shapes& shapes, const ActivationOptions& options) {
  const auto array = [](std::string_view label, std::int64_t bytes, bool pinned = false) {
    return PlannedArray{label, MemoryCategory::activations, bytes, 1, pinned};
  };
  ActivationLayout layout;
  layout.shared = place(shapes, lifetimes(shapes, options));
  layout.shared_block = array("annulus::model::activations", layout.shared.bytes);
  if (options.forward_only) {
    layout.slot = array("annulus::model::activations", placement_of_kept(shapes, options.of(0)).bytes);
    layout.kept = {layout.shared_block, layout.slot, layout.slot};
    layout.in_slots.resize(static_cast<std::size_t>(shapes.config.layers));
    std::iota(layout.in_slots.begin(), layout.in_slots.end(), 0);
    return layout;
  }
  std::vector<std::int64_t> offloaded;  // bytes
  // Spread evenly, the first layer among them: its tensors have most time to come back.
  const auto offloaded_before = [&](int layers) { return std::ceil(layers * options.offload - 1e-9); };
  for (int i = 0, before = 0; i < shapes.config.layers; ++i) {
    const std::int64_t bytes = placement_of_kept(shapes, options.of(i)).bytes;
    const bool may = options.may_offload(i);
    before += may ? 1 : 0;
    const bool moves = may && offloaded_before(before) > offloaded_before(before - 1);
    layout.kept.push_back(array("annulus::model::kept", moves ? 0 : bytes));
    if (!moves) continue;
    layout.in_slots.push_back(i);
    offloaded.push_back(bytes);
  }
  if (!offloaded.empty()) layout.slot = array("annulus::model::activations", std::ranges::max(offloaded));
  for (std::size_t index = 0; index + ActivationLayout::slots < offloaded.size(); ++index)
    layout.host.push_back(array("annulus::model::offloaded_activations", offloaded[index], true));
  int calls = 0;
  for (const PassPart& part : pass_parts(shapes.config)) {
    if (part.kind == PassPart::Kind::forward) layout.kept[static_cast<std::size_t>(part.layer)].from = calls;
    calls += static_cast<int>(part.calls.size());
    if (part.kind == PassPart::Kind::backward) layout.kept[static_cast<std::size_t>(part.layer)].to = calls;
  }
  return layout;
}

ArrayTable rotary_arrays(const Config& config, std::int64_t tokens, std::int64_t sequences,
                         bool own_positions) {
  std::int64_t frequencies = 0;
  for (const RopeFrequencies& rope : layer_ropes(config).distinct) frequencies += std::ssize(rope.inverse);
  const std::int64_t elements = frequencies * tokens * (own_positions ? sequences : 1);
  ArrayTable table = {{"annulus::model::rope_cosine", MemoryCategory::activations, elements, sizeof(float)},
                      {"annulus::model::rope_sine", MemoryCategory::activations, elements, sizeof(float)}};
  if (own_positions)
    table.push_back(
        {"annulus::model::rope_frequencies", MemoryCategory::activations, frequencies, sizeof(float)});
  return table;
}

ModelArrays model_arrays(const Config& config, const PassRows& rows, DType type,
                         const ActivationOptions& options, std::int64_t passes, bool on_host) {
  const Shapes shapes(config, {rows.sequences, rows.tokens}, rows.early, options,
                      static_cast<int>(size_of(type)), on_host);
  const ActivationLayout layout = activation_layout(shapes, options);
  const std::int64_t all = shapes.extent.rows();
  ModelArrays arrays{.kept = layout.kept, .others = layout.host, .products = {}};
  if (!options.forward_only) {
    arrays.others.push_back(layout.shared_block);
    for (int slot = 0; slot < std::min(ActivationLayout::slots, static_cast<int>(layout.in_slots.size()));
         ++slot)
      arrays.others.push_back(layout.slot);
  }
  append(arrays.others, rotary_arrays(config, rows.tokens, rows.sequences, rows.own_positions));
  append(arrays.others, token_arrays(all, passes, rows.own_positions));
  const loss::LmHeadWorkspace head =
      loss::lm_head_workspace(all, config.vocabulary, on_host, lm_head_options(options.lm_head_rows));
  append(arrays.others, head.arrays_beside_logits());
  std::vector<linalg::ProductSize> products;
  for (const WeightMatrix& weight : layer_matrices(config))
    add_products(products, weight, shapes.chunk_rows, false);
  add_products(products, {config.vocabulary, config.hidden}, head.tile, true);
  arrays.products = {"annulus::linalg::matmul", MemoryCategory::workspace,
                     linalg::kept_memory(products, type, on_host)};
  return arrays;
}

}  // namespace annulus::model
