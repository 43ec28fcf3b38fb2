#include "training/model/activation_layout.hpp"

#include <cmath>
#include <optional>
#include <set>

#include <annulus/base/error.hpp>

#include "training/model/layers/layer_lifetimes.hpp"
#include "training/model/layers/layer_passes.hpp"
#include "training/model/layers/outer_passes.hpp"

namespace annulus::model {

namespace {

/// The passes of a model; which type and device they work on makes no difference.
std::vector<Lifetimes> lifetimes(const Shapes& shapes, const ActivationOptions& options) {
  using Layer = LayerPasses<HostExec, float>;
  std::vector<Lifetimes> passes;
  for (const Recompute policy : std::set<Recompute>(options.recompute.begin(), options.recompute.end())) {
    const Layer layer(shapes, policy, options.early_positions > 0);
    Lifetimes& forward = passes.emplace_back(kept_by(shapes.config, policy));
    layer.forward(forward, nullptr);
    forward.behind(Tensor::last);
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
  const OuterPasses<HostExec, float> outer(shapes);
  Lifetimes& loss = passes.emplace_back(TensorSet());
  loss.before(Tensor::last);
  outer.loss(loss, nullptr);
  loss.behind(Tensor::d_residual);
  Lifetimes& embedding = passes.emplace_back(TensorSet());
  embedding.before(Tensor::d_residual);
  outer.embedding_backward(embedding, nullptr);
  return passes;
}

}  // namespace

ActivationLayout activation_layout(const Shapes& shapes, const ActivationOptions& options) {
  ActivationLayout layout;
  layout.shared = place(shapes, lifetimes(shapes, options));
  // Spread evenly, the first layer among them: its tensors have most time to come back.
  const auto offloaded_before = [&](int layers) { return std::ceil(layers * options.offload - 1e-9); };
  for (int i = 0, before = 0; i < shapes.config.layers; ++i) {
    const std::int64_t bytes = placement_of_kept(shapes, options.of(i)).bytes;
    const bool may = options.may_offload(i);
    before += may ? 1 : 0;
    if (may && offloaded_before(before) > offloaded_before(before - 1)) {
      layout.offloaded.push_back(i);
      layout.slot_bytes = std::max(layout.slot_bytes, bytes);
      layout.kept.push_back(0);
    } else {
      layout.kept.push_back(bytes);
    }
  }
  for (std::size_t index = 0; index < layout.offloaded.size(); ++index)
    if (layout.leaves(index))
      layout.host += placement_of_kept(shapes, options.of(layout.offloaded[index])).bytes;
  return layout;
}

}  // namespace annulus::model
