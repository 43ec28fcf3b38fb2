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
#include "training/model/ops/rotary_tables.hpp"
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
  require(
      !options.forward_only || (policies == 1 && options.of(0) == Recompute::full && options.offload == 0),
      "a forward pass alone keeps the input of a layer: give the policy full, and offload nothing");
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
        kinds_(config.kinds()),
        parts_(pass_parts(config)),
        lent_(map_.units().size()),
        shapes_(config, {options.sequences, positions.count}, positions.rows_below(options_.early_positions),
                options_, sizeof(T), annulus::detail::host_memory<Exec>),
        store_(exec, shapes_, options_, options.backward),
        positions_(positions),
        own_positions_(options.own_positions),
        selections_(static_cast<std::size_t>(config.layers)),
        ids_(exec, shapes_.extent.rows(), own_positions_),
        calls_(static_cast<std::size_t>(config.layers)),
        rotary_(exec, config, positions, options.sequences, own_positions_),
        lm_head_(lm_head_options(options_.lm_head_rows, config.logit_cap)) {
    require(!own_positions_ || options_.early_positions == 0,
            "sequences have positions of their own, of which {} are to be early ones: how many of a rank's "
            "rows these are would change from pass to pass",
            options_.early_positions);
  }

  const ParameterMap& map() const { return map_; }

  void train(const Exec& exec, const TokenRows& rows, float grad_scale, const Pass& pass) {
    require(!options_.forward_only,
            "a model whose activations are forward_only evaluates, but does not train");
    go_through(parts_, exec, rows, pass, {.grad_scale = grad_scale});
  }

  void evaluate(const Exec& exec, const TokenRows& rows, const Pass& pass, std::span<double> losses,
                std::span<std::uint8_t> greedy) {
    const auto count = static_cast<std::size_t>(shapes_.extent.rows());
    require(losses.size() == count, "there is room for the losses of {} rows, this rank holds {}",
            losses.size(), count);
    require(greedy.empty() || greedy.size() == count,
            "there is room for the greedy choices of {} rows, this rank holds {}", greedy.size(), count);
    if (!greedy.empty() && !greedy_.allocated())
      greedy_ = Owned<Array1<std::uint8_t, Exec>>::uninitialized(exec, MemoryCategory::workspace,
                                                                 "annulus::model::greedy", count);
    go_forward(exec, rows, pass, {.greedy = !greedy.empty()});
    take_loss(exec);
    if (count == 0) return;
    Kokkos::deep_copy(Kokkos::View<double*, Kokkos::HostSpace>(losses.data(), count),
                      Kokkos::subview(lm_head_.losses(), std::pair<std::size_t, std::size_t>(0, count)));
    if (!greedy.empty())
      Kokkos::deep_copy(Kokkos::View<std::uint8_t*, Kokkos::HostSpace>(greedy.data(), count), *greedy_);
  }

  void logits(const Exec& exec, const TokenRows& rows, const Pass& pass, std::int64_t row,
              std::span<float> logits) {
    require(row >= 0 && row < shapes_.extent.rows(),
            "the logits of row {} were asked for, this rank holds {} rows", row, shapes_.extent.rows());
    require(std::ssize(logits) == config().vocabulary, "there is room for {} logits, the vocabulary has {}",
            logits.size(), config().vocabulary);
    go_forward(exec, rows, pass, {.row = row, .logits = logits});
    exec.fence("annulus::model::logits: the caller reads them");
    ids_.reuse();
  }

  void sequence_losses(const Exec& exec, const Array1<double, Exec>& sums) {
    const std::int64_t rows = shapes_.extent.rows();
    if (rows > 0) lm_head_.sum_losses(exec, rows / static_cast<std::int64_t>(sums.extent(0)), sums);
  }

  Loss take_loss(const Exec& exec) {
    const auto loss = lm_head_.take(exec);
    ids_.reuse();
    return {loss.loss_sum, loss.valid};
  }
  std::vector<AttentionCalls> take_attention_calls() {
    return std::exchange(calls_, std::vector<AttentionCalls>(calls_.size()));
  }

 private:
  using WeightUnit = FlatUnit<Exec, const T>;
  using GradientUnit = FlatUnit<Exec, float>;

  const Config& config() const { return shapes_.config; }

  // What ParameterAccess has given of a unit.
  struct Lent {
    WeightUnit weights;
    GradientUnit gradient;
    bool fresh = false;  // UnitGradient
  };
  Lent& lent(int unit) { return lent_[static_cast<std::size_t>(unit)]; }
  void make(const Exec& exec, const Pass& pass, const UnitCall& call) {
    const ParameterUnit& unit = map_.unit(call.unit);
    Lent& to = lent(call.unit);
    switch (call.kind) {
      case UnitCall::Kind::weights:
        to.weights = {unit, pass.parameters.weights(exec, call.unit, call.next)};
        break;
      case UnitCall::Kind::release_weights:
        pass.parameters.release_weights(exec, call.unit);
        break;
      case UnitCall::Kind::gradients: {
        const UnitGradient<Exec> gradient = pass.parameters.gradients(exec, call.unit);
        const bool of_layer = call.unit != map_.embedding_unit() && call.unit != map_.final_unit();
        // The first products of a layer set the matrices of its gradient.
        if (gradient.fresh && !of_layer) Kokkos::deep_copy(exec, gradient.elements, 0.0f);
        to.gradient = {unit, gradient.elements};
        to.fresh = gradient.fresh;
        break;
      }
      case UnitCall::Kind::finish_gradients:
        pass.parameters.finish_gradients(exec, call.unit);
    }
  }
  template <class Element>
  Array2<Element, Exec> embedding(const FlatUnit<Exec, Element>& unit) const {
    return unit.matrix(map_.embedding(), config().vocabulary, config().hidden);
  }
  /// What embeddings are multiplied by: a number of the type of the weights, as transformers has it.
  float embedding_scale() const {
    if (!config().block.scaled_embedding) return 1;
    return static_cast<float>(static_cast<T>(std::sqrt(static_cast<float>(config().hidden))));
  }
  static const char* region_of(PassPart::Kind kind) {
    switch (kind) {
      case PassPart::Kind::embedding:
        return "annulus::model::embedding";
      case PassPart::Kind::forward:
        return "annulus::model::forward";
      case PassPart::Kind::loss:
        return "annulus::model::lm_head";
      case PassPart::Kind::backward:
        return "annulus::model::backward";
      case PassPart::Kind::embedding_backward:
        return "annulus::model::embedding_backward";
    }
    return "annulus::model";
  }

  // What a pass is for: losses of all rows, with gradients or without, or the logits of one row.
  struct Goal {
    std::optional<float> grad_scale = {};  // none: no backward pass follows
    bool greedy = false;                   // fills greedy_
    std::optional<std::int64_t> row = {};
    std::span<float> logits = {};  // of `row`
  };

  void go_forward(const Exec& exec, const TokenRows& rows, const Pass& pass, const Goal& goal) {
    const std::vector<AttentionCalls> calls = calls_;
    go_through(evaluation_parts(config()), exec, rows, pass, goal);
    selections_.assign(selections_.size(), nullptr);
    calls_ = calls;
  }

  void go_through(const std::vector<PassPart>& parts, const Exec& exec, const TokenRows& rows,
                  const Pass& pass, const Goal& goal) {
    check(rows);
    require(pass.attention.fits(config().layers),
            "a pass has attention for other layers than the {} of the model", config().layers);
    recorder_.start(pass.recorder, shapes_.extent.rows());
    ids_.set(exec, rows.tokens, rows.targets);
    if (own_positions_) {
      ids_.set_positions(exec, rows.positions);
      rotary_.set(exec, ids_.positions());
    }
    auto next = store_.begin(exec, 0);  // the arrays of the layer that comes next in the forward pass
    for (const PassPart& part : parts) {
      const Region region(region_of(part.kind));
      part.layer < 0 ? recorder_.set_no_layer() : recorder_.set_layer(part.layer);
      const auto make_calls = [&](std::size_t first, std::size_t end) {
        for (; first < end; ++first) {
          make(exec, pass, part.calls[first]);
          if (pass.behind_call) pass.behind_call(part);
        }
      };
      make_calls(0, part.before);
      switch (part.kind) {
        case PassPart::Kind::embedding:
          embed<Exec, T>(exec, ids_.tokens(), embedding(lent(map_.embedding_unit()).weights),
                         residual(next, Tensor::input), embedding_scale());
          break;
        case PassPart::Kind::forward:
          next = forward(exec, part.layer, next, pass);
          if (goal.grad_scale) store_.end(exec, part.layer);
          break;
        case PassPart::Kind::loss:
          recorder_.all(exec, "last", residual(next, Tensor::last));
          loss(exec, goal);
          break;
        case PassPart::Kind::backward:
          backward(exec, part.layer, pass);
          break;
        case PassPart::Kind::embedding_backward: {
          const EmbeddingWork<Exec> work{exec, ids_, embedding(lent(map_.embedding_unit()).gradient),
                                         embedding_scale()};
          OuterPasses<Exec, T>(shapes_).embedding_backward(RunSteps<Exec, T>(store_.between()), &work);
        }
      }
      make_calls(part.before, part.calls.size());
    }
  }

  // Returns the arrays of the layer behind this one.
  LayerArrays<Exec, T> forward(const Exec& exec, int layer, const LayerArrays<Exec, T>& arrays,
                               const Pass& pass) {
    const bool last = layer + 1 == config().layers;
    const auto next = last ? store_.between() : store_.begin(exec, layer + 1);
    const auto work = layer_work(exec, pass, layer, residual(next, last ? Tensor::last : Tensor::input));
    passes(layer).forward(RunSteps<Exec, T>(arrays), &work);
    return next;
  }

  void loss(const Exec& exec, const Goal& goal) {
    const std::int64_t vocabulary = config().vocabulary, hidden = config().hidden;
    const int final_unit = map_.final_unit(), head = map_.lm_head_unit();
    LossWork<Exec, T> work{.exec = exec,
                           .lm_head = lm_head_,
                           .ids = ids_,
                           .recorder = recorder_,
                           .gain = lent(final_unit).weights.vector(map_.final_norm(), hidden),
                           .weight = lent(head).weights.matrix(map_.lm_head(), vocabulary, hidden)};
    const OuterPasses<Exec, T> passes(shapes_);
    const RunSteps<Exec, T> steps(store_.between());
    if (goal.row) return passes.row_logits(steps, &work, *goal.row, goal.logits);
    if (goal.greedy) work.greedy = *greedy_;
    if (!goal.grad_scale) return passes.evaluate(steps, &work);
    work.grad_scale = *goal.grad_scale;
    work.d_weight = lent(head).gradient.matrix(map_.lm_head(), vocabulary, hidden);
    work.d_gain = lent(final_unit).gradient.vector(map_.final_norm(), hidden);
    passes.loss(steps, &work);
  }

  void backward(const Exec& exec, int layer, const Pass& pass) {
    const auto arrays = store_.need(exec, layer);
    auto work = layer_work(exec, pass, layer, {});
    work.fresh_matrices = lent(map_.layer_unit(layer)).fresh;
    if (work.fresh_matrices)
      work.gradients.for_vectors([&](const auto& sums) { Kokkos::deep_copy(exec, sums, 0.0f); });
    passes(layer).backward(RunSteps<Exec, T>(arrays), &work);
    store_.release(exec, layer);
  }

  LayerPasses<Exec, T> passes(int layer) const {
    return {shapes_, options_.of(layer), options_.early_positions > 0};
  }
  LayerWork<Exec, T> layer_work(const Exec& exec, const Pass& pass, int layer,
                                const Array2<T, Exec>& output) {
    const Lent& of_layer = lent(map_.layer_unit(layer));
    const bool sparse = pass.sparse != nullptr && pass.sparse->layers.at(static_cast<std::size_t>(layer));
    const LayerKind& kind = kinds_[static_cast<std::size_t>(layer)];
    return {.exec = exec,
            .attention = pass.attention.of(layer),
            .sparse = sparse ? &pass.sparse->attention : nullptr,
            .selection = selections_[static_cast<std::size_t>(layer)],
            .audit = pass.audit,
            .layer = layer,
            .early_positions = options_.early_positions,
            .positions = positions_,
            .weights = {config(), map_.layer(layer), of_layer.weights},
            .gradients = {config(), map_.layer(layer), of_layer.gradient},
            .rope = rotary_.of_layer(layer),
            .scale = config().score_scale(kind),
            .soft_cap = config().score_cap(kind),
            .output = output,
            .recorder = recorder_,
            .calls = calls_[static_cast<std::size_t>(layer)]};
  }
  static Array2<T, Exec> residual(const LayerArrays<Exec, T>& arrays, Tensor tensor) {
    return StepArrays<Exec, T>(arrays, tensor).matrix(tensor);
  }

  void check(const TokenRows& of_pass) const {
    const auto& [tokens, targets, positions] = of_pass;
    const std::int64_t rows = shapes_.extent.rows();
    require(static_cast<std::int64_t>(tokens.size()) == rows && tokens.size() == targets.size(),
            "{} tokens and {} targets were given, this rank holds {} rows of {} sequences", tokens.size(),
            targets.size(), rows, shapes_.extent.sequences);
    require(std::ssize(positions) == (own_positions_ ? shapes_.extent.sequences : 0),
            "positions of {} sequences were given, but {} of a pass have their own", positions.size(),
            own_positions_ ? shapes_.extent.sequences : 0);
    for (const PositionMap& of_sequence : positions)
      require(of_sequence.count == shapes_.extent.tokens,
              "a sequence has {} rows on this rank, all others have {}", of_sequence.count,
              shapes_.extent.tokens);
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
  std::vector<LayerKind> kinds_;  // of each layer
  std::vector<PassPart> parts_;
  std::vector<Lent> lent_;  // of each unit, while a part of a pass computes with it
  Shapes shapes_;
  ActivationStore<Exec, T> store_;
  PositionMap positions_;  // of this rank's rows of a sequence, where all have the same
  bool own_positions_;
  // Of layers between forward and backward.
  std::vector<std::shared_ptr<const sparsity::Selection<Exec>>> selections_;
  TokenUpload<Exec> ids_;
  std::vector<AttentionCalls> calls_;  // of each layer
  RotaryTables<Exec> rotary_;
  loss::LmHeadLoss<Exec, T> lm_head_;
  Owned<Array1<std::uint8_t, Exec>> greedy_;  // (rows), from the first evaluation that asks for it
  RowRecorder recorder_;
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
void Model<Exec, T>::evaluate(const Exec& exec, const TokenRows& rows, const Pass& pass,
                              std::span<double> losses, std::span<std::uint8_t> greedy) {
  impl_->evaluate(exec, rows, pass, losses, greedy);
}

template <class Exec, class T>
void Model<Exec, T>::logits(const Exec& exec, const TokenRows& rows, const Pass& pass, std::int64_t row,
                            std::span<float> logits) {
  impl_->logits(exec, rows, pass, row, logits);
}

template <class Exec, class T>
void Model<Exec, T>::sequence_losses(const Exec& exec, const Array1<double, Exec>& sums) {
  impl_->sequence_losses(exec, sums);
}

template <class Exec, class T>
Loss Model<Exec, T>::take_loss(const Exec& exec) {
  return impl_->take_loss(exec);
}
template <class Exec, class T>
std::vector<AttentionCalls> Model<Exec, T>::take_attention_calls() {
  return impl_->take_attention_calls();
}

ANNULUS_FOR_TRAINING(ANNULUS_COMPILE_TYPED_CLASS, Model)

}  // namespace annulus::model
