#include "training/model/model.hpp"

#include <cmath>
#include <optional>
#include <utility>

#include <annulus/base/error.hpp>

#include "base/kokkos/execution/region.hpp"
#include "base/kokkos/instantiate.hpp"
#include "base/kokkos/pack.hpp"
#include "training/loss/lm_head.hpp"
#include "training/model/layers/activation_store.hpp"
#include "training/model/layers/layer_passes.hpp"
#include "training/model/layers/outer_passes.hpp"
#include "training/model/layers/row_recorder.hpp"
#include "training/model/lm_head_options.hpp"
#include "training/model/ops.hpp"
#include "training/model/ops/token_upload.hpp"

namespace annulus::model {

namespace {

void check_options(const ActivationOptions& options, const Config& config) {
  const std::size_t policies = options.recompute.size();
  require(policies == 1 || policies == static_cast<std::size_t>(config.layers),
          "{} recompute policies were given for {} layers: give one, or one for each layer", policies,
          config.layers);
  require(options.offload >= 0 && options.offload <= 1,
          "a share of {} of the layers is to be offloaded: give 0 to 1", options.offload);
  require(options.chunk_rows >= 0 && options.early_positions >= 0,
          "chunks of {} rows and {} early positions were asked for: neither can be negative",
          options.chunk_rows, options.early_positions);
}

}  // namespace

template <class Exec, class T>
class Model<Exec, T>::Impl {
 public:
  Impl(const Exec& exec, const Config& config, const PositionMap& positions, const Options& options)
      : options_(options.activations),
        map_((check_options(options_, config), config)),
        shapes_(config, {options.sequences, positions.count}, positions.rows_below(options_.early_positions),
                options_, sizeof(T), annulus::detail::host_memory<Exec>),
        store_(exec, shapes_, options_, options.backward),
        positions_(positions),
        selections_(static_cast<std::size_t>(config.layers)),
        ids_(exec, shapes_.extent.rows()),
        cosine_(activation<Array2<float, Exec>>(exec, "rope_cosine", positions.count, config.head_dim / 2)),
        sine_(activation<Array2<float, Exec>>(exec, "rope_sine", positions.count, config.head_dim / 2)),
        lm_head_(lm_head_options(options_.lm_head_rows)) {
    rope_table(exec, positions, config.frequencies(), *cosine_, *sine_);
  }

  const ParameterMap& map() const { return map_; }

  void train(const Exec& exec, const TokenRows& rows, float grad_scale, const Pass& pass) {
    forward(exec, rows, pass);
    loss(exec, grad_scale, pass);
    backward(exec, pass);
  }

  Loss take_loss(const Exec& exec) {
    const auto loss = lm_head_.take(exec);
    ids_.reuse();
    return {loss.loss_sum, loss.valid};
  }
  AttentionCalls take_attention_calls() { return std::exchange(calls_, {}); }

 private:
  using WeightUnit = FlatUnit<Exec, const T>;
  using GradientUnit = FlatUnit<Exec, float>;

  const Config& config() const { return shapes_.config; }

  void forward(const Exec& exec, const TokenRows& rows, const Pass& pass) {
    check(rows.tokens, rows.targets);
    recorder_.start(pass.recorder, shapes_.extent.rows());
    ids_.set(exec, rows.tokens, rows.targets);

    const Region region("annulus::model::forward");
    const int layers = config().layers;
    auto next = store_.begin(exec, 0);
    with_weights(exec, pass, map_.embedding_unit(), map_.layer_unit(0), [&](const WeightUnit& w) {
      embed<Exec, T>(exec, ids_.tokens(), w.matrix(map_.embedding(), config().vocabulary, config().hidden),
                     residual(next, Tensor::input));
    });
    for (int i = 0; i < layers; ++i) {
      const auto arrays = next;
      const bool last = i + 1 == layers;
      next = last ? store_.between() : store_.begin(exec, i + 1);
      recorder_.set_layer(i);
      with_weights(exec, pass, map_.layer_unit(i), last ? map_.final_unit() : map_.layer_unit(i + 1),
                   [&](const WeightUnit& w) {
                     const auto work = layer_work(exec, pass, i, w, {},
                                                  residual(next, last ? Tensor::last : Tensor::input));
                     passes(i).forward(RunSteps<Exec, T>(arrays), &work);
                   });
      store_.end(exec, i);
    }
    recorder_.set_no_layer();
    recorder_.all(exec, "last", residual(next, Tensor::last));
  }

  void loss(const Exec& exec, float grad_scale, const Pass& pass) {
    const Region region("annulus::model::lm_head");
    const int after = map_.layer_unit(config().layers - 1);
    const auto with_head = [&](const WeightUnit& final_unit, const WeightUnit& head_unit) {
      const std::int64_t vocabulary = config().vocabulary, hidden = config().hidden;
      const LossWork<Exec, T> work{
          .exec = exec,
          .lm_head = lm_head_,
          .ids = ids_,
          .recorder = recorder_,
          .gain = final_unit.vector(map_.final_norm(), hidden),
          .weight = head_unit.matrix(map_.lm_head(), vocabulary, hidden),
          .grad_scale = grad_scale,
          .d_weight =
              [&] {
                return gradients(exec, pass, map_.lm_head_unit()).matrix(map_.lm_head(), vocabulary, hidden);
              },
          .d_gain =
              [&] { return gradients(exec, pass, map_.final_unit()).vector(map_.final_norm(), hidden); }};
      OuterPasses<Exec, T>(shapes_).loss(RunSteps<Exec, T>(store_.between()), &work);
      pass.parameters.finish_gradients(exec, map_.final_unit());
    };
    const bool tied = map_.lm_head_unit() != map_.final_unit();
    with_weights(exec, pass, map_.final_unit(), tied ? map_.lm_head_unit() : after,
                 [&](const WeightUnit& final_unit) {
                   if (!tied) return with_head(final_unit, final_unit);
                   with_weights(exec, pass, map_.lm_head_unit(), after,
                                [&](const WeightUnit& head_unit) { with_head(final_unit, head_unit); });
                 });
  }

  void backward(const Exec& exec, const Pass& pass) {
    const Region region("annulus::model::backward");
    for (int i = config().layers - 1; i >= 0; --i) {
      const int unit = map_.layer_unit(i), next = i > 0 ? map_.layer_unit(i - 1) : -1;
      recorder_.set_layer(i);
      const auto arrays = store_.need(exec, i);
      with_weights(exec, pass, unit, next, [&](const WeightUnit& w) {
        const auto gradient = pass.parameters.gradients(exec, unit);
        auto work = layer_work(exec, pass, i, w, {map_.unit(unit), gradient.elements}, {});
        if (gradient.fresh)
          work.gradients.for_vectors([&](const auto& sums) { Kokkos::deep_copy(exec, sums, 0.0f); });
        work.fresh_matrices = gradient.fresh;
        passes(i).backward(RunSteps<Exec, T>(arrays), &work);
      });
      store_.release(exec, i);
      pass.parameters.finish_gradients(exec, unit);
    }
    const int unit = map_.embedding_unit();
    const EmbeddingWork<Exec> work{
        exec, ids_,
        gradients(exec, pass, unit).matrix(map_.embedding(), config().vocabulary, config().hidden)};
    OuterPasses<Exec, T>(shapes_).embedding_backward(RunSteps<Exec, T>(store_.between()), &work);
    pass.parameters.finish_gradients(exec, unit);
  }

  // Calls action(weights of `unit`), and gives them back.
  template <class Action>
  void with_weights(const Exec& exec, const Pass& pass, int unit, int next, const Action& action) const {
    action(WeightUnit(map_.unit(unit), pass.parameters.weights(exec, unit, next)));
    pass.parameters.release_weights(exec, unit);
  }
  // Gradients of a unit whose sums begin at zero.
  GradientUnit gradients(const Exec& exec, const Pass& pass, int unit) const {
    const auto gradient = pass.parameters.gradients(exec, unit);
    if (gradient.fresh) Kokkos::deep_copy(exec, gradient.elements, 0.0f);
    return {map_.unit(unit), gradient.elements};
  }

  LayerPasses<Exec, T> passes(int layer) const {
    return {shapes_, options_.of(layer), options_.early_positions > 0};
  }
  LayerWork<Exec, T> layer_work(const Exec& exec, const Pass& pass, int layer, const WeightUnit& weights,
                                const GradientUnit& gradients, const Array2<T, Exec>& output) {
    const bool sparse = pass.sparse != nullptr && pass.sparse->layers.at(static_cast<std::size_t>(layer));
    return {
        .exec = exec,
        .attention = pass.attention,
        .sparse = sparse ? &pass.sparse->attention : nullptr,
        .selection = selections_[static_cast<std::size_t>(layer)],
        .audited_head = sparse && pass.sparse->audit >= 0
                            ? std::optional(static_cast<int>((pass.sparse->audit + layer) % config().heads))
                            : std::nullopt,
        .early_positions = options_.early_positions,
        .positions = positions_,
        .weights = {config(), map_.layer(layer), weights},
        .gradients = {config(), map_.layer(layer), gradients},
        .rope = {*cosine_, *sine_},
        .scale = 1.0f / std::sqrt(static_cast<float>(config().head_dim)),
        .output = output,
        .recorder = recorder_,
        .calls = calls_};
  }
  static Array2<T, Exec> residual(const LayerArrays<Exec, T>& arrays, Tensor tensor) {
    return StepArrays<Exec, T>(arrays, tensor).matrix(tensor);
  }

  void check(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets) const {
    const std::int64_t rows = shapes_.extent.rows();
    require(static_cast<std::int64_t>(tokens.size()) == rows && tokens.size() == targets.size(),
            "{} tokens and {} targets were given, this rank holds {} rows of {} sequences", tokens.size(),
            targets.size(), rows, shapes_.extent.sequences);
    for (std::int64_t i = 0; i < rows; ++i) {
      const std::int32_t token = tokens[static_cast<std::size_t>(i)];
      require(token >= 0 && token < config().vocabulary,
              "token id {} at row {} of its sequence is outside the model's vocabulary of {}: set "
              "model.vocabulary to that of the data",
              token, i % shapes_.extent.tokens, config().vocabulary);
    }
  }

  ActivationOptions options_;
  ParameterMap map_;
  Shapes shapes_;
  ActivationStore<Exec, T> store_;
  PositionMap positions_;  // of this rank's rows of a sequence
  std::vector<std::optional<sparsity::Selection<Exec>>>
      selections_;  // of layers between forward and backward
  TokenUpload<Exec> ids_;
  Owned<Array2<float, Exec>> cosine_, sine_;  // (tokens, head_dim / 2)
  loss::LmHeadLoss<Exec, T> lm_head_;
  RowRecorder recorder_;
  AttentionCalls calls_;
};

template <class Exec, class T>
Model<Exec, T>::Model(const Exec& exec, const Config& config, const PositionMap& positions,
                      const Options& options)
    : impl_(std::make_unique<Impl>(exec, config, positions, options)) {}
template <class Exec, class T>
Model<Exec, T>::~Model() = default;

template <class Exec, class T>
const ParameterMap& Model<Exec, T>::parameter_map() const {
  return impl_->map();
}

template <class Exec, class T>
void Model<Exec, T>::train(const Exec& exec, const TokenRows& rows, float grad_scale, const Pass& pass) {
  impl_->train(exec, rows, grad_scale, pass);
}

template <class Exec, class T>
Loss Model<Exec, T>::take_loss(const Exec& exec) {
  return impl_->take_loss(exec);
}
template <class Exec, class T>
AttentionCalls Model<Exec, T>::take_attention_calls() {
  return impl_->take_attention_calls();
}

#define ANNULUS_INSTANTIATE(Exec, T) template class Model<Exec, T>;
ANNULUS_FOR_TRAINING(ANNULUS_INSTANTIATE)
#undef ANNULUS_INSTANTIATE

}  // namespace annulus::model
